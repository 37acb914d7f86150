"""Queries, keys and values of a draft block: normed, projected, normed by head, rotated and laid down.

In one launch, or around cuBLAS.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dflash_lab.core.errors import BackendError
from dflash_lab.core.kernels.block_qkv.reference import BlockQkv
from dflash_lab.core.kernels.device import follow
from dflash_lab.core.kernels.launch import FLOATS, check_range, check_tensor, launch, tile
from dflash_lab.core.kernels.row_product import (
    MAX_WEIGHTS,
    Tiles,
    check_convolution,
    check_rows,
    choose_tiles,
    fetch_rows,
    fuses,
    multiply,
    prepare,
    row_product,
    warps,
)

MAX_HEAD = 256
"""Widest head."""
FINISH_TILE, FINISH_VALUES = 512, 4
"""Pairs of channels in a program that finishes the library's product, and how many a thread has."""


def tiles(rows: int, taps: int, channels: int, head_dim: int, heads: int, whole: bool, width: int) -> Tiles:
    """The tiles of a call with `heads` of any kind; `width` is the size of an element in bytes.

    A head that is normed is made by one program, `whole`; else several programs may share it.
    """
    most = tile(head_dim)
    return choose_tiles(rows, taps, channels, heads * head_dim, most if whole else min(16, most), most, width)


