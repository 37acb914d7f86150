"""Grouped dynamic causal convolution around a sublayer (DFlash 2 blog, 2026-08-18)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dflash_lab.core.kernels.grouped_conv.reference import convolve
from dflash_lab.core.model.config import ConvConfig


class GroupedDynamicConv(nn.Module):
    """`out[i, c] = sum_t (base[t, c] + delta[i, t, g(c)]) * x[i - t, c]`, zero across the block's left edge.

    One projection of the sublayer's input gives the deltas of both sides: `[2 sides, taps, groups]`.
    """

    def __init__(self, hidden_size: int, config: ConvConfig) -> None:
        super().__init__()
        self.taps, self.groups = config.kernel_size, hidden_size // config.group_size
        self.base_kernel = nn.Parameter(torch.zeros(2, self.taps, hidden_size))
        self.kernel_projection = nn.Linear(hidden_size, 2 * self.taps * self.groups, bias=False)

    def deltas(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Corrections `[B, L, taps, groups]` before and after the sublayer, from its input `x [B, L, D]`."""
        before, after = self.kernel_projection(x).unflatten(-1, (2, self.taps, self.groups)).unbind(-3)
        return before, after

    def forward(self, x: Tensor, delta: Tensor, side: int) -> Tensor:
        """Convolve `x [B, L, D]` along the block; `side` 0 before the sublayer, 1 after it."""
        return convolve(x, delta, self.base_kernel[side])
