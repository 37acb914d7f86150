"""The grouped dynamic causal convolution (DFlash 2 blog, 2026-08-18), in plain torch."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


class Convolved(NamedTuple):
    """One output, named for the check."""

    out: Tensor
    """`[B, L, D]`."""


def convolve(x: Tensor, delta: Tensor, base: Tensor) -> Tensor:
    """`out[i, c] = sum_t (base[t, c] + delta[i, t, g(c)]) * x[i - t, c]`, zero across the block's left edge.

    x `[B, L, D]`; delta `[B, L, taps, groups]`, one value for each `D / groups` neighbouring channels; base
    `[taps, D]`. Gives `[B, L, D]`.
    """
    length, (taps, groups) = x.shape[1], delta.shape[2:]
    grouped = x.unflatten(-1, (groups, -1))
    kernel = base.view(taps, groups, -1) + delta.unsqueeze(-1)
    out = kernel[:, :, 0] * grouped
    for tap in range(1, min(taps, length)):
        shifted = F.pad(grouped[:, :-tap], (0, 0, 0, 0, tap, 0))
        out = torch.addcmul(out, kernel[:, :, tap], shifted)
    return out.flatten(-2)


def grouped_conv(x: Tensor, delta: Tensor, base: Tensor) -> Convolved:
    """`convolve` as an operation with a named output."""
    return Convolved(convolve(x, delta, base))
