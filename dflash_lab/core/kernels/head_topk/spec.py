"""`head_topk` as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

from dflash_lab.core.kernels.head_topk.reference import HeadTopk, head_topk, shape_logits
from dflash_lab.core.kernels.opspec import OpSpec, randn, relative_error, widen


@dataclass(frozen=True)
class Case:
    """Sizes of one call."""

    batch: int
    """B."""
    positions: int
    """K."""
    candidates: int
    """C."""
    hidden: int
    """D."""
    vocab: int
    """V."""
    padding: int = 0
    """Rows of the head past the vocabulary; their logits are large and must not be seen."""
    multiplier: float = 1.0
    """Of the logits."""
    softcap: float | None = None
    """Of the logits after the multiplier."""
    want_logsumexp: bool = False
    """Whether it is asked for."""


def weights(case: Case, device: torch.device, dtype: torch.dtype, generator: torch.Generator) -> dict[str, Any]:
    weight = randn(case.vocab + case.padding, case.hidden, device=device, dtype=dtype, generator=generator)
    weight *= case.hidden**-0.5
    weight[case.vocab :] *= 100
    return {"weight": weight}


def inputs(case: Case, device: torch.device, dtype: torch.dtype, generator: torch.Generator) -> dict[str, Any]:
    on = {"device": device, "dtype": dtype, "generator": generator}
    return {
        "hidden": randn(case.batch, case.positions, case.hidden, **on),
        "vocab_size": case.vocab,
        "num_candidates": case.candidates,
        "multiplier": case.multiplier,
        "softcap": case.softcap,
        "want_logsumexp": case.want_logsumexp,
    }


def judge(arguments: dict[str, Any], found: HeadTopk) -> dict[str, float]:
    """Values against the best ones, and the logits of the rows found too: a tie may be either row."""
    wide = widen(arguments)
    wanted = head_topk(**wide)
    vocab = arguments["vocab_size"]
    inside = (found.rows >= 0) & (found.rows < vocab)
    again = found.rows.sort(-1).values
    twice = again[..., 1:] == again[..., :-1]
    errors = {
        "unary": relative_error(found.unary, wanted.unary),
        "outside": int((~inside).sum()),
        "twice": int(twice.sum()),
        "unsorted": int((found.unary[..., 1:] > found.unary[..., :-1]).sum()),
    }
    logits = F.linear(wide["hidden"], wide["weight"])
    logits = shape_logits(logits, vocab, wide["multiplier"], wide["softcap"])
    errors["rows"] = relative_error(logits.gather(-1, found.rows.clamp(0, vocab - 1)), wanted.unary)
    if arguments["want_logsumexp"]:
        errors["logsumexp"] = relative_error(found.logsumexp, wanted.logsumexp)
    return errors


def minimum_bytes(case: Case, dtype: torch.dtype) -> int:
    rows = case.batch * case.positions
    read = (case.vocab + rows) * case.hidden * dtype.itemsize
    return read + rows * (case.candidates * (4 + 8) + 4 * case.want_logsumexp)


def flops(case: Case) -> int:
    return 2 * case.batch * case.positions * case.vocab * case.hidden


SPEC = OpSpec(
    name="head_topk",
    summary="the largest logits of the output head, without the logits",
    reference=head_topk,
    weights=weights,
    inputs=inputs,
    judge=judge,
    # Nothing is rounded but the float32 sums; a tensor core's are a little coarser.
    tolerance={torch.float32: 1e-5, torch.bfloat16: 1e-4, torch.float16: 1e-4},
    cases=(
        Case(1, 1, 1, 16, 50),
        Case(2, 3, 3, 36, 1000, padding=24, want_logsumexp=True),
        Case(8, 1, 17, 64, 300, multiplier=0.5, softcap=2.0),
        Case(33, 1, 3, 48, 500, padding=7, multiplier=2.0, softcap=30.0, want_logsumexp=True),
        Case(1, 7, 64, 100, 700),
    ),
    published=tuple(
        Case(batch, positions, 16, hidden, 248320)
        for hidden in (2048, 5120)
        for batch in (1, 8, 32)
        for positions in (3, 7, 15)
    ),
    bytes=minimum_bytes,
    flops=flops,
)
