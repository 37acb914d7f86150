"""A linear layer of a draft block with its norm, convolution, gate and residual in one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dflash_lab.core.errors import BackendError
from dflash_lab.core.kernels.block_linear.reference import BlockLinear
from dflash_lab.core.kernels.device import follow
from dflash_lab.core.kernels.launch import FLOATS, check_range, check_tensor, launch, tile
from dflash_lab.core.kernels.row_product import (
    MAX_WEIGHTS,
    Tiles,
    check_convolution,
    check_rows,
    choose_tiles,
    fetch_rows,
    row_product,
    sum_taps,
)


def tiles(rows: int, taps: int, channels: int, columns: int, gated: bool, width: int) -> Tiles:
    """The tiles of a call; `width` is the size of an element in bytes."""
    return choose_tiles(rows, taps, channels, columns * (2 if gated else 1), 16, 64, width)


@triton.jit
def _block_linear(
    x, weight, bias, norm, before, before_base, after, after_base, residual, out, M, N, stride, eps,
    L: tl.constexpr, D: tl.constexpr, TAPS: tl.constexpr, GROUPS: tl.constexpr,
    NORMED: tl.constexpr, BEFORE: tl.constexpr, AFTER: tl.constexpr,
    BIASED: tl.constexpr, ADDED: tl.constexpr, GATED: tl.constexpr,
    M_TILE: tl.constexpr, N_TILE: tl.constexpr, T_TILE: tl.constexpr, D_TILE: tl.constexpr, PARTS: tl.constexpr,
    STAGES: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    # Programs that share weights run next to each other: the second reads them from L2.
    first, start = tl.program_id(0) * M_TILE, tl.program_id(1) * N_TILE
    # Gated: rows of the gate and rows it multiplies by turns, so that a thread holds both of a column.
    SIDES: tl.constexpr = 2 if GATED else 1
    w = tl.arange(0, N_TILE * SIDES)
    column = start + w // SIDES
    exists = column < N
    column += (w % SIDES) * N
    if OVERLAP:
        fetch_rows(weight, column, exists, D)
    follow(OVERLAP)
    total = row_product(
        x, weight, norm, before, before_base, first, column, exists, M, stride, eps,
        L, D, TAPS, GROUPS if BEFORE else 1, NORMED, BEFORE, M_TILE, T_TILE, D_TILE, PARTS, STAGES,
    )  # fmt: skip
    if BIASED:
        total += tl.load(bias + column, mask=exists, other=0.0).to(tl.float32)[None, :]
    if AFTER:
        r = tl.arange(0, T_TILE * M_TILE)
        tap, row = r // M_TILE, first + r % M_TILE
        used = ((row < M) & (row % L >= tap) & (tap < TAPS))[:, None] & exists[None, :]
        fixed = tl.load(after_base + tap[:, None] * N + column[None, :], mask=used, other=0.0).to(tl.float32)
        corrections = after + (row * stride + tap * GROUPS)[:, None] + (column // (N // GROUPS))[None, :]
        total *= fixed + tl.load(corrections, mask=used, other=0.0).to(tl.float32)
        total = sum_taps(total, T_TILE)
    if GATED:
        gate, up = tl.split(tl.reshape(total, (M_TILE, N_TILE, 2)))
        total = gate * tl.sigmoid(gate) * up
    m, n = first + tl.arange(0, M_TILE), start + tl.arange(0, N_TILE)
    place = m[:, None] * N + n[None, :]
    there = (m < M)[:, None] & (n < N)[None, :]
    if ADDED:
        total += tl.load(residual + place, mask=there, other=0.0).to(tl.float32)
    tl.store(out + place, total.to(out.dtype.element_ty), mask=there)


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
    """The reference's `block_linear`, in float32 up to the output; no convolution after a gate or on both sides.

    Raises BackendError. Moves the weights once, N * D values, for up to 64 rows, and x once a program, from L2.
    Corrections may be slices of a wider projection, as they lie.
    """
    batch, length, channels = x.shape
    columns = len(weight) // (2 if gated else 1)
    rows = (batch, length)
    if after is not None and (gated or before is not None):
        raise BackendError(
            "block_linear: the kernel convolves either before the product or after an ungated one: call it twice"
        )
    check_rows("block_linear", x, norm, FLOATS)
    check_tensor("weight", weight, (columns * (2 if gated else 1), channels), (x.dtype,))
    check_range("block_linear: weights", weight.numel(), 1, MAX_WEIGHTS)
    if bias is not None:
        check_tensor("bias", bias, (len(weight),), (x.dtype,))
    if residual is not None:
        check_tensor("residual", residual, (*rows, columns), (x.dtype,))
    delta = before if after is None else after
    if before is not None:
        check_convolution("before", before, before_base, rows, channels, x)
    if after is not None:
        check_convolution("after", after, after_base, rows, columns, x)
    taps, groups = (1, 1) if delta is None else delta.shape[2:]
    out = torch.empty(*rows, columns, dtype=x.dtype, device=x.device)
    count = batch * length
    chosen = tiles(count, taps, channels, columns, gated, x.element_size())
    wide = chosen.pieces // (2 if gated else 1)
    launch(
        _block_linear, (triton.cdiv(count, chosen.rows), triton.cdiv(columns, wide)),
        x, weight, bias, norm, before, before_base, after, after_base, residual, out, count, columns,
        0 if delta is None else delta.stride(1), float(eps),
        L=length if taps > 1 else 1, D=channels, TAPS=taps, GROUPS=groups,
        NORMED=norm is not None, BEFORE=before is not None, AFTER=after is not None,
        BIASED=bias is not None, ADDED=residual is not None, GATED=gated,
        M_TILE=chosen.rows, N_TILE=wide, T_TILE=tile(taps), D_TILE=chosen.depth, PARTS=chosen.parts,
        STAGES=chosen.stages, num_warps=chosen.warps,
    )  # fmt: skip
    return BlockLinear(out)
