"""How a proposal is chosen from draft hidden states: independently (DFlash) or by the selector's walk (DFlash 2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from dflash_lab.core.hooks import Hooks
from dflash_lab.core.kernels.edge_walk.reference import MATERIALISE_UP_TO, Walk, inverse_cdf, walk_edges
from dflash_lab.core.model.head import DraftHead
from dflash_lab.core.model.selector import CandidateSelector


@dataclass(frozen=True)
class DraftBlock:
    """A draft block with everything that led to it."""

    block_ids: Tensor
    """`[B, L]` int64: the anchor, then the proposal."""
    candidate_ids: Tensor
    """`[B, K, C]` int64 token ids, best unary score first."""
    unary: Tensor
    """`[B, K, C]` float32 drafter logits of the candidates."""
    edges: Tensor | None
    """`[B, K, C, C]` float32 edge scores, if materialised."""
    path: Tensor
    """`[B, K]` int64 chosen candidate, index into C."""
    q: Tensor | None
    """`[B, K, C]` float32 distribution the proposal was drawn from; None when greedy."""


class Proposer(Protocol):
    """Chooses a proposal."""

    def propose(
        self,
        hidden: Tensor,
        anchor_ids: Tensor,
        head: DraftHead,
        num_candidates: int,
        temperature: float,
        rng: torch.Generator | None,
        hooks: Hooks,
    ) -> DraftBlock:
        """From `hidden [B, K, D]` and `anchor_ids [B]`; `rng` is used only at temperature > 0."""
        ...


def candidates(hidden: Tensor, head: DraftHead, num_candidates: int, hooks: Hooks) -> tuple[Tensor, Tensor]:
    """The `C` largest logits at each position, best first: token ids and float32 unary scores, `[B, K, C]` each."""
    logits = hooks("draft_logits", head.logits(hidden))
    unary, rows = torch.topk(logits, num_candidates, dim=-1)
    return head.token_ids(rows), hooks("unary", unary.float())


def _uniforms(like: Tensor, temperature: float, rng: torch.Generator | None) -> Tensor | None:
    """One independent uniform per position, `[B, K]`; None when greedy."""
    if temperature == 0:
        return None
    return torch.rand(like.shape[:2], generator=rng, device=like.device)


def _block(
    anchor_ids: Tensor, candidate_ids: Tensor, unary: Tensor, edges: Tensor | None, walk: Walk, hooks: Hooks
) -> DraftBlock:
    path, q = hooks("path", walk.path), walk.q
    if q is not None and path is not walk.path:
        # An edited choice was not drawn from q: it is certain, and verification must know.
        q = torch.zeros_like(q).scatter_(2, path.unsqueeze(-1), 1.0)
    proposal = candidate_ids.gather(2, path.unsqueeze(-1)).squeeze(-1)
    return DraftBlock(torch.cat((anchor_ids[:, None], proposal), dim=1), candidate_ids, unary, edges, path, q)


class IndependentProposer:
    """DFlash: each position on its own. Sampling draws from the softmax over the C candidates, and q says so."""

    def propose(
        self,
        hidden: Tensor,
        anchor_ids: Tensor,
        head: DraftHead,
        num_candidates: int,
        temperature: float,
        rng: torch.Generator | None,
        hooks: Hooks,
    ) -> DraftBlock:
        candidate_ids, unary = candidates(hidden, head, num_candidates, hooks)
        uniforms = _uniforms(unary, temperature, rng)
        if uniforms is None:
            walk = Walk(unary.argmax(-1), None)
        else:
            q = torch.softmax(unary / temperature, dim=-1)
            walk = Walk(inverse_cdf(q, uniforms), q)
        return _block(anchor_ids, candidate_ids, unary, None, walk, hooks)


class SelectorProposer:
    """DFlash 2: a walk through the lattice of candidates along edge scores."""

    def __init__(self, selector: CandidateSelector) -> None:
        self.selector = selector

    def propose(
        self,
        hidden: Tensor,
        anchor_ids: Tensor,
        head: DraftHead,
        num_candidates: int,
        temperature: float,
        rng: torch.Generator | None,
        hooks: Hooks,
    ) -> DraftBlock:
        candidate_ids, unary = candidates(hidden, head, num_candidates, hooks)
        uniforms = _uniforms(unary, temperature, rng)
        if num_candidates <= MATERIALISE_UP_TO or hooks.wants("edges"):
            edges = hooks("edges", self.selector.edges(hidden, anchor_ids, candidate_ids, unary))
            walk = walk_edges(edges, temperature, uniforms)
        else:
            edges = None
            walk = self.selector.walk_rows(hidden, anchor_ids, candidate_ids, unary, temperature, uniforms)
        return _block(anchor_ids, candidate_ids, unary, edges, walk, hooks)
