"""Logits to probabilities, and draws by inverse CDF with explicit uniforms."""

from __future__ import annotations

import torch
from torch import Tensor

from dflash_lab.core.kernels.edge_walk.reference import inverse_cdf
from dflash_lab.core.types import SamplingParams


def probabilities(logits: Tensor, params: SamplingParams) -> Tensor:
    """Distribution `[..., V]` in float32 after temperature, then top-k, then top-p, renormalised.

    Top-p keeps the smallest set of most likely tokens whose mass reaches `top_p`: a token stays while the mass before
    it is below `top_p`. Needs temperature > 0.
    """
    scaled = logits.float() / params.temperature
    if not 0 < params.top_k < scaled.shape[-1] and params.top_p == 1.0:
        return torch.softmax(scaled, dim=-1)
    count = params.top_k if 0 < params.top_k < scaled.shape[-1] else scaled.shape[-1]
    best, ids = torch.topk(scaled, count, dim=-1)
    kept = torch.softmax(best, dim=-1)
    if params.top_p < 1.0:
        before = kept.cumsum(-1) - kept
        kept = kept.masked_fill(before >= params.top_p, 0.0)
        kept = kept / kept.sum(-1, keepdim=True)
    return torch.zeros_like(scaled).scatter_(-1, ids, kept)


def draw(probs: Tensor, rng: torch.Generator | None) -> Tensor:
    """One index per row of `[..., V]`, each from its own uniform."""
    return inverse_cdf(probs, torch.rand(probs.shape[:-1], generator=rng, device=probs.device))


def sample(logits: Tensor, params: SamplingParams, rng: torch.Generator | None) -> Tensor:
    """The next token of each row of logits: arg-max when greedy, else a draw."""
    if params.greedy:
        return logits.argmax(-1)
    return draw(probabilities(logits, params), rng)
