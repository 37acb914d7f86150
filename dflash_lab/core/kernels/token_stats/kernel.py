"""The target's judgement of a block in one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dflash_lab.core.kernels.device import arrives_last, follow
from dflash_lab.core.kernels.greedy_accept.kernel import as_largest, largest_of_each
from dflash_lab.core.kernels.launch import FLOATS, arrivals_for, check_range, check_tensor, launch, tile
from dflash_lab.core.kernels.token_stats.reference import TokenStats

CHUNK, WARPS = 16384, 4
"""Logits that one program reads, and its warps."""
MAX_CHUNKS = 4096
"""Partial results of a row that one program merges."""
LOG2_E, LN_2 = tl.constexpr(1.4426950408889634), tl.constexpr(0.6931471805599453)


@triton.jit
def _base(best):
    """The power of two that a sum of exponentials is relative to: its largest term, made finite.

    Infinity less itself is no number, and a chunk may be filtered away.
    """
    return tl.maximum(tl.where(best == float("inf"), 0.0, best), -1e30) * LOG2_E


@triton.jit
def _token_stats(
    logits, best_id, top2, log_norm, partials, places, arrivals, stride, V, CHUNKS: tl.constexpr, CHUNK: tl.constexpr,
    TOGETHER: tl.constexpr, CHUNKS_TILE: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    follow(OVERLAP)
    chunk, row = tl.program_id(0), tl.program_id(1)
    logits += row.to(tl.int64) * stride
    # Neighbours that are read together lie in one thread, which reduces them first: the rest is done once for them all.
    groups, near = tl.arange(0, CHUNK // TOGETHER), tl.arange(0, TOGETHER)
    at = chunk * CHUNK + groups[:, None] * TOGETHER + near[None, :]
    x = tl.load(logits + at, mask=at < V, other=float("-inf")).to(tl.float32)
    bests = largest_of_each(x)
    sums = tl.sum(tl.exp2(x * LOG2_E - _base(bests)[:, None]), axis=1)
    best, group = tl.max(bests, axis=0, return_indices=True)
    mass = tl.sum(sums * tl.exp2(_base(bests) - _base(best)), axis=0)
    at = chunk * CHUNK + group * TOGETHER + near
    x = as_largest(tl.load(logits + at, mask=at < V, other=float("-inf")).to(tl.float32))
    place = tl.min(tl.where(x == best, at, V), axis=0)
    # The next largest is a neighbour of the largest, or the largest of other neighbours.
    second = tl.max(tl.where(groups == group, float("-inf"), bests), axis=0)
    second = tl.maximum(second, tl.max(tl.where(at == place, float("-inf"), x), axis=0))
    lane = row * CHUNKS + chunk
    lanes = tl.num_programs(1) * CHUNKS
    tl.store(partials + lane, best)
    tl.store(partials + lanes + lane, second)
    tl.store(partials + 2 * lanes + lane, mass)
    tl.store(places + lane, place)

    if arrives_last(arrivals + row, CHUNKS):
        s = tl.arange(0, CHUNKS_TILE)
        there = s < CHUNKS
        cells = row * CHUNKS + s
        tops = tl.load(partials + cells, mask=there, other=float("-inf"), cache_modifier=".cg")
        seconds = tl.load(partials + lanes + cells, mask=there, other=float("-inf"), cache_modifier=".cg")
        masses = tl.load(partials + 2 * lanes + cells, mask=there, other=0.0, cache_modifier=".cg")
        ids = tl.load(places + cells, mask=there, other=V, cache_modifier=".cg")
        best = tl.max(tops, axis=0)
        place = tl.min(tl.where(tops == best, ids, V), axis=0)
        # The next largest is its chunk's second or another chunk's largest.
        second = tl.max(tl.where(ids == place, seconds, tops), axis=0)
        mass = tl.sum(masses * tl.exp2(_base(tops) - _base(best)), axis=0)
        # Without a sum all is filtered away; a sum that is no number has an infinite logit.
        norm = tl.where(mass > 0, (_base(best) + tl.log2(tl.where(mass > 0, mass, 1.0))) * LN_2, best)
        tl.store(best_id + row, place.to(tl.int64))
        tl.store(top2 + 2 * row, best)
        tl.store(top2 + 2 * row + 1, second)
        tl.store(log_norm + row, norm)


def token_stats(logits: Tensor, arrivals: Tensor | None = None) -> TokenStats:
    """The reference's `token_stats`; logits may be the slice `[..., :V]` of padded ones. Raises BackendError.

    Reads every logit once, B * L * V values, and of each chunk the winner's 16 bytes once more: a program leaves the
    two largest of its chunk of 16,384 and the sum of exponentials, and the last program of a row merges them.
    `arrivals`: at least B * L counters, see `new_arrivals`.
    """
    batch, length, vocab = logits.shape
    check_tensor("logits", logits, (batch, length, vocab), FLOATS, rows_apart=True)
    chunks, rows, device = triton.cdiv(vocab, CHUNK), batch * length, logits.device
    check_range("token_stats: vocabulary", vocab, 1, CHUNK * MAX_CHUNKS)
    partials = torch.empty(3, rows, chunks, dtype=torch.float32, device=device)
    places = torch.empty(rows, chunks, dtype=torch.int32, device=device)
    found = TokenStats(
        torch.empty(batch, length, dtype=torch.int64, device=device),
        partials.new_empty(batch, length, 2),
        partials.new_empty(batch, length),
    )
    launch(
        _token_stats, (chunks, rows),
        logits, *found, partials, places, arrivals_for(arrivals, rows, device), logits.stride(1), vocab,
        CHUNKS=chunks, CHUNK=CHUNK, TOGETHER=16 // logits.element_size(), CHUNKS_TILE=tile(chunks), num_warps=WARPS,
    )  # fmt: skip
    return found
