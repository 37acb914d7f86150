"""`block_linear` as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from dflash_lab.core.kernels.block_linear.reference import BlockLinear, block_linear
from dflash_lab.core.kernels.opspec import OpSpec, randn, relative_error, widen

EPS = 1e-5
"""Of the norm."""


@dataclass(frozen=True)
class Case:
    """Sizes of one call."""

    batch: int
    """B."""
    slots: int
    """L."""
    channels: int
    """D."""
    columns: int
    """N."""
    normed: bool = False
    """Whether x is normed first."""
    before: int = 0
    """Channels of x that share a correction, where x is convolved."""
    after: int = 0
    """Columns that share one, where the product is."""
    taps: int = 2
    """Taps of the convolution."""
    biased: bool = False
    """Whether there is a bias."""
    residual: bool = False
    """Whether something is added at the end."""
    gated: bool = False
    """Whether half of the product gates the other."""


def weights(case: Case, device: torch.device, dtype: torch.dtype, generator: torch.Generator) -> dict[str, Any]:
    """None: each layer has its own."""
    return {}


def inputs(case: Case, device: torch.device, dtype: torch.dtype, generator: torch.Generator) -> dict[str, Any]:
    """Rows of very different size, as a residual stream's are; corrections are one side's slice of a projection."""
    on = {"device": device, "dtype": dtype, "generator": generator}
    rows, made = (case.batch, case.slots), case.columns * (2 if case.gated else 1)
    x = randn(*rows, case.channels, **on)
    if case.normed:
        x *= 10 ** randn(*rows, 1, **on).clamp(-2, 2)
    before = after = None
    if case.before:
        before = randn(*rows, 2, case.taps, case.channels // case.before, **on)[:, :, 0]
    if case.after:
        after = randn(*rows, 2, case.taps, case.columns // case.after, **on)[:, :, 1]
    return {
        "x": x,
        "weight": randn(made, case.channels, **on) * case.channels**-0.5,
        "bias": randn(made, **on) if case.biased else None,
        "norm": 1 + 0.2 * randn(case.channels, **on) if case.normed else None,
        "eps": EPS,
        "before": before,
        "before_base": randn(case.taps, case.channels, **on) if case.before else None,
        "after": after,
        "after_base": randn(case.taps, case.columns, **on) if case.after else None,
        "residual": randn(*rows, case.columns, **on) if case.residual else None,
        "gated": case.gated,
    }


def judge(arguments: dict[str, Any], found: BlockLinear) -> dict[str, float]:
    return {"out": relative_error(found.out, block_linear(**widen(arguments)).out)}


def minimum_bytes(case: Case, dtype: torch.dtype) -> int:
    rows, sides = case.batch * case.slots, 2 if case.gated else 1
    values = case.columns * sides * (case.channels + case.biased) + case.channels * case.normed
    values += rows * (case.channels + case.columns * (1 + case.residual))
    for channels, shared in ((case.channels, case.before), (case.columns, case.after)):
        values += case.taps * (channels + rows * channels // shared) if shared else 0
    return values * dtype.itemsize


def flops(case: Case) -> int:
    return 2 * case.batch * case.slots * case.channels * case.columns * (2 if case.gated else 1)


def _layers(batch: int, slots: int) -> tuple[Case, ...]:
    """The bundled pair's products: a draft layer's corrections, output projection and gate, a target layer's MLP."""
    return (
        Case(batch, slots, 576, 144, normed=True),
        Case(batch, slots, 576, 576, after=16, residual=True),
        Case(batch, slots, 576, 1536, normed=True, before=16, gated=True),
        Case(batch, slots, 576, 1536, normed=True, gated=True),
        Case(batch, slots, 1536, 576, residual=True),
    )


def _large_layers(batch: int, slots: int) -> tuple[Case, ...]:
    """Those of a draft layer of 2,048 channels."""
    return (
        Case(batch, slots, 2048, 2048, after=16, residual=True),
        Case(batch, slots, 2048, 6144, normed=True, before=16, gated=True),
        Case(batch, slots, 6144, 2048, after=16, residual=True),
    )


SPEC = OpSpec(
    name="block_linear",
    summary="a linear layer with its norm, convolution, gate and residual",
    reference=block_linear,
    weights=weights,
    inputs=inputs,
    judge=judge,
    # A tensor core adds float32 a little coarser; in half precision the operands are rounded once after norm and
    # convolution, a product of the library's before what follows, and the output.
    tolerance={torch.float32: 1e-5, torch.bfloat16: 6e-3, torch.float16: 7.5e-4},
    cases=(
        Case(1, 1, 16, 5),
        Case(1, 8, 72, 20, normed=True, biased=True, residual=True),
        Case(8, 3, 40, 9, normed=True, before=8, taps=3, biased=True, gated=True),
        Case(33, 2, 24, 12, after=4, biased=True, residual=True),
        Case(2, 5, 45, 6, normed=True, before=3),
        Case(3, 16, 600, 48, after=16, residual=True),
        Case(1, 7, 576, 40, normed=True, before=16, gated=True),
        Case(1, 4, 32, 16, after=2, taps=1),
        # Many rows, or slots with many taps: the library multiplies.
        Case(7, 11, 40, 20, normed=True, before=8, taps=3, biased=True, residual=True),
        Case(13, 5, 45, 7, normed=True, before=3, taps=4, biased=True),
        Case(4, 17, 2100, 6, normed=True, before=4, taps=3, gated=True),
        Case(87, 3, 24, 9, normed=True, biased=True, gated=True, residual=True),
        Case(2, 34, 72, 30, after=3, taps=3, biased=True, residual=True),
        Case(2, 66, 16, 1030, after=5),
    ),
    published=tuple(
        case
        for layers in (_layers, _large_layers)
        for batch, slots in ((1, 8), (1, 16), (8, 8), (32, 8))
        for case in layers(batch, slots)
    ),
    bytes=minimum_bytes,
    flops=flops,
)
