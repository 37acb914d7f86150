"""Verification by rejection sampling: a scan of the logits, then a draw from one chunk of them."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dflash_lab.core.errors import BackendError
from dflash_lab.core.kernels.device import follow
from dflash_lab.core.kernels.greedy_accept.reference import Verdict
from dflash_lab.core.kernels.launch import FLOATS, INTS, check_range, check_tensor, launch, tile

MAX_SLOTS, MAX_CANDIDATES = 64, 64
"""Slots and candidates whose partial results one program merges."""
CHUNK, TILE, STAGES, WARPS = 4096, 2048, 3, 4
"""Logits that one program scans, those it reads at a time, tiles in flight, and its warps."""
DRAW_WARPS = 8
"""Warps of a program that draws from a chunk."""
LOG2_E = 1.4426950408889634
LEAST = tl.constexpr(-1e30)
"""Below any logit but those that are filtered away."""


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
def _scan_chunks(
    logits, tops, sums, stride, V, scale, CHUNK: tl.constexpr, TILE: tl.constexpr, TOGETHER: tl.constexpr,
    STAGES: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    follow(OVERLAP)
    chunk, row = tl.program_id(0), tl.program_id(1)
    # Neighbours that are read together lie in one thread, which has a maximum and a sum of its own; the sum is made
    # less only where the maximum rises, once for all of them.
    near = tl.arange(0, TILE // TOGETHER)[:, None] * TOGETHER + tl.arange(0, TOGETHER)[None, :]
    logits += row.to(tl.int64) * stride
    # Not minus infinity: nothing minus nothing must stay a number where all is filtered away.
    top = tl.full((TILE // TOGETHER,), LEAST, tl.float32)
    mass = tl.zeros((TILE // TOGETHER,), tl.float32)
    for start in tl.range(0, CHUNK, TILE, num_stages=STAGES):
        at = chunk * CHUNK + start + near
        x = tl.load(logits + at, mask=at < V, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(top, tl.max(x, axis=1))
        mass = mass * tl.exp2((top - higher) * scale) + tl.sum(tl.exp2((x - higher[:, None]) * scale), axis=1)
        top = higher
    highest = tl.max(top, axis=0)
    tl.store(tops + row * tl.num_programs(0) + chunk, highest)
    tl.store(sums + row * tl.num_programs(0) + chunk, tl.sum(mass * tl.exp2((top - highest) * scale), axis=0))


@triton.jit
def _accept_and_draw(
    logits, proposal, candidate_ids, q, uniforms, residual_uniforms, tops, sums, num_accepted, bonus_id,
    stride, V, scale, L, CHUNKS, C: tl.constexpr, CHUNK: tl.constexpr, L_TILE: tl.constexpr,
    CHUNKS_TILE: tl.constexpr, C_TILE: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    follow(OVERLAP)
    b = tl.program_id(0)
    logits += (b * L).to(tl.int64) * stride
    K = L - 1
    k = tl.arange(0, L_TILE)
    c = tl.arange(0, C_TILE)
    s = tl.arange(0, CHUNKS_TILE)
    cells = (b * L + k)[:, None] * CHUNKS + s[None, :]
    there = (k < L)[:, None] & (s < CHUNKS)[None, :]
    highest = tl.load(tops + cells, mask=there, other=LEAST)
    masses = tl.load(sums + cells, mask=there, other=0.0)
    proposed = tl.load(proposal + b * K + k, mask=k < K, other=0)
    lattice = (b * K + k)[:, None] * C + c[None, :]
    grid = (k < K)[:, None] & (c < C)[None, :]
    ids = tl.load(candidate_ids + lattice, mask=grid, other=0)
    q_ids = tl.load(q + lattice, mask=grid, other=0.0)
    uniform = tl.load(uniforms + b * K + k, mask=k < K, other=1.0)
    # All that may be asked for, at once: what is needed of it is known later.
    at_proposed = tl.load(logits + k * stride + proposed, mask=k < K, other=0.0).to(tl.float32)
    at_ids = tl.load(logits + k[:, None] * stride + ids, mask=grid, other=float("-inf")).to(tl.float32)

    row_top = tl.max(highest, axis=1)
    masses *= tl.exp2((highest - row_top[:, None]) * scale)
    row_sum = tl.sum(masses, axis=1)
    q_proposed = tl.sum(tl.where(ids == proposed[:, None], q_ids, 0.0), axis=1)
    p_proposed = tl.exp2((at_proposed - row_top) * scale) / row_sum
    kept = tl.min(tl.where((k < K) & (uniform * q_proposed < p_proposed), L, k), axis=0)

    # The row to draw from: p's mass in each chunk, less what min(p, q) of its candidates takes away.
    here = k == kept
    top = tl.sum(tl.where(here, row_top, 0.0), axis=0)
    total = tl.sum(tl.where(here, row_sum, 0.0), axis=0)
    p_mass = tl.sum(tl.where(here[:, None], masses, 0.0), axis=0).to(tl.float64) / total
    ids_here = tl.sum(tl.where(here[:, None], ids, 0), axis=0)
    q_here = tl.sum(tl.where(here[:, None], q_ids, 0.0), axis=0)
    p_here = tl.exp2((tl.max(tl.where(here[:, None], at_ids, float("-inf")), axis=0) - top) * scale) / total
    lost = tl.minimum(p_here, q_here).to(tl.float64)
    left = p_mass - tl.sum(tl.where((ids_here // CHUNK)[None, :] == s[:, None], lost[None, :], 0.0), axis=1)
    # What cancels to rounding is nothing.
    left = tl.where(left > 1e-6 * p_mass, left, 0.0)
    left = tl.where(tl.max(left, axis=0) > 0, left, p_mass)
    chosen, beyond = _pick(left, tl.load(residual_uniforms + b).to(tl.float64))
    chosen_mass = tl.sum(tl.where(s == chosen, left, 0.0), axis=0)

    at = chosen * CHUNK + tl.arange(0, CHUNK)
    x = tl.load(logits + kept * stride + at, mask=at < V, other=float("-inf")).to(tl.float32)
    whole = tl.exp2((x - top) * scale) / total
    taken = tl.zeros((CHUNK,), tl.float32)
    for candidate in range(C):
        this = (b * K + kept) * C + candidate
        taken_id = tl.load(candidate_ids + this, mask=kept < K, other=-1).to(tl.int32)
        taken = tl.where(at == taken_id, tl.load(q + this, mask=kept < K, other=0.0), taken)
    rest = tl.maximum(whole - taken, 0.0)
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
) -> Verdict:
    """The reference's `rejection_accept`; logits may be the slice `[..., :V]` of padded ones. Raises BackendError.

    Reads every logit once, B * L * V values: the softmax is never written. A first launch leaves the largest value
    and the sum of each chunk of 4,096; from these one program of a request knows, in a second launch, every probability
    it needs, and the residual's mass in each chunk, since relu(p - q) sums to p less min(p, q) of the C candidates. So
    it draws a chunk first and then reads that chunk alone once more. Sums for draws are float64.
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
    scale = LOG2_E / temperature
    launch(
        _scan_chunks, (chunks, batch * length), logits, tops, sums, logits.stride(1), vocab, scale,
        CHUNK=CHUNK, TILE=TILE, TOGETHER=16 // logits.element_size(), STAGES=STAGES, num_warps=WARPS,
    )  # fmt: skip
    launch(
        _accept_and_draw, (batch,),
        logits, proposal, candidate_ids, q, uniforms, residual_uniforms, tops, sums, *found,
        logits.stride(1), vocab, scale, length, chunks, C=candidates, CHUNK=CHUNK,
        L_TILE=tile(length), CHUNKS_TILE=tile(chunks), C_TILE=tile(candidates), num_warps=DRAW_WARPS,
    )  # fmt: skip
    return found
