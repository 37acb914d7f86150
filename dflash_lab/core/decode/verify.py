"""Verification of a sampled draft block; a greedy one is the kernel reference's `greedy_accept`."""

from __future__ import annotations

import torch
from torch import Tensor

from dflash_lab.core.decode.sampling import probabilities
from dflash_lab.core.kernels.greedy_accept.reference import Verdict
from dflash_lab.core.kernels.rejection_accept.reference import reject
from dflash_lab.core.types import SamplingParams


def verify_sampled(
    logits: Tensor,
    proposal: Tensor,
    candidate_ids: Tensor,
    q: Tensor,
    params: SamplingParams,
    rng: torch.Generator | None,
) -> Verdict:
    """Rejection sampling of a proposal `[B, K]` under the filtered distribution of `logits [B, K+1, V]`; see `reject`.

    One independent uniform for each position, then one for the token after the accepted ones.
    """
    p = probabilities(logits, params)
    uniforms = torch.rand(proposal.shape, generator=rng, device=p.device)
    residual_uniforms = torch.rand(p.shape[:1], generator=rng, device=p.device)
    return reject(p, proposal, candidate_ids, q, uniforms, residual_uniforms)
