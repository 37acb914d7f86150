"""`block_qkv` as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from dflash_lab.core.kernels.block_qkv.reference import BlockQkv, block_qkv
from dflash_lab.core.kernels.opspec import OpSpec, randn, relative_error, widen

EPS = 1e-5
"""Of the norms."""


@dataclass(frozen=True)
class Case:
    """Sizes of one call."""

    batch: int
    """B."""
    slots: int
    """L."""
    channels: int
    """D."""
    heads: int
    """Query heads; 0 where only keys and values are made."""
    kv_heads: int
    """H_kv."""
    head_dim: int
    """Width of a head."""
    planes: int = 2
    """Planes of the cache."""
    places: int = 40
    """S, places of the cache."""
    past_end: int = 0
    """Slots of the first request that do not fit the cache."""
    normed: bool = True
    """Whether x is normed first."""
    head_normed: bool = False
    """Whether queries and keys are."""
    before: int = 0
    """Channels of x that share a correction, where x is convolved."""
    biased: bool = False
    """Whether there is a bias."""


def weights(case: Case, device: torch.device, dtype: torch.dtype, generator: torch.Generator) -> dict[str, Any]:
    """None: each layer has its own."""
    return {}


def inputs(case: Case, device: torch.device, dtype: torch.dtype, generator: torch.Generator) -> dict[str, Any]:
    """Requests at ragged positions; tables of one position less than there are places."""
    on = {"device": device, "dtype": dtype, "generator": generator}
    rows = (case.heads + case.planes * case.kv_heads) * case.head_dim
    last = case.places - case.slots
    starts = [last + case.past_end] + [(last * request) // case.batch for request in range(1, case.batch)]
    before = None
    if case.before:
        before = randn(case.batch, case.slots, 2, 2, case.channels // case.before, **on)[:, :, 0]
    angles = torch.rand(case.places - 1, case.head_dim // 2, generator=generator, device=device) * 6.3
    angles = torch.cat((angles, angles), dim=-1)
    return {
        "x": randn(case.batch, case.slots, case.channels, **on),
        "weight": randn(rows, case.channels, **on) * case.channels**-0.5,
        "bias": randn(rows, **on) if case.biased else None,
        "norm": 1 + 0.2 * randn(case.channels, **on) if case.normed else None,
        "eps": EPS,
        "before": before,
        "before_base": randn(2, case.channels, **on) if case.before else None,
        "q_norm": 1 + 0.2 * randn(case.head_dim, **on) if case.head_normed and case.heads else None,
        "k_norm": 1 + 0.2 * randn(case.planes // 2, case.head_dim, **on) if case.head_normed else None,
        "head_eps": EPS,
        "cos": angles.cos().to(dtype),
        "sin": angles.sin().to(dtype),
        "cache": randn(case.planes, case.batch, case.kv_heads, case.places, case.head_dim, **on),
        "starts": torch.tensor(starts, dtype=torch.int32, device=device),
        "heads": case.heads,
    }


def judge(arguments: dict[str, Any], found: BlockQkv) -> dict[str, float]:
    """Queries, the places that must be written, and how many others were."""
    wide, before = widen(arguments), arguments["cache"]
    wanted = block_qkv(**wide | {"cache": wide["cache"].clone()})
    written = wanted.cache != wide["cache"]
    return {
        "queries": relative_error(found.queries, wanted.queries),
        "cache": relative_error(found.cache[written], wanted.cache[written]),
        "elsewhere": int((found.cache != before)[~written].sum()),
    }


def minimum_bytes(case: Case, dtype: torch.dtype) -> int:
    rows, made = case.batch * case.slots, (case.heads + case.planes * case.kv_heads) * case.head_dim
    values = made * (case.channels + case.biased) + case.channels * case.normed + rows * (case.channels + made)
    values += 2 * rows * case.head_dim
    values += 2 * (case.channels + rows * case.channels // case.before) if case.before else 0
    return values * dtype.itemsize


def flops(case: Case) -> int:
    return 2 * case.batch * case.slots * case.channels * (case.heads + case.planes * case.kv_heads) * case.head_dim


def _layers(batch: int, slots: int) -> tuple[Case, ...]:
    """The bundled target's layer, its drafter's, the drafter's context, and a layer of a larger drafter."""
    return (
        Case(batch, slots, 576, 9, 3, 64, places=1024),
        Case(batch, slots, 576, 9, 3, 64, places=1024, head_normed=True, before=16),
        Case(batch, slots, 576, 0, 3, 64, planes=6, places=1024, head_normed=True),
        Case(batch, slots, 2048, 32, 8, 128, places=1024, head_normed=True, before=16),
    )


SPEC = OpSpec(
    name="block_qkv",
    summary="queries, and keys and values into the cache: normed, projected, rotated",
    reference=block_qkv,
    weights=weights,
    inputs=inputs,
    judge=judge,
    # As for block_linear.
    tolerance={torch.float32: 1e-5, torch.bfloat16: 4e-3, torch.float16: 5e-4},
    cases=(
        Case(1, 1, 16, 1, 1, 4),
        Case(1, 8, 48, 3, 1, 20, head_normed=True, before=8, past_end=3),
        Case(8, 3, 40, 2, 2, 16, biased=True, past_end=40),
        Case(33, 2, 24, 0, 1, 8, planes=4, head_normed=True, normed=False, places=9),
        Case(2, 7, 300, 9, 3, 64, biased=True, head_normed=True),
        # Many rows: the library multiplies.
        Case(10, 13, 40, 2, 1, 20, head_normed=True, before=8, biased=True, past_end=5),
        Case(20, 14, 24, 0, 2, 8, planes=4, normed=False, head_normed=True, past_end=14),
        Case(2, 130, 36, 3, 1, 64, places=140, biased=True),
    ),
    published=tuple(case for batch, slots in ((1, 8), (1, 16), (8, 8), (32, 8)) for case in _layers(batch, slots)),
    bytes=minimum_bytes,
    flops=flops,
    changes=("cache",),
)
