"""Verification by rejection sampling (Leviathan et al. 2023, Chen et al. 2023), in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from dflash_lab.core.kernels.edge_walk.reference import inverse_cdf
from dflash_lab.core.kernels.greedy_accept.reference import Verdict


def reject(
    p: Tensor, proposal: Tensor, candidate_ids: Tensor, q: Tensor, uniforms: Tensor, residual_uniforms: Tensor
) -> Verdict:
    """Verify proposals so that the text follows the target's distribution `p [B, K+1, V]`.

    A proposal x is kept with probability min(1, p(x) / q(x)), each position by its own of `uniforms [B, K]`; after the
    first rejection one token is drawn from normalize(relu(p - q)), after full acceptance one from p, by
    `residual_uniforms [B]`. q `[B, K, C]` is the distribution over `candidate_ids [B, K, C]` that the proposal
    `[B, K]` was really drawn from.
    """
    num_positions = proposal.shape[1]
    p_proposed = p[:, :num_positions].gather(2, proposal.unsqueeze(-1)).squeeze(-1)
    q_proposed = (q * (candidate_ids == proposal.unsqueeze(-1))).sum(-1)
    num_accepted = (uniforms * q_proposed < p_proposed).cumprod(dim=1).sum(dim=1)
    return Verdict(num_accepted, inverse_cdf(residual(p, candidate_ids, q, num_accepted), residual_uniforms))


def residual(p: Tensor, candidate_ids: Tensor, q: Tensor, num_accepted: Tensor) -> Tensor:
    """What the token after `num_accepted [B]` proposals is drawn from: `[B, V]`, not normalised."""
    rows = torch.arange(p.shape[0], device=p.device)
    whole = p[rows, num_accepted]
    # Past the last proposal there is nothing to subtract: q is zero there.
    q_here = torch.cat((q, torch.zeros_like(q[:, :1])), dim=1)[rows, num_accepted]
    ids_here = torch.cat((candidate_ids, torch.zeros_like(candidate_ids[:, :1])), dim=1)[rows, num_accepted]
    left = whole.scatter_add(1, ids_here, -q_here).clamp_min(0)
    # Rounding can leave nothing where p equals q; then a rejection has probability zero and p itself is right.
    return torch.where(left.sum(-1, keepdim=True) > 0, left, whole)


def rejection_accept(
    logits: Tensor,
    proposal: Tensor,
    candidate_ids: Tensor,
    q: Tensor,
    temperature: float,
    uniforms: Tensor,
    residual_uniforms: Tensor,
) -> Verdict:
    """`reject` under the softmax of `logits [B, K+1, V] / temperature`; filtered tokens have a logit of -inf."""
    p = torch.softmax(logits.to(q.dtype) / temperature, dim=-1)
    return reject(p, proposal, candidate_ids, q, uniforms, residual_uniforms)
