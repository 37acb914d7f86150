"""Verification by rejection sampling in one launch."""

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
CHUNK = 4096
"""Logits that one program scans."""


@triton.jit
def _pick(weights, uniform):
    """Index, and weights summed before it, where the running sum passes `uniform` times the total; in float64."""
    after = tl.cumsum(weights.to(tl.float64), axis=0)
    total = tl.max(after, axis=0)
    # Rounding must not reach the total: that index would have no weight.
    threshold = tl.minimum(uniform * total, total - 1e-12 * total)
    index = tl.sum((after <= threshold).to(tl.int32), axis=0)
    return index, threshold - tl.max(tl.where(after <= threshold, after, 0.0), axis=0)


@triton.jit
def _rejection_accept(
    logits, proposal, candidate_ids, q, uniforms, residual_uniforms, num_accepted, bonus_id, tops, sums, arrivals,
    stride, V, temperature, L, C: tl.constexpr, CHUNKS: tl.constexpr,
    CHUNK: tl.constexpr, L_TILE: tl.constexpr, CHUNKS_TILE: tl.constexpr, C_TILE: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    follow(OVERLAP)
    chunk, slot, b = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    logits += (b * L).to(tl.int64) * stride
    lane = tl.arange(0, CHUNK)
    at = chunk * CHUNK + lane
    x = tl.load(logits + slot * stride + at, mask=at < V, other=float("-inf")).to(tl.float32) / temperature
    top = tl.max(x, axis=0)
    # A chunk may be filtered away whole: nothing minus nothing must stay a number.
    mass = tl.sum(tl.where(x == float("-inf"), 0.0, tl.exp(x - top)), axis=0)
    partial = (b * L + slot) * CHUNKS + chunk
    tl.store(tops + partial, top)
    tl.store(sums + partial, mass)

    if arrives_last(arrivals + b, L * CHUNKS):
        K = L - 1
        k = tl.arange(0, L_TILE)
        c = tl.arange(0, C_TILE)
        s = tl.arange(0, CHUNKS_TILE)
        cells = (b * L + k)[:, None] * CHUNKS + s[None, :]
        there = (k < L)[:, None] & (s < CHUNKS)[None, :]
        highest = tl.load(tops + cells, mask=there, other=float("-inf"), cache_modifier=".cg")
        masses = tl.load(sums + cells, mask=there, other=0.0, cache_modifier=".cg")
        row_top = tl.where(k < L, tl.max(highest, axis=1), 0.0)
        masses = tl.where(masses > 0, masses * tl.exp(highest - row_top[:, None]), 0.0)
        row_sum = tl.sum(masses, axis=1)

        proposed = tl.load(proposal + b * K + k, mask=k < K, other=0)
        scaled = tl.load(logits + k * stride + proposed, mask=k < K, other=0.0).to(tl.float32) / temperature
        lattice = (b * K + k)[:, None] * C + c[None, :]
        grid = (k < K)[:, None] & (c < C)[None, :]
        ids = tl.load(candidate_ids + lattice, mask=grid, other=-1)
        q_proposed = tl.sum(tl.where(ids == proposed[:, None], tl.load(q + lattice, mask=grid, other=0.0), 0.0), axis=1)
        p_proposed = tl.exp(scaled - row_top) / row_sum
        uniform = tl.load(uniforms + b * K + k, mask=k < K, other=1.0)
        kept = tl.min(tl.where((k < K) & (uniform * q_proposed < p_proposed), L, k), axis=0)

        # The row to draw from: p's mass in each chunk, less what min(p, q) of its candidates takes away.
        logits += kept * stride
        top = tl.sum(tl.where(k == kept, row_top, 0.0), axis=0)
        total = tl.sum(tl.where(k == kept, row_sum, 0.0), axis=0)
        p_mass = tl.sum(tl.where((k == kept)[:, None], masses, 0.0), axis=0).to(tl.float64) / total
        drawn = (c < C) & (kept < K)
        row = (b * K + kept) * C
        ids_here = tl.load(candidate_ids + row + c, mask=drawn, other=0)
        q_here = tl.load(q + row + c, mask=drawn, other=0.0)
        p_here = tl.exp(tl.load(logits + ids_here, mask=drawn, other=float("-inf")).to(tl.float32) / temperature - top)
        taken = tl.minimum(p_here / total, q_here).to(tl.float64)
        left = p_mass - tl.sum(tl.where((ids_here // CHUNK)[None, :] == s[:, None], taken[None, :], 0.0), axis=1)
        # What cancels to rounding is nothing.
        left = tl.where(left > 1e-6 * p_mass, left, 0.0)
        left = tl.where(tl.max(left, axis=0) > 0, left, p_mass)
        chosen, beyond = _pick(left, tl.load(residual_uniforms + b).to(tl.float64))
        chosen_mass = tl.sum(tl.where(s == chosen, left, 0.0), axis=0)

        at = chosen * CHUNK + lane
        x = tl.load(logits + at, mask=at < V, other=float("-inf")).to(tl.float32) / temperature
        whole = tl.exp(x - top) / total
        rest = whole
        for candidate in range(C):
            taken_id = tl.load(candidate_ids + row + candidate, mask=kept < K, other=-1)
            taken_q = tl.load(q + row + candidate, mask=kept < K, other=0.0)
            rest = tl.where(at == taken_id, tl.maximum(rest - taken_q, 0.0), rest)
        rest = tl.where(tl.max(rest, axis=0) > 0, rest, whole)
        index, _ = _pick(rest, beyond / chosen_mass)
        tl.store(num_accepted + b, kept.to(tl.int64))
        tl.store(bonus_id + b, (chosen * CHUNK + index).to(tl.int64))


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

    Reads every logit once, B * L * V values: the softmax is never written. Each program leaves the largest value and
    the sum of its chunk of 4,096; from these the last program of a request knows every probability it needs, and the
    residual's mass in each chunk, since relu(p - q) sums to p less min(p, q) of the C candidates. So it draws a chunk
    first and then reads that chunk alone once more. Sums for draws are float64. `arrivals`: at least B counters.
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
    sums = torch.empty_like(tops)
    found = Verdict(proposal.new_empty(batch), proposal.new_empty(batch))
    launch(
        _rejection_accept, (chunks, length, batch),
        logits, proposal, candidate_ids, q, uniforms, residual_uniforms, *found, tops, sums,
        arrivals_for(arrivals, batch, logits.device), logits.stride(1), vocab, float(temperature), length,
        C=candidates, CHUNKS=chunks, CHUNK=CHUNK,
        L_TILE=tile(length), CHUNKS_TILE=tile(chunks), C_TILE=tile(candidates), num_warps=4,
    )  # fmt: skip
    return found
