"""Edge scores and the walk through the candidate lattice, in plain torch."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

MATERIALISE_UP_TO = 64
"""Candidates up to which all C x C edge scores of a position are computed at once; above it, only the walk's rows."""


class Walk(NamedTuple):
    """The walk's choice."""

    path: Tensor
    """`[B, K]` int64, index into C."""
    q: Tensor | None
    """`[B, K, C]` float32 distribution each token was drawn from; None when greedy."""


class EdgeWalk(NamedTuple):
    """The walk from codebooks."""

    path: Tensor
    """`[B, K]` int64, index into C."""
    q: Tensor | None
    """`[B, K, C]` float32 distribution each token was drawn from; None when greedy."""
    edges: Tensor | None
    """`[B, K, C, C]` float32 edge scores, if asked for."""


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
) -> EdgeWalk:
    """Edge scores and the walk through them, from the codebooks `[V, R]`.

    unary `[B, K, C]`; anchor_ids `[B]` and candidate_ids `[B, K, C]` int64; hidden `[B, K, R]` projected hidden
    states; uniforms `[B, K]` in [0, 1) at temperature > 0. Computes in unary's dtype.
    """
    edges = edge_scores(
        unary,
        predecessor_codebook[anchor_ids].to(unary.dtype),
        predecessor_codebook[candidate_ids].to(unary.dtype),
        hidden,
        successor_codebook[candidate_ids].to(unary.dtype),
    )
    walk = walk_edges(edges, temperature, uniforms)
    return EdgeWalk(walk.path, walk.q, edges if want_edges else None)


def edge_scores(
    unary: Tensor, anchor_codes: Tensor, candidate_codes: Tensor, hidden: Tensor, successors: Tensor
) -> Tensor:
    """All edge scores `[B, K, C, C]`: `score[b, e, p, c] = unary[b, e, c] + <A[pred(b, e, p)] * H(h[b, e]), B[c]>`.

    unary `[B, K, C]`; anchor_codes `[B, R]` and candidate_codes `[B, K, C, R]` predecessor codes of the anchor and of
    the candidates; hidden `[B, K, R]` projected hidden states; successors `[B, K, C, R]`. The only predecessor at
    position 0 is the anchor, so its C rows are equal.
    """
    batch, _, num_candidates, rank = successors.shape
    first = anchor_codes[:, None, None].expand(batch, 1, num_candidates, rank)
    predecessors = torch.cat((first, candidate_codes[:, :-1]), dim=1)
    return unary.unsqueeze(2) + (predecessors * hidden.unsqueeze(2)) @ successors.transpose(2, 3)


def walk_edges(edges: Tensor, temperature: float, uniforms: Tensor | None) -> Walk:
    """Walk materialised edges `[B, K, C, C]` from the anchor.

    Greedy takes each row's arg-max; at temperature > 0 it draws from the row's softmax by inverse CDF with
    `uniforms [B, K]`. The choice is made for every possible predecessor at once and the path is followed afterwards.
    """
    if temperature == 0:
        return Walk(_follow(edges.argmax(-1)), None)
    q = torch.softmax(edges / temperature, dim=-1)
    path = _follow(inverse_cdf(q, uniforms[:, :, None].expand(q.shape[:-1])))
    came_from = torch.cat((torch.zeros_like(path[:, :1]), path[:, :-1]), dim=1)
    rows = q.gather(2, came_from[:, :, None, None].expand(-1, -1, 1, q.shape[-1]))[:, :, 0]
    return Walk(path, rows)


def _follow(choice: Tensor) -> Tensor:
    """Follow `choice [B, K, C]` (successor for each predecessor) from the anchor: `[B, K]`."""
    step = choice[:, 0, :1]
    path = [step]
    for position in range(1, choice.shape[1]):
        step = choice[:, position].gather(1, step)
        path.append(step)
    return torch.cat(path, dim=1)


def inverse_cdf(probabilities: Tensor, uniforms: Tensor) -> Tensor:
    """Draw an index from the last axis with uniforms in [0, 1) of the leading shape.

    Sums in float64 and scales by the total, so that rounding never lands on a token of probability zero.
    """
    cdf = probabilities.double().cumsum(-1)
    threshold = uniforms.double().unsqueeze(-1) * cdf[..., -1:]
    return torch.searchsorted(cdf, threshold, right=True).squeeze(-1).clamp_(max=probabilities.shape[-1] - 1)
