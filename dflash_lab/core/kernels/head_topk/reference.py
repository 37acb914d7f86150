"""Candidates through the output head, in plain torch."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


class HeadTopk(NamedTuple):
    """The candidates of each position, best first."""

    unary: Tensor
    """`[B, K, C]` float32 logits."""
    rows: Tensor
    """`[B, K, C]` int64 rows of the head."""
    logsumexp: Tensor | None
    """`[B, K]` float32 over the vocabulary, if asked for."""


def shape_logits(logits: Tensor, vocab_size: int, multiplier: float, softcap: float | None) -> Tensor:
    """A head's raw output `[..., rows]` to logits `[..., V]`: padding rows cut off, multiplied, soft-capped."""
    if logits.shape[-1] > vocab_size:
        logits = logits[..., :vocab_size]
    if multiplier != 1.0:
        logits = logits * multiplier
    if softcap is not None:
        logits = torch.tanh(logits / softcap) * softcap
    return logits


def head_topk(
    hidden: Tensor,
    weight: Tensor,
    vocab_size: int,
    num_candidates: int,
    multiplier: float,
    softcap: float | None,
    want_logsumexp: bool,
) -> HeadTopk:
    """The C largest logits of `hidden [B, K, D]` through a head `weight [rows, D]`, of which the first V rows count."""
    logits = shape_logits(F.linear(hidden, weight), vocab_size, multiplier, softcap)
    unary, rows = torch.topk(logits, num_candidates, dim=-1)
    return HeadTopk(unary, rows, logits.logsumexp(-1) if want_logsumexp else None)
