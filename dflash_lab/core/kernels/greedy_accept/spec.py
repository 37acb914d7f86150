"""`greedy_accept` as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from dflash_lab.core.kernels.greedy_accept.reference import Verdict, greedy_accept
from dflash_lab.core.kernels.opspec import OpSpec, randn


@dataclass(frozen=True)
class Case:
    """Sizes of one call."""

    batch: int
    """B."""
    positions: int
    """K."""
    vocab: int
    """V."""
    padding: int = 0
    """Rows of the head past the vocabulary, which lie between the rows of logits."""


def weights(case: Case, device: torch.device, dtype: torch.dtype, generator: torch.Generator) -> dict[str, Any]:
    return {}


def inputs(case: Case, device: torch.device, dtype: torch.dtype, generator: torch.Generator) -> dict[str, Any]:
    """Proposals that the target keeps for a length drawn evenly from 0..K; ties in about every second row."""
    padded = randn(
        case.batch, case.positions + 1, case.vocab + case.padding, device=device, dtype=dtype, generator=generator
    )
    padded[..., case.vocab :] = 100.0
    logits = padded[..., : case.vocab]
    wanted = logits.argmax(-1)
    twin = torch.randint(case.vocab, wanted.shape, generator=generator, device=device)
    logits.scatter_(2, twin[..., None], logits.gather(2, wanted[..., None]))
    wanted = torch.minimum(wanted, twin)
    kept = torch.randint(case.positions + 1, (case.batch, 1), generator=generator, device=device)
    proposal = wanted[:, :-1].clone()
    wrong = torch.arange(case.positions, device=device)[None, :] == kept
    return {"logits": logits, "proposal": torch.where(wrong, (proposal + 1) % case.vocab, proposal)}


def judge(arguments: dict[str, Any], found: Verdict) -> dict[str, float]:
    wanted = greedy_accept(**arguments)
    return {name: int((getattr(found, name) != getattr(wanted, name)).sum()) for name in Verdict._fields}


def minimum_bytes(case: Case, dtype: torch.dtype) -> int:
    return case.batch * (case.positions + 1) * case.vocab * dtype.itemsize + case.batch * (case.positions + 2) * 8


def flops(case: Case) -> int:
    return 0


SPEC = OpSpec(
    name="greedy_accept",
    summary="the target's arg-max, the accepted prefix and the bonus token",
    reference=greedy_accept,
    weights=weights,
    inputs=inputs,
    judge=judge,
    # Nothing is computed, only compared: exact.
    tolerance=dict.fromkeys((torch.float32, torch.bfloat16, torch.float16), 0.0),
    cases=(
        Case(1, 1, 50),
        Case(8, 3, 1000, padding=24),
        Case(33, 7, 1000),
        Case(2, 15, 9001, padding=7),
        Case(1, 7, 49152),
    ),
    published=tuple(Case(batch, positions, 248320) for batch in (1, 8, 32) for positions in (3, 7, 15)),
    bytes=minimum_bytes,
    flops=flops,
)
