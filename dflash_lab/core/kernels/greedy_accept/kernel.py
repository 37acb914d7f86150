"""Greedy verification in one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dflash_lab.core.kernels.device import arrives_last, follow
from dflash_lab.core.kernels.greedy_accept.reference import Verdict
from dflash_lab.core.kernels.launch import FLOATS, INTS, arrivals_for, check_range, check_tensor, launch, tile

MAX_SLOTS = 64
"""Slots of a block whose partial results one program merges."""
CHUNK, WARPS = 8192, 4
"""Logits that one program reads, and its warps."""


@triton.jit
def as_largest(x):
    """Not-a-number counts as largest, as it does in torch: the token stays one of the vocabulary."""
    return tl.where(x != x, float("inf"), x)


@triton.jit
def largest_of_each(x):
    """The largest of each row of at most 8 neighbours, which one thread read together.

    Halves are compared: half precision goes two to an instruction, and what is not a number is looked for in the
    result alone.
    """
    for _ in tl.static_range(3):
        if x.shape[1] > 1:
            left, right = tl.split(tl.reshape(x, (x.shape[0], x.shape[1] // 2, 2)))
            x = tl.maximum(left, right, propagate_nan=tl.PropagateNan.ALL)
    return as_largest(tl.reshape(x, (x.shape[0],)))


@triton.jit
def _greedy_accept(
    logits, proposal, num_accepted, bonus_id, values, places, arrivals, stride, V,
    L, CHUNKS: tl.constexpr, CHUNK: tl.constexpr, TOGETHER: tl.constexpr, L_TILE: tl.constexpr,
    CHUNKS_TILE: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    follow(OVERLAP)
    chunk, slot, b = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    logits += (b * L + slot).to(tl.int64) * stride
    # The largest of neighbours that are read together, then the chunk's; its place only among the winner's.
    near = tl.arange(0, TOGETHER)
    at = chunk * CHUNK + tl.arange(0, CHUNK // TOGETHER)[:, None] * TOGETHER + near[None, :]
    best = largest_of_each(tl.load(logits + at, mask=at < V, other=float("-inf")).to(tl.float32))
    top, group = tl.max(best, axis=0, return_indices=True)
    at = chunk * CHUNK + group * TOGETHER + near
    x = as_largest(tl.load(logits + at, mask=at < V, other=float("-inf")).to(tl.float32))
    partial = (b * L + slot) * CHUNKS + chunk
    tl.store(values + partial, top)
    tl.store(places + partial, tl.min(tl.where(x == top, at, V), axis=0))

    if arrives_last(arrivals + b, L * CHUNKS):
        k = tl.arange(0, L_TILE)
        s = tl.arange(0, CHUNKS_TILE)
        cells = (b * L + k)[:, None] * CHUNKS + s[None, :]
        there = (k < L)[:, None] & (s < CHUNKS)[None, :]
        tops = tl.load(values + cells, mask=there, other=float("-inf"), cache_modifier=".cg")
        ids = tl.load(places + cells, mask=there, other=V, cache_modifier=".cg")
        wanted = tl.min(tl.where(tops == tl.max(tops, axis=1)[:, None], ids, V), axis=1)
        proposed = tl.load(proposal + b * (L - 1) + k, mask=k < L - 1, other=-1)
        kept = tl.min(tl.where(proposed == wanted, L, k), axis=0)
        tl.store(num_accepted + b, kept.to(tl.int64))
        tl.store(bonus_id + b, tl.sum(tl.where(k == kept, wanted, 0), axis=0).to(tl.int64))


def greedy_accept(logits: Tensor, proposal: Tensor, arrivals: Tensor | None = None) -> Verdict:
    """The reference's `greedy_accept`; logits may be the slice `[..., :V]` of padded ones. Raises BackendError.

    Reads every logit once, B * L * V values, and of each chunk the winner's 16 bytes once more; the rest is
    B * L * V / 8,192 partial maxima. Chunks of 8,192 make 248 programs of a block of 8 (V 248,320), enough to fill the
    chip; the last program of a request merges. Of equal logits the lowest token wins. `arrivals`: at least B counters,
    see `new_arrivals`.
    """
    batch, length, vocab = logits.shape
    check_range("greedy_accept: slots in a block", length, 1, MAX_SLOTS)
    check_tensor("logits", logits, (batch, length, vocab), FLOATS, rows_apart=True)
    check_tensor("proposal", proposal, (batch, length - 1), INTS)
    chunks = triton.cdiv(vocab, CHUNK)
    values = torch.empty(batch, length, chunks, dtype=torch.float32, device=logits.device)
    places = torch.empty(batch, length, chunks, dtype=torch.int32, device=logits.device)
    found = Verdict(proposal.new_empty(batch), proposal.new_empty(batch))
    launch(
        _greedy_accept, (chunks, length, batch),
        logits, proposal, *found, values, places, arrivals_for(arrivals, batch, logits.device), logits.stride(1), vocab,
        length, CHUNKS=chunks, CHUNK=CHUNK, TOGETHER=16 // logits.element_size(),
        L_TILE=tile(length), CHUNKS_TILE=tile(chunks), num_warps=WARPS,
    )  # fmt: skip
    return found
