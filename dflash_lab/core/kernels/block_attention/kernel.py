"""Attention of a draft block over cached context in one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dflash_lab.core.errors import BackendError
from dflash_lab.core.kernels.block_attention.reference import Attended
from dflash_lab.core.kernels.device import PRECISION, arrives_last, follow
from dflash_lab.core.kernels.launch import FLOATS, PROGRAMS, arrivals_for, check_range, check_tensor, launch, tile

MAX_ROWS = 128
"""Query rows of one key head that a program holds: slots times the query heads that share the key head."""
MAX_HEAD = 256
"""Widest head."""
KEY_TILE_BYTES = 128
"""Keys read at a time: as many as make this many bytes of one channel, 64 in half precision."""
MAX_SPLITS = 16
"""Parts of a context that are read at once; more of them cost more to merge than they save."""
LARGE, STAGES = 64 * 128, 3
"""Query rows times channels that take more warps and leave room for two tiles of keys and values; tiles in flight."""
LOG2_E = 1.4426950408889634


@triton.jit
def _block_attention(
    queries, keys, values, lengths, slots, out, sums, stats, arrivals, query_stride, scale, window,
    L, S, H: tl.constexpr, H_KV: tl.constexpr, D: tl.constexpr, SPLITS: tl.constexpr,
    M_TILE: tl.constexpr, S_TILE: tl.constexpr, D_TILE: tl.constexpr, WINDOWED: tl.constexpr, CAUSAL: tl.constexpr,
    SHORTENED: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    follow(OVERLAP)
    split, head, b = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(lengths + b)
    # All query heads of a key head are rows of one tile: its keys and values are read once.
    m = tl.arange(0, M_TILE)
    slot = m % L
    row_used = m < L * (H // H_KV)
    d = tl.arange(0, D_TILE)
    cell = (row_used[:, None]) & (d < D)[None, :]
    query_head = head * (H // H_KV) + m // L
    place = (b * L + slot)[:, None] * query_stride + query_head[:, None] * D + d[None, :]
    q = tl.load(queries + place, mask=cell, other=0.0)
    at = length + slot

    end = length + (tl.load(slots + b) if SHORTENED else L)
    first = tl.maximum(length - window + 1, 0) if WINDOWED else 0
    part = tl.cdiv(end - first, SPLITS * S_TILE) * S_TILE
    start = first + split * part
    stop = tl.minimum(start + part, end)
    rows = (b * H_KV + head).to(tl.int64) * S
    top = tl.full((M_TILE,), float("-inf"), tl.float32)
    mass = tl.zeros((M_TILE,), tl.float32)
    total = tl.zeros((M_TILE, D_TILE), tl.float32)
    for begin in range(start, stop, S_TILE):
        s = begin + tl.arange(0, S_TILE)
        cached = (rows + s)[:, None] * D + d[None, :]
        there = (s < stop)[:, None] & (d < D)[None, :]
        k = tl.load(keys + cached, mask=there, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
        seen = (s < stop)[None, :] & row_used[:, None]
        if CAUSAL:
            seen &= s[None, :] <= at[:, None]
        if WINDOWED:
            seen &= tl.abs(at[:, None] - s[None, :]) < window
        scores = tl.where(seen, scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, axis=1))
        # A row that has seen nothing yet: minus infinity less itself must stay a number.
        known = tl.where(higher == float("-inf"), 0.0, higher)
        weight = tl.exp2(scores - known[:, None])
        fade = tl.exp2(top - known)
        mass = mass * fade + tl.sum(weight, axis=1)
        v = tl.load(values + cached, mask=there, other=0.0)
        total = tl.dot(weight.to(v.dtype), v, total * fade[:, None], input_precision=PRECISION)
        top = higher

    if SPLITS > 1:
        group = b * H_KV + head
        lane = (group * SPLITS + split) * M_TILE + m
        tl.store(stats + lane, top)
        tl.store(stats + H_KV * tl.num_programs(2) * SPLITS * M_TILE + lane, mass)
        tl.store(sums + lane[:, None] * D_TILE + d[None, :], total)
        last = arrives_last(arrivals + group, SPLITS)
        if last:
            top = tl.full((M_TILE,), float("-inf"), tl.float32)
            mass = tl.zeros((M_TILE,), tl.float32)
            total = tl.zeros((M_TILE, D_TILE), tl.float32)
            for other in range(SPLITS):
                lane = (group * SPLITS + other) * M_TILE + m
                its_top = tl.load(stats + lane, cache_modifier=".cg")
                its_mass = tl.load(stats + H_KV * tl.num_programs(2) * SPLITS * M_TILE + lane, cache_modifier=".cg")
                higher = tl.maximum(top, its_top)
                known = tl.where(higher == float("-inf"), 0.0, higher)
                fade, share = tl.exp2(top - known), tl.exp2(its_top - known)
                mass = mass * fade + its_mass * share
                its_total = tl.load(sums + lane[:, None] * D_TILE + d[None, :], cache_modifier=".cg")
                total = total * fade[:, None] + its_total * share[:, None]
                top = higher
        cell = cell & last
    result = (total / tl.where(mass > 0, mass, 1.0)[:, None]).to(out.dtype.element_ty)
    tl.store(out + ((b * L + slot) * H + query_head)[:, None] * D + d[None, :], result, mask=cell)


def block_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    lengths: Tensor,
    window: int | None,
    causal: bool,
    slots: Tensor | None = None,
    arrivals: Tensor | None = None,
) -> Attended:
    """The reference's `block_attention`; queries may be a slice of a fused projection. Raises BackendError.

    Reads each cached key and value once for all query heads that share it, 2 * (length + L) * H_kv * head_dim values a
    request, from `lengths`, which stay on the device: the launch is the same at any length. The context is split into
    up to 16 parts so that a single request with 8 key heads still makes 128 programs; each leaves a float32 sum, its
    mass and its maximum, and the last one of a key head merges them. With a window, keys before it are not read.
    `arrivals`: at least B * H_kv counters, see `new_arrivals`.
    """
    batch, length, heads, size = queries.shape
    kv_heads, places = keys.shape[1:3]
    if heads % kv_heads:
        raise BackendError(f"block_attention: {heads} query heads do not divide into {kv_heads} key heads: fix keys")
    rows = length * (heads // kv_heads)
    check_range("block_attention: slots times query heads of a key head", rows, 1, MAX_ROWS)
    check_range("block_attention: head size", size, 1, MAX_HEAD)
    check_range("block_attention: places in the cache", places, length, 1 << 30)
    if window is not None:
        check_range("block_attention: window", window, 1, 1 << 30)
    check_tensor("queries", queries, (batch, length, heads, size), FLOATS, rows_apart=True)
    check_tensor("keys", keys, (batch, kv_heads, places, size), (queries.dtype,))
    check_tensor("values", values, (batch, kv_heads, places, size), (queries.dtype,))
    check_tensor("lengths", lengths, (batch,), (torch.int32,))
    if slots is not None:
        check_tensor("slots", slots, (batch,), (torch.int32,))
    device, height, width = queries.device, tile(rows, 16), tile(size, 16)
    depth = KEY_TILE_BYTES // queries.element_size()
    longest = places if window is None else min(places, window + length)
    splits = max(1, min(MAX_SPLITS, triton.cdiv(longest, 2 * depth), PROGRAMS // 4 // (batch * kv_heads)))
    sums = stats = None
    if splits > 1:
        sums = torch.empty(batch, kv_heads, splits, height, width, dtype=torch.float32, device=device)
        stats = torch.empty(2, batch, kv_heads, splits, height, dtype=torch.float32, device=device)
        arrivals = arrivals_for(arrivals, batch * kv_heads, device)
    out = torch.empty(batch, length, heads, size, dtype=queries.dtype, device=device)
    launch(
        _block_attention, (splits, kv_heads, batch),
        queries, keys, values, lengths, slots, out, sums, stats, arrivals, queries.stride(1), size**-0.5 * LOG2_E,
        window or 0, length, places, H=heads, H_KV=kv_heads, D=size, SPLITS=splits,
        M_TILE=height, S_TILE=depth, D_TILE=width, WINDOWED=window is not None, CAUSAL=causal,
        SHORTENED=slots is not None, num_warps=8 if height * width > LARGE else 4,
        num_stages=2 if height * width > LARGE else STAGES,
    )  # fmt: skip
    return Attended(out)
