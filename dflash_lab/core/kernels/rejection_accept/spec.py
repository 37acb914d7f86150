"""`rejection_accept` as data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from dflash_lab.core.kernels.edge_walk.reference import inverse_cdf
from dflash_lab.core.kernels.greedy_accept.reference import Verdict
from dflash_lab.core.kernels.opspec import OpSpec, rand, randn, uniform_misses, widen
from dflash_lab.core.kernels.rejection_accept.reference import rejection_accept, residual


@dataclass(frozen=True)
class Case:
    """Sizes of one call."""

    batch: int
    """B."""
    positions: int
    """K."""
    candidates: int
    """C."""
    vocab: int
    """V."""
    temperature: float = 1.0
    """Divides the logits."""
    kept: float = 1.0
    """Share of the vocabulary that a filter left."""


def weights(case: Case, device: torch.device, dtype: torch.dtype, generator: torch.Generator) -> dict[str, Any]:
    return {}


def inputs(case: Case, device: torch.device, dtype: torch.dtype, generator: torch.Generator) -> dict[str, Any]:
    """Candidates with nine tenths of the target's probability, and a q near p: every length comes up."""
    on = {"device": device, "generator": generator}
    rows = (case.batch, case.positions)
    logits = randn(case.batch, case.positions + 1, case.vocab, dtype=dtype, **on)
    candidate_ids = torch.rand(*rows, case.vocab, **on).topk(case.candidates).indices
    favoured = torch.randn(*rows, case.candidates, **on).to(dtype) + math.log(9 * case.vocab / case.candidates)
    logits[:, :-1].scatter_(2, candidate_ids, favoured)
    if case.kept < 1:
        out = rand(*logits.shape, **on) > case.kept
        out[..., 0] = False
        logits.masked_fill_(out, float("-inf"))
    nearby = favoured.float() + 0.5 * torch.randn(favoured.shape, **on)
    q = torch.softmax(nearby / case.temperature, dim=-1)
    place = inverse_cdf(q, rand(*rows, **on))
    return {
        "logits": logits,
        "proposal": candidate_ids.gather(2, place[..., None])[..., 0],
        "candidate_ids": candidate_ids,
        "q": q,
        "temperature": case.temperature,
        "uniforms": rand(*rows, **on),
        "residual_uniforms": rand(case.batch, **on),
    }


def judge(arguments: dict[str, Any], found: Verdict) -> dict[str, float]:
    """Wrong lengths, then wrong draws given the lengths found."""
    wide = widen(arguments)
    wanted = rejection_accept(**wide)
    if not bool(((found.num_accepted >= 0) & (found.num_accepted < wide["logits"].shape[1])).all()):
        return {"num_accepted": float("inf")}
    p = torch.softmax(wide["logits"] / wide["temperature"], dim=-1)
    left = residual(p, wide["candidate_ids"], wide["q"], found.num_accepted)
    return {
        "num_accepted": int((found.num_accepted != wanted.num_accepted).sum()),
        "bonus_id": uniform_misses(left, wide["residual_uniforms"], found.bonus_id, slack=1e-5),
    }


def all_bytes(case: Case, dtype: torch.dtype) -> int:
    """All logits once. Those behind a rejection need not be read, so a share of this floor may be above 1."""
    cells = case.batch * case.positions
    logits = (cells + case.batch) * case.vocab * dtype.itemsize
    return logits + cells * (case.candidates * (8 + 4) + 8 + 4) + case.batch * (4 + 16)


def flops(case: Case) -> int:
    return 3 * case.batch * (case.positions + 1) * case.vocab


SPEC = OpSpec(
    name="rejection_accept",
    summary="rejection sampling of a block and the draw from the residual",
    reference=rejection_accept,
    weights=weights,
    inputs=inputs,
    judge=judge,
    # Whole numbers, right but for draws within 1e-5 of a boundary.
    tolerance=dict.fromkeys((torch.float32, torch.bfloat16, torch.float16), 0.0),
    cases=(
        Case(1, 1, 1, 50),
        Case(8, 3, 3, 1000, temperature=0.7),
        Case(33, 7, 16, 1000, kept=0.1),
        Case(4, 15, 17, 9001, temperature=1.3),
        Case(2, 3, 64, 49152),
    ),
    published=tuple(Case(batch, positions, 16, 248320) for batch in (1, 8, 32) for positions in (3, 7, 15)),
    bytes=all_bytes,
    flops=flops,
)
