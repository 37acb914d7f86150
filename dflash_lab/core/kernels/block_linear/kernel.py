"""A linear layer of a draft block with its norm, convolution, gate and residual: in one launch, or around cuBLAS."""

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
    conv_weights,
    fetch_rows,
    fuses,
    multiply,
    prepare,
    row_product,
    sum_taps,
    warps,
)

FINISH_TILE, FINISH_VALUES = 1024, 4
"""Most columns of a program that finishes a row of the library's product, and how many a thread has."""
LINE = 8
"""Columns side by side where no convolution groups them."""


def tiles(rows: int, taps: int, channels: int, columns: int, gated: bool, width: int) -> Tiles:
    """The tiles of a call; `width` is the size of an element in bytes."""
    return choose_tiles(rows, taps, channels, columns * (2 if gated else 1), 16, 64, width)


@triton.jit
def _gated(gate, up):
    return gate * tl.sigmoid(gate) * up


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
        total *= conv_weights(after_base, after, row[:, None], tap[:, None], column[None, :], used, stride, N, GROUPS)
        total = sum_taps(total, T_TILE)
    if GATED:
        gate, up = tl.split(tl.reshape(total, (M_TILE, N_TILE, 2)))
        total = _gated(gate, up)
    m, n = first + tl.arange(0, M_TILE), start + tl.arange(0, N_TILE)
    place = m[:, None] * N + n[None, :]
    there = (m < M)[:, None] & (n < N)[None, :]
    if ADDED:
        total += tl.load(residual + place, mask=there, other=0.0).to(tl.float32)
    tl.store(out + place, total.to(out.dtype.element_ty), mask=there)


@triton.jit
def _finish_linear(
    product, after, after_base, residual, out, M, N, stride,
    L: tl.constexpr, TAPS: tl.constexpr, GROUPS: tl.constexpr, SIZE: tl.constexpr,
    AFTER: tl.constexpr, ADDED: tl.constexpr, GATED: tl.constexpr,
    G_TILE: tl.constexpr, S_TILE: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    follow(OVERLAP)
    # Columns in the convolution's groups: a correction is read once for its group.
    row, group = tl.program_id(0), tl.program_id(1) * G_TILE + tl.arange(0, G_TILE)[:, None]
    inner = tl.arange(0, S_TILE)[None, :]
    column = group * SIZE + inner
    there = (column < N) & (inner < SIZE)
    if GATED:
        gate = product + row * (2 * N) + column
        up = tl.load(gate + N, mask=there, other=0.0).to(tl.float32)
        total = _gated(tl.load(gate, mask=there, other=0.0).to(tl.float32), up)
    elif AFTER:
        total = tl.zeros((G_TILE, S_TILE), tl.float32)
        for tap in tl.static_range(TAPS):
            used = there & (row % L >= tap)
            found = tl.load(product + (row - tap) * N + column, mask=used, other=0.0).to(tl.float32)
            fixed = tl.load(after_base + tap * N + column, mask=used, other=0.0).to(tl.float32)
            dynamic = tl.load(after + row * stride + tap * GROUPS + group, mask=group < GROUPS, other=0.0)
            total += found * (fixed + dynamic.to(tl.float32))
    else:
        total = tl.load(product + row * N + column, mask=there, other=0.0).to(tl.float32)
    place = row * N + column
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
    """The reference's `block_linear`, summed in float32; no convolution after a gate or on both sides.

    Raises BackendError. In one launch where `fuses` says so: it moves the weights once, N * D values, for up to 64
    rows, and x once a program, from L2. Else the library multiplies, bias included; a launch before it norms and
    convolves and one after it does the rest, where there is something to do. Corrections may be slices of a wider
    projection, as they lie.
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
    count = batch * length
    fused = fuses(count, taps, channels, len(weight))
    if not fused:
        product = multiply(prepare(launch, x, norm, eps, before, before_base), weight, bias)
        if after is None and residual is None and not gated:
            return BlockLinear(product)
    out = torch.empty(*rows, columns, dtype=x.dtype, device=x.device)
    parts = {"AFTER": after is not None, "ADDED": residual is not None, "GATED": gated}
    stride = 0 if delta is None else delta.stride(1)
    if not fused:
        size = LINE if after is None else columns // groups
        width, together = tile(size), max(1, min(FINISH_TILE, tile(columns)) // tile(size))
        launch(
            _finish_linear, (count, triton.cdiv(columns, size * together)),
            product, after, after_base, residual, out, count, columns, stride,
            L=length, TAPS=taps, GROUPS=groups, SIZE=size, G_TILE=together, S_TILE=width,
            num_warps=warps(together * width, FINISH_VALUES), **parts,
        )  # fmt: skip
        return BlockLinear(out)
    chosen = tiles(count, taps, channels, columns, gated, x.element_size())
    wide = chosen.pieces // (2 if gated else 1)
    launch(
        _block_linear, (triton.cdiv(count, chosen.rows), triton.cdiv(columns, wide)),
        x, weight, bias, norm, before, before_base, after, after_base, residual, out, count, columns, stride,
        float(eps), L=length if taps > 1 else 1, D=channels, TAPS=taps, GROUPS=groups,
        NORMED=norm is not None, BEFORE=before is not None, BIASED=bias is not None,
        M_TILE=chosen.rows, N_TILE=wide, T_TILE=tile(taps), D_TILE=chosen.depth, PARTS=chosen.parts,
        STAGES=chosen.stages, num_warps=chosen.warps, **parts,
    )  # fmt: skip
    return BlockLinear(out)
