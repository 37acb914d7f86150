"""Verification by rejection sampling: a scan of the logits, then a draw from one chunk of them."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dflash_lab.core.errors import BackendError
from dflash_lab.core.kernels.device import arrives_last, follow
from dflash_lab.core.kernels.greedy_accept.reference import Verdict
from dflash_lab.core.kernels.launch import FLOATS, INTS, arrivals_for, check_range, check_tensor, launch, tile

MAX_SLOTS, MAX_CANDIDATES = 64, 64
"""Slots and candidates whose partial results one program merges."""
CHUNK, WARPS = 8192, 8
"""Logits that one program scans, and its warps."""
DRAW_WARPS = 8
"""Warps of a program that draws."""
LOG2_E = 1.4426950408889634
LEAST = tl.constexpr(-1e30)
"""Below any logit but those that are filtered away."""


@triton.jit
def _scan_chunks(
    logits, proposal, candidate_ids, q, uniforms, tops, sums, at_ids, arrivals, stride, V, scale, L,
    CHUNKS: tl.constexpr, C: tl.constexpr, CHUNK: tl.constexpr, TOGETHER: tl.constexpr, CHUNKS_TILE: tl.constexpr,
    C_TILE: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    follow(OVERLAP)
    chunk, b, slot = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row = b * L + slot
    # A request's counters: the chunks of each of its rows that are there, then L less the slot of its first rejection.
    counters = arrivals + b * (L + 1)
    # What lies behind a rejection is not asked for: where it is known in time, it is not read.
    heard = 0
    if slot > 0:
        # One thread asks for all of them: they must not hear differently.
        heard = tl.atomic_max(counters + L, 0, sem="relaxed", scope="gpu")
    if heard <= L - slot:
        logits += row.to(tl.int64) * stride
        # Neighbours that are read together lie in one thread, which sums them before all of its chunk has come.
        at = chunk * CHUNK + tl.arange(0, CHUNK // TOGETHER)[:, None] * TOGETHER + tl.arange(0, TOGETHER)[None, :]
        x = tl.load(logits + at, mask=at < V, other=float("-inf")).to(tl.float32)
        # Not minus infinity: nothing minus nothing must stay a number where all is filtered away.
        top = tl.maximum(tl.max(x, axis=1), LEAST)
        mass = tl.sum(tl.exp2((x - top[:, None]) * scale), axis=1)
        highest = tl.max(top, axis=0)
        tl.store(tops + row * CHUNKS + chunk, highest)
        tl.store(sums + row * CHUNKS + chunk, tl.sum(mass * tl.exp2((top - highest) * scale), axis=0))
        if slot < L - 1:
            cell = row - b
            c = tl.arange(0, C_TILE)
            if chunk == 0:
                # The few logits that the draw asks for by token: here nothing waits for them.
                ids = tl.load(candidate_ids + cell * C + c, mask=c < C, other=0)
                tl.store(at_ids + cell * C + c, tl.load(logits + ids).to(tl.float32), mask=c < C)
            if arrives_last(counters + slot, CHUNKS):
                s = row * CHUNKS + tl.arange(0, CHUNKS_TILE)
                there = tl.arange(0, CHUNKS_TILE) < CHUNKS
                highs = tl.load(tops + s, mask=there, other=LEAST, cache_modifier=".cg")
                masses = tl.load(sums + s, mask=there, other=0.0, cache_modifier=".cg")
                proposed = tl.load(proposal + cell)
                proposed_logit = tl.load(logits + proposed).to(tl.float32)
                names = tl.load(candidate_ids + cell * C + c, mask=c < C, other=-1)
                q_here = tl.load(q + cell * C + c, mask=c < C, other=0.0)
                row_top = tl.max(highs, axis=0)
                p_proposed = tl.exp2((proposed_logit - row_top) * scale)
                p_proposed /= tl.sum(masses * tl.exp2((highs - row_top) * scale), axis=0)
                q_proposed = tl.sum(tl.where(names == proposed, q_here, 0.0), axis=0)
                kept = tl.load(uniforms + cell) * q_proposed < p_proposed
                tl.atomic_max(counters + L, L - slot, mask=kept == 0)


@triton.jit
def _residual(masses, places, lost):
    """Masses less what is lost at some places, in float64; where that leaves nothing at all, the masses."""
    here = places[:, None] == tl.arange(0, masses.shape[0])[None, :]
    left = masses - tl.sum(tl.where(here, lost[:, None], 0.0), axis=0).to(tl.float64)
    # What cancels to rounding is nothing.
    left = tl.where(left > 1e-6 * masses, left, 0.0)
    return tl.where(tl.max(left, axis=0) > 0, left, masses)


@triton.jit
def _pick(weights, beyond, uniform):
    """Index where the running sum passes `beyond` and `uniform` times the total, and how far it was to go there."""
    after = tl.cumsum(weights, axis=0)
    total = tl.max(after, axis=0)
    # Rounding must not reach the total: that index would have no weight.
    threshold = tl.minimum(beyond + uniform * total, total - 1e-12 * total)
    passed = after <= threshold
    return tl.sum(passed.to(tl.int32), axis=0), threshold - tl.max(tl.where(passed, after, 0.0), axis=0)


@triton.jit
def _draw(
    logits, candidate_ids, q, residual_uniforms, tops, sums, at_ids, arrivals, num_accepted, bonus_id, stride, V,
    scale, L, CHUNKS: tl.constexpr, C: tl.constexpr, CHUNK: tl.constexpr, TOGETHER: tl.constexpr,
    L_TILE: tl.constexpr, CHUNKS_TILE: tl.constexpr, C_TILE: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    follow(OVERLAP)
    GROUPS: tl.constexpr = CHUNK // TOGETHER
    b = tl.program_id(0)
    counters = arrivals + b * (L + 1)
    # Without a rejection the draw is from the last row.
    kept = L - tl.maximum(tl.load(counters + L), 1)
    residual_uniform = tl.load(residual_uniforms + b).to(tl.float64)
    # The row to draw from, and what min(p, q) of its candidates takes away from p; past the last there are none.
    c, s = tl.arange(0, C_TILE), tl.arange(0, CHUNKS_TILE)
    cell = (b * (L - 1) + kept) * C + c
    some = (kept < L - 1) & (c < C)
    ids_here = tl.load(candidate_ids + cell, mask=some, other=0).to(tl.int32)
    q_here = tl.load(q + cell, mask=some, other=0.0)
    x = tl.load(at_ids + cell, mask=some, other=float("-inf"))
    cell = (b * L + kept) * CHUNKS + s
    highest = tl.load(tops + cell, mask=s < CHUNKS, other=LEAST)
    masses = tl.load(sums + cell, mask=s < CHUNKS, other=0.0)
    top = tl.max(highest, axis=0)
    masses *= tl.exp2((highest - top) * scale)
    part = 1.0 / tl.sum(masses, axis=0)
    lost = tl.minimum(part * tl.exp2((x - top) * scale), q_here)

    # A chunk, then neighbours in it, then one of them.
    left = _residual((masses * part).to(tl.float64), ids_here // CHUNK, lost)
    chunk, beyond = _pick(left, 0.0, residual_uniform)
    first = chunk * GROUPS
    logits += (b * L + kept).to(tl.int64) * stride
    at = (first + tl.arange(0, GROUPS))[:, None] * TOGETHER + tl.arange(0, TOGETHER)[None, :]
    x = tl.load(logits + at, mask=at < V, other=float("-inf")).to(tl.float32)
    left = tl.sum(part * tl.exp2((x - top) * scale), axis=1).to(tl.float64)
    group, beyond = _pick(_residual(left, ids_here // TOGETHER - first, lost), beyond, 0.0)
    at = (first + group) * TOGETHER + tl.arange(0, TOGETHER)
    x = tl.load(logits + at, mask=at < V, other=float("-inf")).to(tl.float32)
    whole = part * tl.exp2((x - top) * scale)
    rest = whole - tl.sum(tl.where(ids_here[:, None] == at[None, :], q_here[:, None], 0.0), axis=0)
    rest = tl.where(tl.max(rest, axis=0) > 0, tl.maximum(rest, 0.0), whole)
    index, _ = _pick(rest.to(tl.float64), beyond, 0.0)
    k = tl.arange(0, L_TILE)
    tl.store(counters + k, 0, mask=k <= L)
    tl.store(num_accepted + b, kept.to(tl.int64))
    tl.store(bonus_id + b, ((first + group) * TOGETHER + index).to(tl.int64))


def rejection_accept(
    logits: Tensor,
    proposal: Tensor,
    candidate_ids: Tensor,
    q: Tensor,
    temperature: float,
    uniforms: Tensor,
    residual_uniforms: Tensor,
    arrivals: Tensor | None = None,
) -> Verdict:
    """The reference's `rejection_accept`; logits may be the slice `[..., :V]` of padded ones. Raises BackendError.

    Reads every logit at most once, B * L * V values: the softmax is never written. A first launch leaves the largest
    value and the sum of each chunk of 8,192, and the logits of the candidates; whoever finishes a row decides whether
    its proposal is kept, and what lies behind a rejection is left unread as far as it is known in time. In a second
    launch one program of a request draws. It knows the residual's mass in each chunk, since relu(p - q) sums to p less
    min(p, q) of the C candidates: so it draws a chunk, reads that chunk alone once more, draws 16 bytes of it in the
    same way and a token of these. Sums for draws are float64. `arrivals`: at least B * (L + 1) counters, see
    `new_arrivals`.
    """
    batch, length, vocab = logits.shape
    candidates = q.shape[-1]
    check_range("rejection_accept: slots in a block", length, 2, MAX_SLOTS)
    check_range("rejection_accept: number of candidates", candidates, 1, MAX_CANDIDATES)
    if not temperature > 0:
        raise BackendError(f"rejection_accept: expected a temperature above 0, got {temperature}: use greedy_accept")
    check_tensor("logits", logits, (batch, length, vocab), FLOATS, rows_apart=True)
    check_tensor("proposal", proposal, (batch, length - 1), INTS)
    check_tensor("candidate_ids", candidate_ids, (batch, length - 1, candidates), INTS)
    check_tensor("q", q, (batch, length - 1, candidates), (torch.float32,))
    check_tensor("uniforms", uniforms, (batch, length - 1), (torch.float32,))
    check_tensor("residual_uniforms", residual_uniforms, (batch,), (torch.float32,))
    chunks = triton.cdiv(vocab, CHUNK)
    tops = torch.empty(batch, length, chunks, dtype=torch.float32, device=logits.device)
    sums, at_ids = torch.empty_like(tops), torch.empty_like(q)
    found = Verdict(proposal.new_empty(batch), proposal.new_empty(batch))
    arrivals = arrivals_for(arrivals, batch * (length + 1), logits.device)
    scale, together = LOG2_E / temperature, 16 // logits.element_size()
    launch(
        _scan_chunks, (chunks, batch, length),
        logits, proposal, candidate_ids, q, uniforms, tops, sums, at_ids, arrivals, logits.stride(1), vocab, scale,
        length, CHUNKS=chunks, C=candidates, CHUNK=CHUNK, TOGETHER=together, CHUNKS_TILE=tile(chunks),
        C_TILE=tile(candidates), num_warps=WARPS,
    )  # fmt: skip
    launch(
        _draw, (batch,),
        logits, candidate_ids, q, residual_uniforms, tops, sums, at_ids, arrivals, *found, logits.stride(1), vocab,
        scale, length, CHUNKS=chunks, C=candidates, CHUNK=CHUNK, TOGETHER=together,
        L_TILE=tile(length + 1), CHUNKS_TILE=tile(chunks), C_TILE=tile(candidates), num_warps=DRAW_WARPS,
    )  # fmt: skip
    return found
