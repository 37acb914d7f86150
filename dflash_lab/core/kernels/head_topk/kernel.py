"""Candidates through the output head without writing the logits."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dflash_lab.core.errors import BackendError
from dflash_lab.core.kernels.device import PRECISION, follow
from dflash_lab.core.kernels.head_topk.reference import HeadTopk
from dflash_lab.core.kernels.launch import FLOATS, PROGRAMS, check_range, check_tensor, launch, tile

MAX_CANDIDATES = 64
"""Best keys that a program keeps in registers for each position."""
VOCAB_TILE, MAX_POSITION_TILE = 128, 64
"""Logits of a tile: vocabulary rows by positions. Two tiles in flight fill a multiprocessor."""
MERGE_TILE = 8192
"""Keys merged at a time."""
NOTHING = tl.constexpr(-(1 << 63))
"""Smaller than the key of any logit."""
UNUSED = tl.constexpr((1 << 63) - 1)
"""Larger than the key of any logit: fills the places past C, so that they are never the smallest."""


@triton.jit
def _keys(logits, rows):
    """Logits and their rows as int64 that sort alike; of equal logits the lower row is larger."""
    bits = logits.to(tl.int32, bitcast=True)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (ordered.to(tl.int64) << 32) | (0x7FFFFFFF - rows).to(tl.int64)


@triton.jit
def _no_keys(C: tl.constexpr, C_TILE: tl.constexpr, N: tl.constexpr):
    """Places for the C best keys of each of N columns, `[C_TILE, N]`; no two alike, for keys are replaced by value."""
    c = tl.arange(0, C_TILE).to(tl.int64)[:, None]
    return tl.where(c < C, NOTHING + c, UNUSED) + tl.zeros((C_TILE, N), tl.int64)


@triton.jit
def _insert(best, found):
    """Put the keys of `found [M, N]` that are among their column's best into `best [C_TILE, N]`.

    One key of each column at a time, the largest that is left, until none is better than the worst one kept: C rounds
    for a first tile, few for a later one.
    """
    worst = tl.min(best, axis=0)
    fresh = tl.max(found, axis=0)
    while tl.max((fresh > worst).to(tl.int32), axis=0) > 0:
        better = (fresh > worst)[None, :]
        best = tl.where(better & (best == worst[None, :]), fresh[None, :], best)
        found = tl.where(found == fresh[None, :], NOTHING, found)
        worst = tl.min(best, axis=0)
        fresh = tl.max(found, axis=0)
    return best


@triton.jit
def _head_topk(
    hidden, weight, keys, tops, sums, V, N, multiplier, softcap, TILES, SPLITS, C: tl.constexpr,
    D: tl.constexpr, C_TILE: tl.constexpr, N_TILE: tl.constexpr, V_TILE: tl.constexpr, D_TILE: tl.constexpr,
    CAPPED: tl.constexpr, SUMMED: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    follow(OVERLAP)
    # Programs that share weights run next to each other: the second reads them from L2.
    split = tl.program_id(1)
    n = tl.program_id(0) * N_TILE + tl.arange(0, N_TILE)
    best = _no_keys(C, C_TILE, N_TILE)
    top = tl.full((N_TILE,), float("-inf"), tl.float32)
    mass = tl.zeros((N_TILE,), tl.float32)
    for part in range(split, TILES, SPLITS):
        v = part * V_TILE + tl.arange(0, V_TILE)
        inside = (v < V)[:, None]
        # The vocabulary is the long side of the product: a tensor core's tile is 64 rows high and as narrow as 8.
        logits = tl.zeros((V_TILE, N_TILE), tl.float32)
        for start in range(0, D, D_TILE):
            d = start + tl.arange(0, D_TILE)
            w = tl.load(weight + v.to(tl.int64)[:, None] * D + d[None, :], mask=inside & (d < D)[None, :], other=0.0)
            h = tl.load(hidden + n[:, None] * D + d[None, :], mask=(n < N)[:, None] & (d < D)[None, :], other=0.0)
            logits = tl.dot(w, tl.trans(h), logits, input_precision=PRECISION)
        logits *= multiplier
        if CAPPED:
            logits = softcap * (1.0 - 2.0 / (tl.exp(2.0 * logits / softcap) + 1.0))
        best = _insert(best, tl.where(inside, _keys(logits, v[:, None]), NOTHING))
        if SUMMED:
            logits = tl.where(inside, logits, float("-inf"))
            higher = tl.maximum(top, tl.max(logits, axis=0))
            mass = mass * tl.exp(top - higher) + tl.sum(tl.exp(logits - higher[None, :]), axis=0)
            top = higher
    c = tl.arange(0, C_TILE)
    cell = n * SPLITS + split
    tl.store(keys + cell[None, :] * C + c[:, None], best, mask=(n < N)[None, :] & (c < C)[:, None])
    if SUMMED:
        tl.store(tops + cell, top, mask=n < N)
        tl.store(sums + cell, mass, mask=n < N)


@triton.jit
def _merge_topk(
    keys, tops, sums, unary, rows, logsumexp, SPLITS,
    C: tl.constexpr, C_TILE: tl.constexpr, M_TILE: tl.constexpr, SPLITS_TILE: tl.constexpr, SUMMED: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    follow(OVERLAP)
    n = tl.program_id(0)
    best = _no_keys(C, C_TILE, 1)
    m = tl.arange(0, M_TILE)[:, None]
    for start in range(0, SPLITS * C, M_TILE):
        best = _insert(best, tl.load(keys + n * SPLITS * C + start + m, mask=start + m < SPLITS * C, other=NOTHING))
    best = tl.where(best == UNUSED, NOTHING, best)
    for c in range(C):
        key = tl.max(tl.max(best, axis=0), axis=0)
        best = tl.where(best == key, NOTHING, best)
        ordered = (key >> 32).to(tl.int32)
        logit = (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
        tl.store(unary + n * C + c, logit)
        tl.store(rows + n * C + c, 0x7FFFFFFF - (key & 0x7FFFFFFF))
    if SUMMED:
        s = tl.arange(0, SPLITS_TILE)
        highest = tl.load(tops + n * SPLITS + s, mask=s < SPLITS, other=float("-inf"))
        mass = tl.load(sums + n * SPLITS + s, mask=s < SPLITS, other=0.0)
        top = tl.max(highest, axis=0)
        tl.store(logsumexp + n, top + tl.log(tl.sum(mass * tl.exp(highest - top), axis=0)))


def head_topk(
    hidden: Tensor,
    weight: Tensor,
    vocab_size: int,
    num_candidates: int,
    multiplier: float,
    softcap: float | None,
    want_logsumexp: bool,
) -> HeadTopk:
    """The reference's `head_topk` for 1 to 64 candidates, in float32 throughout. Raises BackendError.

    Reads the head once, V * D values; the logits, B * K * V, are never written. A program multiplies tiles of 128
    rows by up to 64 positions, one after the other, and keeps the best C of each position as 64-bit keys, so about
    528 programs leave 528 * C keys a position for a second launch to merge: there every position has a program of its
    own, which a merge by the last program would not give. With more positions than 64 the head is read again from L2.
    """
    batch, positions, size = hidden.shape
    count = batch * positions
    check_range("head_topk: number of candidates", num_candidates, 1, min(MAX_CANDIDATES, vocab_size))
    check_range("head_topk: vocabulary", vocab_size, 1, len(weight))
    if softcap is not None and not softcap > 0:
        raise BackendError(f"head_topk: expected a soft-cap above 0, got {softcap}: pass None for none")
    check_tensor("hidden", hidden, (batch, positions, size), FLOATS)
    check_tensor("weight", weight, (len(weight), size), (hidden.dtype,))
    height = min(MAX_POSITION_TILE, tile(count, 16))
    blocks, tiles = triton.cdiv(count, height), triton.cdiv(vocab_size, VOCAB_TILE)
    splits = min(tiles, max(1, PROGRAMS // blocks))
    device = hidden.device
    keys = torch.empty(count, splits, num_candidates, dtype=torch.int64, device=device)
    tops, sums = torch.empty(2, count, splits, dtype=torch.float32, device=device) if want_logsumexp else (None, None)
    unary = torch.empty(batch, positions, num_candidates, dtype=torch.float32, device=device)
    logsumexp = unary.new_empty(batch, positions) if want_logsumexp else None
    found = HeadTopk(unary, torch.empty_like(unary, dtype=torch.int64), logsumexp)
    same = {"C": num_candidates, "C_TILE": tile(num_candidates, 2), "SUMMED": want_logsumexp}
    launch(
        _head_topk, (blocks, splits),
        hidden, weight, keys, tops, sums, vocab_size, count, float(multiplier), float(softcap or 1.0), tiles, splits,
        D=size, N_TILE=height, V_TILE=VOCAB_TILE, D_TILE=min(128 // hidden.element_size(), tile(size, 16)),
        CAPPED=softcap is not None, num_warps=8 if height > 32 else 4, num_stages=4, **same,
    )  # fmt: skip
    launch(
        _merge_topk, (count,), keys, tops, sums, *found, splits,
        M_TILE=min(MERGE_TILE, tile(splits * num_candidates, 2)), SPLITS_TILE=tile(splits),
        num_warps=16 if splits * num_candidates > 2048 else 4, **same,
    )  # fmt: skip
    return found
