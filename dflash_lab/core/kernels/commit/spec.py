"""`commit` as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from dflash_lab.core.kernels.commit.reference import Committed, commit
from dflash_lab.core.kernels.opspec import OpSpec, some_ids


@dataclass(frozen=True)
class Case:
    """Sizes of one call."""

    batch: int
    """B."""
    positions: int
    """K."""
    vocab: int
    """V, token ids."""
    stops: int = 2
    """Stop tokens."""


def weights(case: Case, device: torch.device, dtype: torch.dtype, generator: torch.Generator) -> dict[str, Any]:
    return {"stop_ids": some_ids(case.vocab, case.stops, device=device, generator=generator)}


def inputs(case: Case, device: torch.device, dtype: torch.dtype, generator: torch.Generator) -> dict[str, Any]:
    """Any accepted length; some requests nearly full, every fourth done before."""

    def some(high: int, *shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.randint(high, shape, generator=generator, device=device, dtype=dtype)

    words = {"dtype": torch.int32}
    over = some(8, case.batch, **words)
    return {
        "block_ids": some(case.vocab, case.batch, case.positions + 1),
        "num_accepted": some(case.positions + 1, case.batch),
        "bonus_id": some(case.vocab, case.batch),
        "lengths": some(1000, case.batch, **words),
        "left": some(2 * case.positions + 2, case.batch, **words),
        "done": torch.where(over < 3, over, 0),
    }


def judge(arguments: dict[str, Any], found: Committed) -> dict[str, float]:
    copies = {name: value.clone() for name, value in arguments.items()}
    wanted = commit(**copies)
    return {name: int((getattr(found, name) != getattr(wanted, name)).sum()) for name in Committed._fields}


def minimum_bytes(case: Case, dtype: torch.dtype) -> int:
    ids = case.batch * (case.positions + 1) + case.stops + 3 * case.batch
    return 8 * ids + 4 * case.batch * (6 + 4 + case.positions)


def flops(case: Case) -> int:
    return 0


SPEC = OpSpec(
    name="commit",
    summary="tokens committed, lengths, stop tokens and the next anchor",
    reference=commit,
    weights=weights,
    inputs=inputs,
    judge=judge,
    # Whole numbers.
    tolerance=dict.fromkeys((torch.float32, torch.bfloat16, torch.float16), 0.0),
    cases=(
        Case(1, 1, 4, stops=1),
        Case(8, 3, 9, stops=3),
        Case(33, 7, 6),
        Case(33, 16, 40, stops=5),
        Case(8, 0, 3, stops=0),
        Case(4, 63, 100),
    ),
    published=tuple(Case(batch, positions, 248320) for batch in (1, 8, 32) for positions in (7, 15)),
    bytes=minimum_bytes,
    flops=flops,
    changes=("block_ids", "lengths", "left", "done"),
)
