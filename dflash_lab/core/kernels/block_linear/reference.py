"""A linear layer of a draft block with what stands around it in a decoder layer, in plain torch."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor
from torch.nn import functional as F

from dflash_lab.core.kernels.grouped_conv.reference import convolve


class BlockLinear(NamedTuple):
    """One output, named for the check."""

    out: Tensor
    """`[B, L, N]`."""


def block_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    norm: Tensor | None = None,
    eps: float = 0.0,
    before: Tensor | None = None,
    before_base: Tensor | None = None,
    after: Tensor | None = None,
    after_base: Tensor | None = None,
    residual: Tensor | None = None,
    gated: bool = False,
) -> BlockLinear:
    """`residual + after(gate(before(rms_norm(x)) @ weight.T + bias))`, each part where it is given.

    x `[B, L, D]`; weight `[N, D]` and bias `[N]`, when gated `[2N, D]` and `[2N]`: rows of the gate, then rows that
    `silu(gate)` multiplies. norm `[D]`, the weight of an RMS norm with `eps`. before `[B, L, taps, groups]` and
    before_base `[taps, D]`: the convolution of the normed x along the block, see `grouped_conv`; after and after_base
    `[taps, N]`: the same of the product. residual `[B, L, N]`.
    """
    if norm is not None:
        x = F.rms_norm(x, norm.shape, norm, eps)
    if before is not None:
        x = convolve(x, before, before_base)
    out = F.linear(x, weight, bias)
    if gated:
        gate, up = out.chunk(2, dim=-1)
        out = F.silu(gate) * up
    if after is not None:
        out = convolve(out, after, after_base)
    return BlockLinear(out if residual is None else residual + out)
