"""`grouped_conv` as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from dflash_lab.core.kernels.grouped_conv.reference import Convolved, grouped_conv
from dflash_lab.core.kernels.opspec import OpSpec, randn, relative_error, widen


@dataclass(frozen=True)
class Case:
    """Sizes of one call."""

    batch: int
    """B."""
    slots: int
    """L."""
    channels: int
    """D."""
    group_size: int
    """Channels that share a dynamic correction."""
    taps: int = 2
    """Taps of the kernel."""
    side: int = 0
    """Which half of the projection holds the corrections: 0 before the sublayer, 1 after it."""


def weights(case: Case, device: torch.device, dtype: torch.dtype, generator: torch.Generator) -> dict[str, Any]:
    return {"base": randn(case.taps, case.channels, device=device, dtype=dtype, generator=generator)}


def inputs(case: Case, device: torch.device, dtype: torch.dtype, generator: torch.Generator) -> dict[str, Any]:
    on = {"device": device, "dtype": dtype, "generator": generator}
    rows = (case.batch, case.slots)
    projected = randn(*rows, 2, case.taps, case.channels // case.group_size, **on)
    return {"x": randn(*rows, case.channels, **on), "delta": projected[:, :, case.side]}


def judge(arguments: dict[str, Any], found: Convolved) -> dict[str, float]:
    return {"out": relative_error(found.out, grouped_conv(**widen(arguments)).out)}


def minimum_bytes(case: Case, dtype: torch.dtype) -> int:
    rows = case.batch * case.slots
    values = 2 * rows * case.channels + rows * case.taps * case.channels // case.group_size + case.taps * case.channels
    return values * dtype.itemsize


def flops(case: Case) -> int:
    return 3 * case.batch * case.slots * case.channels * case.taps


SPEC = OpSpec(
    name="grouped_conv",
    summary="dynamic corrections, base kernel and taps of the grouped causal convolution",
    reference=grouped_conv,
    weights=weights,
    inputs=inputs,
    judge=judge,
    tolerance={torch.float32: 1e-6, torch.bfloat16: 4e-3, torch.float16: 5e-4},
    cases=(
        Case(1, 1, 16, 16, taps=3),
        Case(1, 4, 12, 4, taps=3),
        Case(8, 8, 576, 16, side=1),
        Case(33, 5, 64, 16),
        Case(2, 17, 300, 3, taps=1, side=1),
    ),
    published=tuple(
        Case(batch, positions + 1, channels, 16, side=1)
        for channels in (2048, 5120)
        for batch in (1, 8, 32)
        for positions in (3, 7, 15)
    ),
    bytes=minimum_bytes,
    flops=flops,
)
