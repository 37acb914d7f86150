"""Verification of a draft block: how many proposals the target keeps, and its own token after them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dflash_lab.core.decode.sampling import draw, probabilities
from dflash_lab.core.types import SamplingParams


class Verdict(NamedTuple):
    """The target's decision, still on the device."""

    num_accepted: Tensor
    """`[B]` leading proposals kept, 0..K."""
    bonus_id: Tensor
    """`[B]` the target's own token after them."""


def verify_greedy(logits: Tensor, proposal: Tensor) -> Verdict:
    """Keep proposals while they equal the target's arg-max; logits `[B, K+1, V]`, proposal `[B, K]`."""
    wanted = logits.argmax(-1)
    num_accepted = (proposal == wanted[:, :-1]).cumprod(dim=1).sum(dim=1)
    return Verdict(num_accepted, wanted.gather(1, num_accepted[:, None])[:, 0])


def verify_sampled(
    logits: Tensor,
    proposal: Tensor,
    candidate_ids: Tensor,
    q: Tensor,
    params: SamplingParams,
    rng: torch.Generator | None,
) -> Verdict:
    """Rejection sampling (Leviathan et al. 2023, Chen et al. 2023): the text follows the target's distribution.

    A proposal x is kept with probability min(1, p(x) / q(x)), each position by its own uniform; after the first
    rejection one token is drawn from normalize(relu(p - q)), after full acceptance one from p, with fresh uniforms.
    q `[B, K, C]` is the distribution over `candidate_ids [B, K, C]` that the proposal `[B, K]` was really drawn from.
    """
    p = probabilities(logits, params)
    num_positions = proposal.shape[1]
    p_proposed = p[:, :num_positions].gather(2, proposal.unsqueeze(-1)).squeeze(-1)
    q_proposed = (q * (candidate_ids == proposal.unsqueeze(-1))).sum(-1)
    uniforms = torch.rand(proposal.shape, generator=rng, device=p.device)
    num_accepted = (uniforms * q_proposed < p_proposed).cumprod(dim=1).sum(dim=1)
    rows = torch.arange(p.shape[0], device=p.device)
    residual = p[rows, num_accepted]
    # Past the last proposal there is nothing to subtract: q is zero there.
    q_here = torch.cat((q, torch.zeros_like(q[:, :1])), dim=1)[rows, num_accepted]
    ids_here = torch.cat((candidate_ids, torch.zeros_like(candidate_ids[:, :1])), dim=1)[rows, num_accepted]
    corrected = residual.scatter_add(1, ids_here, -q_here).clamp_min(0)
    # Rounding can leave nothing where p equals q; then a rejection has probability zero and p itself is right.
    corrected = torch.where(corrected.sum(-1, keepdim=True) > 0, corrected, residual)
    return Verdict(num_accepted, draw(corrected, rng))
