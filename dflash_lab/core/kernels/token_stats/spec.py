"""`token_stats` as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from dflash_lab.core.kernels.opspec import OpSpec, randn, relative_error, widen
from dflash_lab.core.kernels.token_stats.reference import TokenStats, token_stats


@dataclass(frozen=True)
class Case:
    """Sizes of one call."""

    batch: int
    """B."""
    slots: int
    """L."""
    vocab: int
    """V."""
    padding: int = 0
    """Rows of the head past the vocabulary, which lie between the rows of logits."""
    kept: float = 1.0
    """Share of the vocabulary that a filter left."""


def weights(case: Case, device: torch.device, dtype: torch.dtype, generator: torch.Generator) -> dict[str, Any]:
    return {}


def inputs(case: Case, device: torch.device, dtype: torch.dtype, generator: torch.Generator) -> dict[str, Any]:
    """The first row's largest logit comes twice."""
    padded = randn(case.batch, case.slots, case.vocab + case.padding, device=device, dtype=dtype, generator=generator)
    padded[..., case.vocab :] = 100.0
    logits = padded[..., : case.vocab]
    if case.kept < 1:
        out = torch.rand(logits.shape, generator=generator, device=device) > case.kept
        out[..., :2] = False
        logits.masked_fill_(out, float("-inf"))
    twin = torch.randint(case.vocab, (1,), generator=generator, device=device)
    logits[0, 0, twin] = logits[0, 0].amax()
    return {"logits": logits}


def judge(arguments: dict[str, Any], found: TokenStats) -> dict[str, float]:
    wanted = token_stats(**widen(arguments))
    return {
        "best_id": int((found.best_id != wanted.best_id).sum()),
        "top2": int((found.top2 != wanted.top2).sum()),
        "log_norm": relative_error(found.log_norm, wanted.log_norm),
    }


def minimum_bytes(case: Case, dtype: torch.dtype) -> int:
    return case.batch * case.slots * (case.vocab * dtype.itemsize + 8 + 8 + 4)


def flops(case: Case) -> int:
    return 2 * case.batch * case.slots * case.vocab


SPEC = OpSpec(
    name="token_stats",
    summary="the target's best token, two largest logits and logsumexp",
    reference=token_stats,
    weights=weights,
    inputs=inputs,
    judge=judge,
    # Whole numbers and copies but for the sum, which is float32's.
    tolerance=dict.fromkeys((torch.float32, torch.bfloat16, torch.float16), 1e-6),
    cases=(
        Case(1, 1, 5),
        Case(8, 3, 1000, padding=24),
        Case(33, 2, 900, kept=0.05),
        Case(2, 5, 9001, padding=7, kept=0.001),
    ),
    published=tuple(Case(batch, positions + 1, 248320) for batch in (1, 8, 32) for positions in (7, 15)),
    bytes=minimum_bytes,
    flops=flops,
)
