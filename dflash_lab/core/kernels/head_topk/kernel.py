"""Candidates through the output head without writing the logits."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from dflash_lab.core.errors import BackendError
from dflash_lab.core.kernels.device import PRECISION, arrives_last, follow
from dflash_lab.core.kernels.head_topk.reference import HeadTopk
from dflash_lab.core.kernels.launch import FLOATS, arrivals_for, check_range, check_tensor, launch, tile

MAX_CANDIDATES = 64
"""Keys that a program sorts for a position."""
GROUP = 4
"""Neighbouring vocabulary rows of which only the largest logit is written."""
ROW_TILE = 1024
"""Channels of a group's rows that are read at a time when its logits are computed again."""
MAX_PARTS = 1024
"""Parts of the vocabulary that are compared with each other, unless there are more candidates."""
SORT_WARPS, AGAIN_WARPS = 8, 4
"""Warps of a program that sorts a position's groups, and of one that computes a group's logits again."""
LOWEST = tl.constexpr(-(1 << 63))
"""Smaller than the key of any logit."""


class Tile(NamedTuple):
    """How the product is cut."""

    positions: int
    """Positions of a tile."""
    rows: int
    """Vocabulary rows of a tile."""
    warps: int
    """Warps of a program."""
    stages: int
    """Tiles of operands in flight."""


HALF_TILES = (Tile(16, 64, 4, 4), Tile(32, 64, 4, 4), Tile(64, 128, 4, 3), Tile(128, 256, 8, 4))
"""Tiles in half precision: the first that holds all positions, or else the last. Few positions wait for the weights;
for many, a tile as large as the registers hold keeps the tensor cores busy."""
FLOAT_TILES = (Tile(16, 64, 4, 3), Tile(32, 64, 4, 3), Tile(64, 64, 4, 3))
"""The same in float32."""


@triton.jit
def _cap(logits, softcap):
    return softcap * (1.0 - 2.0 / (tl.exp(2.0 * logits / softcap) + 1.0))


@triton.jit
def _keys(logits, places):
    """Logits and their places as int64 that sort alike; of equal logits the lower place is larger."""
    bits = logits.to(tl.int32, bitcast=True)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (ordered.to(tl.int64) << 32) | (0x7FFFFFFF - places).to(tl.int64)


@triton.jit
def _place(keys):
    return (0x7FFFFFFF - (keys & 0x7FFFFFFF)).to(tl.int32)


@triton.jit
def _halves(RANK: tl.constexpr, AXIS: tl.constexpr):
    """0 and 1 along one axis of a tensor `[2] * RANK`."""
    return tl.reshape(tl.arange(0, 2), [1] * AXIS + [2] + [1] * (RANK - AXIS - 1))


@triton.jit
def _sort_runs(x, RANK: tl.constexpr, RUN: tl.constexpr):
    """Bitonic runs of 2**RUN values, along the last axes of `[2] * RANK`, sorted: the first down, the next up, ..."""
    for axis in tl.static_range(RANK - RUN, RANK):
        up = _halves(RANK, axis)
        if RUN < RANK:
            up ^= _halves(RANK, RANK - RUN - 1)
        x = tl.where(up == 0, tl.max(x, axis=axis, keep_dims=True), tl.min(x, axis=axis, keep_dims=True))
    return x


@triton.jit
def _largest(keys, LOG_M: tl.constexpr, LOG_C: tl.constexpr):
    """The 2**LOG_C largest of 2**LOG_M keys, in descending order.

    What `tl.topk` does, without its exclusive ors, which the interpreter computes one by one: of two sorted runs, one
    down and one up, the larger values at each place are the largest of both.
    """
    x = tl.reshape(keys, [2] * LOG_M)
    for run in tl.static_range(1, LOG_C + 1):
        x = _sort_runs(x, LOG_M, run)
    for rank in tl.static_range(LOG_M - 1, LOG_C - 1, -1):
        x = _sort_runs(tl.max(x, axis=rank - LOG_C), rank, LOG_C)
    return tl.reshape(x, [2**LOG_C])


