"""`block_attention` as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from dflash_lab.core.kernels.block_attention.reference import Attended, block_attention
from dflash_lab.core.kernels.opspec import OpSpec, randn, relative_error, widen


@dataclass(frozen=True)
class Case:
    """Sizes of one call."""

    batch: int
    """B."""
    slots: int
    """L."""
    heads: int
    """H."""
    kv_heads: int
    """H_kv."""
    head_dim: int
    """Width of a head."""
    places: int
    """S, places of the cache."""
    context: int
    """Longest context; the requests' are ragged below it, and the first has exactly this."""
    window: int | None = None
    """Keys further away than this are not seen."""
    causal: bool = False
    """Whether a slot sees those behind it."""
    shortened: bool = False
    """Whether requests' blocks are shortened, each to a length of its own; the last one's to nothing."""


def weights(case: Case, device: torch.device, dtype: torch.dtype, generator: torch.Generator) -> dict[str, Any]:
    return {}


def inputs(case: Case, device: torch.device, dtype: torch.dtype, generator: torch.Generator) -> dict[str, Any]:
    on = {"device": device, "dtype": dtype, "generator": generator}
    cache = (case.batch, case.kv_heads, case.places, case.head_dim)
    lengths = torch.tensor(
        [round(case.context * (1 - 0.4 * request / case.batch)) for request in range(case.batch)],
        dtype=torch.int32,
        device=device,
    )
    fused = randn(case.batch, case.slots, case.heads + 2 * case.kv_heads, case.head_dim, **on)
    return {
        "queries": fused[:, :, : case.heads],
        "keys": randn(*cache, **on),
        "values": randn(*cache, **on),
        "lengths": lengths,
        "window": case.window,
        "causal": case.causal,
        "slots": _slots(case, device) if case.shortened else None,
    }


def _slots(case: Case, device: torch.device) -> torch.Tensor:
    kept = [case.slots * (case.batch - 1 - request) // case.batch for request in range(case.batch)]
    return torch.tensor(kept, dtype=torch.int32, device=device)


def judge(arguments: dict[str, Any], found: Attended) -> dict[str, float]:
    return {"out": relative_error(found.out, block_attention(**widen(arguments)).out)}


def _keys_read(case: Case) -> int:
    """Keys of all requests that some slot sees."""
    requests = (round(case.context * (1 - 0.4 * request / case.batch)) for request in range(case.batch))
    window = case.window or case.places
    return sum(min(length, window - 1) + case.slots for length in requests)


def minimum_bytes(case: Case, dtype: torch.dtype) -> int:
    cached = 2 * _keys_read(case) * case.kv_heads * case.head_dim
    return (cached + 2 * case.batch * case.slots * case.heads * case.head_dim) * dtype.itemsize


def flops(case: Case) -> int:
    return 4 * _keys_read(case) * case.slots * case.heads * case.head_dim


SPEC = OpSpec(
    name="block_attention",
    summary="attention of a draft block over cached context and itself",
    reference=block_attention,
    weights=weights,
    inputs=inputs,
    judge=judge,
    tolerance={torch.float32: 1e-5, torch.bfloat16: 6e-3, torch.float16: 1e-3},
    cases=(
        Case(1, 1, 1, 1, 16, 64, 0),
        Case(1, 8, 9, 3, 64, 1024, 700),
        Case(3, 4, 4, 4, 20, 300, 290, window=4),
        Case(8, 7, 4, 2, 32, 100, 93, window=33, causal=True),
        Case(33, 3, 2, 1, 16, 40, 30, causal=True),
        Case(8, 8, 4, 2, 16, 90, 70, shortened=True),
        Case(3, 8, 2, 1, 16, 200, 150, window=3, causal=True, shortened=True),
        Case(2, 16, 8, 1, 128, 600, 500, window=300),
    ),
    published=tuple(
        Case(batch, positions + 1, 32, 8, 128, 4096, 2500, window)
        for window in (2048, None)
        for batch in (1, 8, 32)
        for positions in (3, 7, 15)
    ),
    bytes=minimum_bytes,
    flops=flops,
)