@triton.jit
def _turns(
    cos, sin, starts, m, j, head, M, POSITIONS,
    L: tl.constexpr, HEADS: tl.constexpr, H_KV: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """Positions of rows m, and cosines and sines that turn their pairs j of channels; values are not turned."""
    at = tl.load(starts + m // L, mask=m < M, other=0) + m % L
    turns = (m < M)[:, None] & (j < HALF)[None, :] & ((head < HEADS) | ((head - HEADS) // H_KV % 2 == 0))
    row = tl.minimum(at, POSITIONS - 1)[:, None] * (2 * HALF) + j[None, :]
    cos_low = tl.load(cos + row, mask=turns, other=1.0).to(tl.float32)
    sin_low = tl.load(sin + row, mask=turns, other=0.0).to(tl.float32)
    cos_high = tl.load(cos + row + HALF, mask=turns, other=1.0).to(tl.float32)
    sin_high = tl.load(sin + row + HALF, mask=turns, other=0.0).to(tl.float32)
    return at, cos_low, sin_low, cos_high, sin_high


@triton.jit
def _finish(
    low, high, at, cos_low, sin_low, cos_high, sin_high, q_norm, k_norm, queries, cache,
    m, j, head, M, B, S, head_eps,
    L: tl.constexpr, Q_NORMED: tl.constexpr, K_NORMED: tl.constexpr,
    HEADS: tl.constexpr, H_KV: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """Norm and turn a head's pairs of channels and lay them down."""
    # Query heads first, then each plane's: keys and values by turns.
    asks = head < HEADS
    plane, kv_head = (head - HEADS) // H_KV, (head - HEADS) % H_KV
    holds_keys = (head >= HEADS) & (plane % 2 == 0)
    if Q_NORMED or K_NORMED:
        factor = tl.rsqrt(tl.sum(low * low + high * high, axis=1) / (2 * HALF) + head_eps)[:, None]
        if Q_NORMED:
            scales = (j < HALF) & asks
            q_factor = tl.where(asks, factor, 1.0)
            low *= q_factor * tl.load(q_norm + j, mask=scales, other=1.0).to(tl.float32)[None, :]
            high *= q_factor * tl.load(q_norm + HALF + j, mask=scales, other=1.0).to(tl.float32)[None, :]
        if K_NORMED:
            scales = (j < HALF) & holds_keys
            k_factor = tl.where(holds_keys, factor, 1.0)
            of_layer = k_norm + (plane // 2) * (2 * HALF) + j
            low *= k_factor * tl.load(of_layer, mask=scales, other=1.0).to(tl.float32)[None, :]
            high *= k_factor * tl.load(of_layer + HALF, mask=scales, other=1.0).to(tl.float32)[None, :]
    kind = cache.dtype.element_ty
    first_half = (low * cos_low - high * sin_low).to(kind)
    second_half = (high * cos_high + low * sin_high).to(kind)
    here = (m < M)[:, None] & (j < HALF)[None, :]
    if HEADS > 0:
        place = (m[:, None] * HEADS + head) * (2 * HALF) + j[None, :]
        tl.store(queries + place, first_half, mask=here & asks)
        tl.store(queries + place + HALF, second_half, mask=here & asks)
    kept = here & (head >= HEADS) & (at < S)[:, None]
    lane = (plane.to(tl.int64) * B + m // L) * H_KV + kv_head
    place = (lane * S + at)[:, None] * (2 * HALF) + j[None, :]
    tl.store(cache + place, first_half, mask=kept)
    tl.store(cache + place + HALF, second_half, mask=kept)


@triton.jit
def _block_qkv(
    x, weight, bias, norm, before, before_base, q_norm, k_norm, cos, sin, starts, queries, cache,
    M, B, S, POSITIONS, stride, eps, head_eps,
    L: tl.constexpr, D: tl.constexpr, TAPS: tl.constexpr, GROUPS: tl.constexpr,
    NORMED: tl.constexpr, BEFORE: tl.constexpr, BIASED: tl.constexpr, Q_NORMED: tl.constexpr, K_NORMED: tl.constexpr,
    HEADS: tl.constexpr, H_KV: tl.constexpr, HALF: tl.constexpr,
    M_TILE: tl.constexpr, J_TILE: tl.constexpr, T_TILE: tl.constexpr, D_TILE: tl.constexpr, PARTS: tl.constexpr,
    STAGES: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    first, head = tl.program_id(0) * M_TILE, tl.program_id(2)
    # The two channels that are rotated together stand side by side, so that a thread holds both.
    w = tl.arange(0, 2 * J_TILE)
    pair = tl.program_id(1) * J_TILE + w // 2
    weight_row = head * (2 * HALF) + (w % 2) * HALF + pair
    if OVERLAP:
        fetch_rows(weight, weight_row, pair < HALF, D)
    follow(OVERLAP)
    m = first + tl.arange(0, M_TILE)
    j = tl.program_id(1) * J_TILE + tl.arange(0, J_TILE)
    at, cos_low, sin_low, cos_high, sin_high = _turns(cos, sin, starts, m, j, head, M, POSITIONS, L, HEADS, H_KV, HALF)
    total = row_product(
        x, weight, norm, before, before_base, first, weight_row, pair < HALF, M, stride, eps,
        L, D, TAPS, GROUPS, NORMED, BEFORE, M_TILE, T_TILE, D_TILE, PARTS, STAGES,
    )  # fmt: skip
    if BIASED:
        total += tl.load(bias + weight_row, mask=pair < HALF, other=0.0).to(tl.float32)[None, :]
    low, high = tl.split(tl.reshape(total, (M_TILE, J_TILE, 2)))
    _finish(
        low, high, at, cos_low, sin_low, cos_high, sin_high, q_norm, k_norm, queries, cache,
        m, j, head, M, B, S, head_eps, L, Q_NORMED, K_NORMED, HEADS, H_KV, HALF,
    )  # fmt: skip


@triton.jit
def _finish_qkv(
    product, q_norm, k_norm, cos, sin, starts, queries, cache, M, B, S, POSITIONS, N, head_eps,
    L: tl.constexpr, Q_NORMED: tl.constexpr, K_NORMED: tl.constexpr,
    HEADS: tl.constexpr, H_KV: tl.constexpr, HALF: tl.constexpr,
    M_TILE: tl.constexpr, J_TILE: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1)
    follow(OVERLAP)
    m, j = tl.program_id(0) * M_TILE + tl.arange(0, M_TILE), tl.arange(0, J_TILE)
    here = (m < M)[:, None] & (j < HALF)[None, :]
    place = m[:, None] * N + head * (2 * HALF) + j[None, :]
    low = tl.load(product + place, mask=here, other=0.0).to(tl.float32)
    high = tl.load(product + place + HALF, mask=here, other=0.0).to(tl.float32)
    at, cos_low, sin_low, cos_high, sin_high = _turns(cos, sin, starts, m, j, head, M, POSITIONS, L, HEADS, H_KV, HALF)
    _finish(
        low, high, at, cos_low, sin_low, cos_high, sin_high, q_norm, k_norm, queries, cache,
        m, j, head, M, B, S, head_eps, L, Q_NORMED, K_NORMED, HEADS, H_KV, HALF,
    )  # fmt: skip


def block_qkv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    norm: Tensor | None,
    eps: float,
    before: Tensor | None,
    before_base: Tensor | None,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    head_eps: float,
    cos: Tensor,
    sin: Tensor,
    cache: Tensor,
    starts: Tensor,
    heads: int,
) -> BlockQkv:
    """The reference's `block_qkv`, summed in float32. Raises BackendError.

    In one launch where `fuses` says so: a program makes a head, or a part of one where no norm goes over it, for up to
    64 rows; weights are read once for these, x once a program, from L2. Else the library multiplies, bias included; a
    launch before it norms and convolves, where there is something to do, and one after it does the rest, a few rows of
    one head a program. `starts` stay on the device: the
    launches are the same at any length.
    """
    batch, length, channels = x.shape
    planes, kv_heads, places, size = cache.shape[0], *cache.shape[2:]
    if size % 2 or planes % 2:
        raise BackendError(
            f"block_qkv: expected planes of keys and values in pairs and heads of even size, got {planes} planes of "
            f"heads of {size}: fix cache"
        )
    check_range("block_qkv: head size", size, 2, MAX_HEAD)
    check_rows("block_qkv", x, norm, FLOATS)
    count, rows = batch * length, (heads + planes * kv_heads) * size
    check_tensor("weight", weight, (rows, channels), (x.dtype,))
    check_range("block_qkv: weights", weight.numel(), 1, MAX_WEIGHTS)
    for name, tensor, shape in (
        ("bias", bias, (rows,)),
        ("q_norm", q_norm, (size,)),
        ("k_norm", k_norm, (planes // 2, size)),
    ):
        if tensor is not None:
            check_tensor(name, tensor, shape, (x.dtype,))
    for name, table in (("cos", cos), ("sin", sin)):
        check_tensor(name, table, (len(cos), size), (x.dtype,))
    check_tensor("cache", cache, (planes, batch, kv_heads, places, size), (x.dtype,))
    check_tensor("starts", starts, (batch,), (torch.int32,))
    if before is not None:
        check_convolution("before", before, before_base, (batch, length), channels, x)
    taps, groups = (1, 1) if before is None else before.shape[2:]
    queries = torch.empty(batch, length, heads, size, dtype=x.dtype, device=x.device)
    half, all_heads = size // 2, heads + planes * kv_heads
    parts = {"Q_NORMED": q_norm is not None, "K_NORMED": k_norm is not None}
    sizes = {"L": length, "HEADS": heads, "H_KV": kv_heads, "HALF": half}
    if not fuses(count, taps, channels, rows):
        product = multiply(prepare(launch, x, norm, eps, before, before_base), weight, bias)
        pairs = tile(half)
        height = max(1, min(FINISH_TILE // pairs, tile(count)))
        launch(
            _finish_qkv, (triton.cdiv(count, height), all_heads),
            product, q_norm, k_norm, cos, sin, starts, queries, cache,
            count, batch, places, len(cos), rows, float(head_eps),
            M_TILE=height, J_TILE=pairs, num_warps=warps(height * pairs, FINISH_VALUES), **parts, **sizes,
        )  # fmt: skip
        return BlockQkv(queries, cache)
    whole = parts["Q_NORMED"] or parts["K_NORMED"]
    chosen = tiles(count, taps, channels, size, all_heads, whole, x.element_size())
    launch(
        _block_qkv, (triton.cdiv(count, chosen.rows), triton.cdiv(size, chosen.pieces), all_heads),
        x, weight, bias, norm, before, before_base, q_norm, k_norm, cos, sin, starts, queries, cache,
        count, batch, places, len(cos), 0 if before is None else before.stride(1), float(eps), float(head_eps),
        D=channels, TAPS=taps, GROUPS=groups, NORMED=norm is not None, BEFORE=before is not None,
        BIASED=bias is not None, M_TILE=chosen.rows, J_TILE=chosen.pieces // 2, T_TILE=tile(taps), D_TILE=chosen.depth,
        PARTS=chosen.parts, STAGES=chosen.stages, num_warps=chosen.warps, **parts, **sizes,
    )  # fmt: skip
    return BlockQkv(queries, cache)