@triton.jit
def _group_maxima(
    hidden, weight, maxima, tops, sums, V, N, multiplier, softcap, D: tl.constexpr, N_TILE: tl.constexpr,
    V_TILE: tl.constexpr, D_TILE: tl.constexpr, G: tl.constexpr, CAPPED: tl.constexpr, SUMMED: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    follow(OVERLAP)
    # Programs that share weights run next to each other: the second reads them from L2.
    part = tl.program_id(1)
    n = tl.program_id(0) * N_TILE + tl.arange(0, N_TILE)
    v = part * V_TILE + tl.arange(0, V_TILE)
    # Past the end the last row and position are read again: no load needs a mask.
    rows = weight + tl.minimum(v, V - 1).to(tl.int64)[:, None] * D
    states = hidden + tl.minimum(n, N - 1)[:, None] * D
    # A tensor core's tile is 64 rows high and as narrow as 8: few positions are its columns, many its rows, for then
    # neighbouring logits lie in one thread.
    logits = tl.zeros((V_TILE, N_TILE) if N_TILE < 64 else (N_TILE, V_TILE), tl.float32)
    for start in range(0, D, D_TILE):
        d = (start + tl.arange(0, D_TILE))[None, :]
        if D % D_TILE == 0:
            w = tl.load(rows + d)
            h = tl.load(states + d)
        else:
            w = tl.load(rows + d, mask=d < D, other=0.0)
            h = tl.load(states + d, mask=d < D, other=0.0)
        if N_TILE < 64:
            logits = tl.dot(w, tl.trans(h), logits, input_precision=PRECISION)
        else:
            logits = tl.dot(h, tl.trans(w), logits, input_precision=PRECISION)
    if N_TILE < 64:
        logits = tl.trans(logits)
    logits *= multiplier
    # Not-a-number counts as largest: it comes out.
    logits = tl.where(logits == logits, logits, float("inf"))
    logits = tl.where((v < V)[None, :], logits, float("-inf"))
    best = tl.max(tl.reshape(logits, (N_TILE, V_TILE // G, G)), axis=2)
    top = tl.max(best, axis=1)
    g = part * (V_TILE // G) + tl.arange(0, V_TILE // G)
    width = tl.num_programs(1) * (V_TILE // G)
    tl.store(maxima + n.to(tl.int64)[:, None] * width + g[None, :], best, mask=(n < N)[:, None])
    cell = n * tl.num_programs(1) + part
    tl.store(tops + cell, top, mask=n < N)
    if SUMMED:
        if CAPPED:
            logits = tl.where((v < V)[None, :], _cap(logits, softcap), float("-inf"))
            top = _cap(top, softcap)
        tl.store(sums + cell, tl.sum(tl.exp(logits - top[:, None]), axis=1), mask=n < N)


@triton.jit
def _best_groups(
    maxima, tops, sums, groups, logsumexp, TILES, softcap, C: tl.constexpr, LOG_C: tl.constexpr,
    LOG_PARTS: tl.constexpr, LOG_FOLD: tl.constexpr, LOG_PER: tl.constexpr, CAPPED: tl.constexpr,
    SUMMED: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    follow(OVERLAP)
    n = tl.program_id(0)
    FOLD: tl.constexpr = 2**LOG_FOLD
    WIDTH: tl.constexpr = 2 ** (LOG_FOLD + LOG_PER)
    # The C largest logits lie in the C parts with the largest maxima, and there in the C groups with the largest.
    p = tl.arange(0, 2**LOG_PARTS)
    top = tl.full((2**LOG_PARTS,), float("-inf"), tl.float32)
    for fold in tl.static_range(FOLD):
        t = p * FOLD + fold
        top = tl.maximum(top, tl.load(tops + n * TILES + t, mask=t < TILES, other=float("-inf")))
    keys = tl.where(p * FOLD < TILES, _keys(top, p), LOWEST)
    part = _place(_largest(keys, LOG_PARTS, LOG_C)).to(tl.int64)
    g = part[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    there = g < TILES * 2**LOG_PER
    best = tl.load(maxima + n.to(tl.int64) * (TILES * 2**LOG_PER) + g, mask=there, other=float("-inf"))
    keys = tl.reshape(tl.where(there, _keys(best, g), LOWEST), (WIDTH * 2**LOG_C,))
    group = _place(_largest(keys, LOG_C + LOG_FOLD + LOG_PER, LOG_C))
    c = tl.arange(0, 2**LOG_C)
    tl.store(groups + n * C + c, group, mask=c < C)
    if SUMMED:
        highest = tl.max(top, axis=0)
        if CAPPED:
            highest = _cap(highest, softcap)
        mass = tl.zeros((2**LOG_PARTS,), tl.float32)
        for fold in tl.static_range(FOLD):
            t = p * FOLD + fold
            top = tl.load(tops + n * TILES + t, mask=t < TILES, other=float("-inf"))
            if CAPPED:
                top = _cap(top, softcap)
            mass += tl.load(sums + n * TILES + t, mask=t < TILES, other=0.0) * tl.exp(top - highest)
        tl.store(logsumexp + n, highest + tl.log(tl.sum(mass, axis=0)))


@triton.jit
def _logits_again(
    hidden, weight, groups, logits, unary, rows, arrivals, V, multiplier, softcap, C: tl.constexpr, D: tl.constexpr,
    LOG_C: tl.constexpr, D_TILE: tl.constexpr, LOG_G: tl.constexpr, CAPPED: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    follow(OVERLAP)
    c, n = tl.program_id(0), tl.program_id(1)
    G: tl.constexpr = 2**LOG_G
    lane = tl.arange(0, G)
    # Fewer groups than C: one that is none lies past the vocabulary.
    v = tl.load(groups + n * C + c).to(tl.int64) * G + lane
    total = tl.zeros((G, D_TILE), tl.float32)
    for start in range(0, D, D_TILE):
        d = start + tl.arange(0, D_TILE)
        h = tl.load(hidden + n * D + d, mask=d < D, other=0.0).to(tl.float32)
        w = tl.load(weight + v[:, None] * D + d[None, :], mask=(v < V)[:, None] & (d < D)[None, :], other=0.0)
        total += w.to(tl.float32) * h[None, :]
    again = tl.sum(total, axis=1) * multiplier
    if CAPPED:
        again = _cap(again, softcap)
    tl.store(logits + (n * C + c) * G + lane, again)

    if arrives_last(arrivals + n, C):
        m = tl.arange(0, G * 2**LOG_C)
        there = m < C * G
        group = tl.load(groups + n * C + m // G, mask=there, other=0x7FFFFFFF)
        row = group.to(tl.int64) * G + m % G
        found = tl.load(logits + n * C * G + m, mask=there, other=0.0, cache_modifier=".cg")
        best = _largest(tl.where(row < V, _keys(found, row), LOWEST), LOG_C + LOG_G, LOG_C)
        ordered = (best >> 32).to(tl.int32)
        k = tl.arange(0, 2**LOG_C)
        tl.store(unary + n * C + k, (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True), mask=k < C)
        tl.store(rows + n * C + k, _place(best).to(tl.int64), mask=k < C)


def _log2(size: int) -> int:
    """Of a power of two."""
    return size.bit_length() - 1


def head_topk(
    hidden: Tensor,
    weight: Tensor,
    vocab_size: int,
    num_candidates: int,
    multiplier: float,
    softcap: float | None,
    want_logsumexp: bool,
    arrivals: Tensor | None = None,
) -> HeadTopk:
    """The reference's `head_topk` for 1 to 64 candidates, in float32 throughout. Raises BackendError.

    Three launches. The first reads the head, V * D values, once and multiplies it by tiles of positions; of the logits
    it writes the largest of every 4 neighbours and of every tile. The second sorts the C best tiles out, then the C
    best groups of 4 in them: the C largest logits are there. The third computes the logits of these groups once more,
    B * K * C * 4 rows of the head, and sorts them; so a candidate's logit does not depend on how many positions there
    are. Of equal logits the lower row wins. `arrivals`: at least B * K counters, see `new_arrivals`.
    """
    batch, positions, size = hidden.shape
    count = batch * positions
    check_range("head_topk: number of candidates", num_candidates, 1, min(MAX_CANDIDATES, vocab_size))
    check_range("head_topk: vocabulary", vocab_size, 1, len(weight))
    if softcap is not None and not softcap > 0:
        raise BackendError(f"head_topk: expected a soft-cap above 0, got {softcap}: pass None for none")
    check_tensor("hidden", hidden, (batch, positions, size), FLOATS)
    check_tensor("weight", weight, (len(weight), size), (hidden.dtype,))
    cuts = FLOAT_TILES if hidden.dtype == torch.float32 else HALF_TILES
    cut = next((cut for cut in cuts if count <= cut.positions), cuts[-1])
    tiles = triton.cdiv(vocab_size, cut.rows)
    new = hidden.new_empty
    maxima, tops = new(count, tiles, cut.rows // GROUP, dtype=torch.float32), new(count, tiles, dtype=torch.float32)
    sums = torch.empty_like(tops) if want_logsumexp else None
    groups = new(count, num_candidates, dtype=torch.int32)
    logits = new(count, num_candidates, GROUP, dtype=torch.float32)
    unary = new(batch, positions, num_candidates, dtype=torch.float32)
    logsumexp = unary.new_empty(batch, positions) if want_logsumexp else None
    found = HeadTopk(unary, torch.empty_like(unary, dtype=torch.int64), logsumexp)
    shape, capped = (float(multiplier), float(softcap or 1.0)), softcap is not None
    chosen = {"C": num_candidates, "LOG_C": _log2(tile(num_candidates, 2))}
    log_fold = max(0, _log2(tile(tiles)) - _log2(MAX_PARTS))
    launch(
        _group_maxima, (triton.cdiv(count, cut.positions), tiles),
        hidden, weight, maxima, tops, sums, vocab_size, count, *shape,
        D=size, N_TILE=cut.positions, V_TILE=cut.rows, D_TILE=min(128 // hidden.element_size(), tile(size, 16)),
        G=GROUP, CAPPED=capped, SUMMED=want_logsumexp, num_warps=cut.warps, num_stages=cut.stages,
    )  # fmt: skip
    launch(
        _best_groups, (count,), maxima, tops, sums, groups, logsumexp, tiles, shape[1],
        LOG_PARTS=max(_log2(tile(tiles)) - log_fold, chosen["LOG_C"]), LOG_FOLD=log_fold,
        LOG_PER=_log2(cut.rows // GROUP), CAPPED=capped, SUMMED=want_logsumexp, num_warps=SORT_WARPS, **chosen,
    )  # fmt: skip
    launch(
        _logits_again, (num_candidates, count),
        hidden, weight, groups, logits, found.unary, found.rows, arrivals_for(arrivals, count, hidden.device),
        vocab_size, *shape, D=size, D_TILE=min(ROW_TILE, tile(size)), LOG_G=_log2(GROUP), CAPPED=capped,
        num_warps=AGAIN_WARPS, **chosen,
    )  # fmt: skip
    return found
