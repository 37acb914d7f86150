"""The grouped dynamic causal convolution in one pass."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dflash_lab.core.errors import BackendError
from dflash_lab.core.kernels.device import follow
from dflash_lab.core.kernels.grouped_conv.reference import Convolved
from dflash_lab.core.kernels.launch import FLOATS, check_range, check_tensor, launch, tile

MAX_TAPS = 8
"""Taps are unrolled."""
SLOT_TILE, CHANNEL_TILE, WARPS = 1, 1024, 4
"""Most slots and channels of a program's tile, and its warps."""


@triton.jit
def _grouped_conv(
    x, delta, base, out, L, delta_stride, TAPS: tl.constexpr, GROUPS: tl.constexpr, SIZE: tl.constexpr,
    L_TILE: tl.constexpr, G_TILE: tl.constexpr, S_TILE: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    follow(OVERLAP)
    b = tl.program_id(2).to(tl.int64)
    i = tl.program_id(1) * L_TILE + tl.arange(0, L_TILE)
    g = tl.program_id(0) * G_TILE + tl.arange(0, G_TILE)
    s = tl.arange(0, S_TILE)
    channel = g[:, None] * SIZE + s[None, :]
    exists = (g < GROUPS)[:, None] & (s < SIZE)[None, :]
    row = b * L + i
    total = tl.zeros((L_TILE, G_TILE, S_TILE), tl.float32)
    for tap in tl.static_range(TAPS):
        fixed = tl.load(base + tap * GROUPS * SIZE + channel, mask=exists, other=0.0).to(tl.float32)
        grouped = row[:, None] * delta_stride + (tap * GROUPS + g)[None, :]
        dynamic = tl.load(delta + grouped, mask=(i < L)[:, None] & (g < GROUPS)[None, :], other=0.0).to(tl.float32)
        inside = ((i < L) & (i >= tap))[:, None, None] & exists[None, :, :]
        before = (row - tap)[:, None, None] * (GROUPS * SIZE) + channel[None, :, :]
        shifted = tl.load(x + before, mask=inside, other=0.0).to(tl.float32)
        total += (fixed[None, :, :] + dynamic[:, :, None]) * shifted
    here = (i < L)[:, None, None] & exists[None, :, :]
    place = row[:, None, None] * (GROUPS * SIZE) + channel[None, :, :]
    tl.store(out + place, total.to(out.dtype.element_ty), mask=here)


def grouped_conv(x: Tensor, delta: Tensor, base: Tensor) -> Convolved:
    """The reference's `grouped_conv`, summed in float32. Raises BackendError.

    delta may be one side's slice of the projection `[B, L, 2 sides, taps, groups]`, as it lies: neither side is copied.
    A tile is a whole block by 256 channels in their groups: a correction is read once for its group, a slot's taps find
    its neighbours in the multiprocessor's cache, and one block of 5,120 channels still makes 20 programs. Moves x,
    delta and base once, and `[B, L, D]` out.
    """
    batch, length, channels = x.shape
    taps, groups = delta.shape[2:]
    check_range("grouped_conv: taps", taps, 1, MAX_TAPS)
    if channels % groups:
        raise BackendError(f"grouped_conv: {channels} channels do not divide into {groups} groups: fix delta's shape")
    check_tensor("x", x, (batch, length, channels), FLOATS)
    check_tensor("delta", delta, (batch, length, taps, groups), (x.dtype,), rows_apart=True)
    check_tensor("base", base, (taps, channels), (x.dtype,))
    out = torch.empty_like(x)
    size = channels // groups
    slots, width = min(SLOT_TILE, tile(length)), tile(size)
    together = max(1, min(CHANNEL_TILE // width, tile(groups)))
    launch(
        _grouped_conv, (triton.cdiv(groups, together), triton.cdiv(length, slots), batch),
        x, delta, base, out, length, delta.stride(1), TAPS=taps, GROUPS=groups, SIZE=size,
        L_TILE=slots, G_TILE=together, S_TILE=width, num_warps=WARPS,
    )  # fmt: skip
    return Convolved(out)
