"""Edge scores and the walk in one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dflash_lab.core.kernels.device import PRECISION, arrives_last, follow
from dflash_lab.core.kernels.edge_walk.reference import EdgeWalk
from dflash_lab.core.kernels.launch import FLOATS, INTS, arrivals_for, check_range, check_tensor, launch, tile

MAX_CANDIDATES = 64
"""Candidates whose C x C scores one program holds in registers."""
RANK_TILE = 128
"""Part of the rank multiplied at a time."""


@triton.jit
def _edge_walk(
    unary, anchor_ids, candidate_ids, hidden, predecessors, successors, uniforms,
    path, q, edges, choices, rows, arrivals, temperature,
    K, C: tl.constexpr, R: tl.constexpr,
    C_TILE: tl.constexpr, R_TILE: tl.constexpr, K_TILE: tl.constexpr, SAMPLED: tl.constexpr, EDGES: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    follow(OVERLAP)
    e, b = tl.program_id(0), tl.program_id(1)
    c = tl.arange(0, C_TILE)
    inside = c < C
    square = inside[:, None] & inside[None, :]
    slot = (b * K + e) * C
    ids = tl.load(candidate_ids + slot + c, mask=inside, other=0)
    before = tl.load(candidate_ids + slot - C + c, mask=inside & (e > 0), other=0)
    before = tl.where(e == 0, tl.load(anchor_ids + b), before)

    scores = tl.zeros((C_TILE, C_TILE), tl.float32)
    for start in range(0, R, R_TILE):
        r = start + tl.arange(0, R_TILE)
        fits = inside[:, None] & (r < R)[None, :]
        h = tl.load(hidden + (b * K + e) * R + r, mask=r < R, other=0.0)
        a = tl.load(predecessors + before[:, None] * R + r[None, :], mask=fits, other=0.0).to(tl.float32)
        s = tl.load(successors + ids[:, None] * R + r[None, :], mask=fits, other=0.0).to(tl.float32)
        scores = tl.dot(a * h[None, :], tl.trans(s), scores, input_precision=PRECISION)
    scores += tl.load(unary + slot + c, mask=inside, other=float("-inf"))[None, :]
    if EDGES:
        tl.store(edges + (slot + c)[:, None] * C + c[None, :], scores, mask=square)

    if SAMPLED:
        scaled = scores / temperature
        weights = tl.exp(scaled - tl.max(scaled, axis=1)[:, None])
        probs = weights / tl.sum(weights, axis=1)[:, None]
        cdf = tl.cumsum(probs.to(tl.float64), axis=1)
        threshold = tl.load(uniforms + b * K + e).to(tl.float64) * tl.max(cdf, axis=1)
        choice = tl.minimum(tl.sum((cdf <= threshold[:, None]).to(tl.int32), axis=1), C - 1)
        tl.store(rows + (slot + c)[:, None] * C + c[None, :], probs, mask=square)
    else:
        choice = tl.argmax(scores, axis=1)
    tl.store(choices + slot + c, choice, mask=inside)

    if arrives_last(arrivals + b, K):
        k = tl.arange(0, K_TILE)
        lattice = (b * K + k)[:, None] * C + c[None, :]
        grid = (k < K)[:, None] & inside[None, :]
        chosen = tl.load(choices + lattice, mask=grid, other=0, cache_modifier=".cg")
        index = 0
        came = tl.zeros((K_TILE,), tl.int32)
        taken = tl.zeros((K_TILE,), tl.int32)
        for step in range(K):
            came = tl.where(k == step, index, came)
            index = tl.sum(tl.sum(tl.where((k == step)[:, None] & (c == index)[None, :], chosen, 0), axis=1), axis=0)
            taken = tl.where(k == step, index, taken)
        tl.store(path + b * K + k, taken.to(tl.int64), mask=k < K)
        if SAMPLED:
            row = ((b * K + k) * C + came)[:, None] * C + c[None, :]
            tl.store(q + lattice, tl.load(rows + row, mask=grid, other=0.0, cache_modifier=".cg"), mask=grid)


def edge_walk(
    unary: Tensor,
    anchor_ids: Tensor,
    candidate_ids: Tensor,
    hidden: Tensor,
    predecessor_codebook: Tensor,
    successor_codebook: Tensor,
    temperature: float,
    uniforms: Tensor | None,
    want_edges: bool,
    arrivals: Tensor | None = None,
) -> EdgeWalk:
    """The reference's `edge_walk` for 1 to 64 candidates; unary, hidden and uniforms float32. Raises BackendError.

    One program for each position of each request scores all C x C edges and chooses a successor for every predecessor,
    so that no position waits for another; the last program of a request then follows its K choices. It moves the
    codes of C successors and C predecessors per position, B * K * 2C * R values, and 4 * B * K * C bytes of choices.
    The scores stay in registers unless asked for; when sampling, each row's distribution is kept aside (in L2), because
    the one that was drawn from is returned. `arrivals`: at least B counters, see `new_arrivals`.
    """
    batch, positions, candidates = unary.shape
    rank, device = hidden.shape[-1], unary.device
    check_range("edge_walk: number of candidates", candidates, 1, MAX_CANDIDATES)
    check_tensor("unary", unary, (batch, positions, candidates), (torch.float32,))
    check_tensor("anchor_ids", anchor_ids, (batch,), INTS)
    check_tensor("candidate_ids", candidate_ids, (batch, positions, candidates), INTS)
    check_tensor("hidden", hidden, (batch, positions, rank), (torch.float32,))
    for name, book in (("predecessor", predecessor_codebook), ("successor", successor_codebook)):
        check_tensor(f"{name}_codebook", book, (len(book), rank), FLOATS)
    sampled = temperature > 0
    if sampled:
        check_tensor("uniforms", uniforms, (batch, positions), (torch.float32,))
    path = candidate_ids.new_empty(batch, positions)
    choices = torch.empty(batch, positions, candidates, dtype=torch.int32, device=device)
    rows = unary.new_empty(batch, positions, candidates, candidates) if sampled else None
    q = torch.empty_like(unary) if sampled else None
    edges = unary.new_empty(batch, positions, candidates, candidates) if want_edges else None
    launch(
        _edge_walk, (positions, batch),
        unary, anchor_ids, candidate_ids, hidden, predecessor_codebook, successor_codebook, uniforms,
        path, q, edges, choices, rows, arrivals_for(arrivals, batch, device), float(temperature),
        positions, C=candidates, R=rank,
        C_TILE=tile(candidates, 16), R_TILE=min(RANK_TILE, tile(rank, 16)), K_TILE=tile(positions),
        SAMPLED=sampled, EDGES=want_edges, num_warps=8 if candidates > 32 else 4,
    )  # fmt: skip
    return EdgeWalk(path, q, edges)
