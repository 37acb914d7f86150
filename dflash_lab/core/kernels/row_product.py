"""What `block_linear` and `block_qkv` share: a block's rows, normed and convolved, times rows of weights.

There are two ways, and `fuses` chooses. For few rows and few weights a launch costs more than the work in it: one
kernel does all, through `row_product`. Else `prepare` norms and convolves the rows, the library multiplies, and a
second kernel of the operation's own does the rest.

In `row_product` norm and convolution cost no pass of their own. The factor of an RMS norm is one number a row, known
once the row has been read, and so multiplies the finished product. A convolution's taps are rows of the tile: row
`tap * M_TILE + i` holds what slot i sees `tap` slots before it, and the products of a slot's taps are added afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F

from dflash_lab.core.errors import BackendError
from dflash_lab.core.kernels.device import PRECISION, follow
from dflash_lab.core.kernels.launch import check_range, check_tensor, tile

MAX_TAPS = 8
"""Taps are rows of a tile."""
MAX_WEIGHTS = (1 << 31) - 1
"""Offsets into the weights are 32 bits wide."""
MULTIPROCESSORS, DEEP, CROWD = 132, 1024, 200
"""Programs that a chip has room for side by side. Of up to DEEP channels each is short, and CROWD are no harm."""
ONE_LAUNCH_ROWS, ONE_LAUNCH_PRODUCTS = 256, 120 << 20
"""Most rows with their taps, and most products of these with weights, that one launch does: see `fuses`."""
FEW_RESULTS, FEW_WEIGHTS = 144 << 10, 4 << 20
"""Results, taps apart, and weights, of which one launch does twice as many products."""
PREPARE_TILE, PREPARE_VALUES = 2048, 8
"""Most channels that a program of `prepare` makes, and how many a thread: 16 bytes of half precision."""


def fuses(rows: int, taps: int, channels: int, pieces: int) -> bool:
    """Whether one launch does everything, rather than the library the product between two launches.

    One launch multiplies each of a slot's taps anew, and all rows in small tiles: it is for few rows and few weights.
    With ONE_LAUNCH_ROWS at 0 the library does all; with both limits out of reach it does nothing.
    """
    tall, weights = rows * tile(taps), channels * pieces
    few = tall * pieces <= FEW_RESULTS and weights <= FEW_WEIGHTS
    return tall <= ONE_LAUNCH_ROWS and tall * weights <= ONE_LAUNCH_PRODUCTS * (2 if few else 1)


class Tiles(NamedTuple):
    """What a program makes, and how."""

    rows: int
    """Rows of the output."""
    pieces: int
    """Rows of weights."""
    depth: int
    """Channels multiplied at a time."""
    parts: int
    """Into how many parts the warps divide these channels; each has an accumulator of its own."""
    warps: int
    """Warps."""
    stages: int
    """Tiles in flight."""


@triton.jit
def _spread(value, SIZE: tl.constexpr):
    """Each element SIZE times along the last axis."""
    if len(value.shape) == 2:
        wide = tl.broadcast_to(value[:, :, None], (value.shape[0], value.shape[1], SIZE))
        wide = tl.reshape(wide, (value.shape[0], value.shape[1] * SIZE))
    else:
        wide = tl.broadcast_to(value[:, :, :, None], (value.shape[0], value.shape[1], value.shape[2], SIZE))
        wide = tl.reshape(wide, (value.shape[0], value.shape[1], value.shape[2] * SIZE))
    return wide


@triton.jit
def sum_taps(product, T_TILE: tl.constexpr):
    """`[T_TILE * M, N]` to `[M, N]`."""
    if T_TILE > 1:
        product = tl.sum(tl.reshape(product, (T_TILE, product.shape[0] // T_TILE, product.shape[1])), axis=0)
    return product


@triton.jit
def fetch_rows(weight, weight_row, weight_used, D: tl.constexpr):
    """Ask for the rows of weights ahead: while the launch before ends, they come as far as the L2 cache."""
    LINE: tl.constexpr = 1024 // weight.dtype.element_ty.primitive_bitwidth
    LINES: tl.constexpr = triton.next_power_of_2((D + LINE - 1) // LINE)
    line = tl.minimum(tl.arange(0, LINES) * LINE, D - 1)
    row = tl.where(weight_used, weight_row, 0)
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l",
        [(weight + row[:, None] * D + line[None, :]).to(tl.int64)], dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def row_product(
    x, weight, norm, delta, base, first, weight_row, weight_used, M, delta_stride, eps,
    L: tl.constexpr, D: tl.constexpr, TAPS: tl.constexpr, GROUPS: tl.constexpr,
    NORMED: tl.constexpr, BEFORE: tl.constexpr,
    M_TILE: tl.constexpr, T_TILE: tl.constexpr, D_TILE: tl.constexpr, PARTS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Rows `first..` of x, and those `tap` slots before them, times weight rows: `[T_TILE * M_TILE, W]` float32.

    weight_row, weight_used `[W]`: which rows, and whether there is one. With BEFORE (a convolution of x, one value of
    delta for each D / GROUPS channels) the taps are added: `[M_TILE, W]`.
    """
    PART: tl.constexpr = D_TILE // PARTS
    SIZE: tl.constexpr = D // GROUPS
    # A part of whole groups reads each correction once.
    WHOLE: tl.constexpr = PART % SIZE == 0 and (SIZE & (SIZE - 1)) == 0
    SHARED: tl.constexpr = PART // SIZE if WHOLE else 1
    # A row may leave float16's range before its factor brings it back.
    WIDE: tl.constexpr = NORMED and x.dtype.element_ty == tl.float16
    r = tl.arange(0, T_TILE * M_TILE)
    tap = r // M_TILE
    m = first + r % M_TILE
    used = m < M
    if T_TILE > 1:
        used &= (m % L >= tap) & (tap < TAPS)
    if PARTS == 1:
        m, tap, used = m[:, None], tap[:, None], used[:, None]
        weight_row, weight_used = weight_row[:, None], weight_used[:, None]
        inner = tl.arange(0, D_TILE)[None, :]
        group = tl.arange(0, SHARED)[None, :]
        total = tl.zeros((T_TILE * M_TILE, weight_row.shape[0]), tl.float32)
        squares = tl.zeros((T_TILE * M_TILE, D_TILE), tl.float32)
    else:
        m, tap, used = m[None, :, None], tap[None, :, None], used[None, :, None]
        weight_row, weight_used = weight_row[None, :, None], weight_used[None, :, None]
        part = tl.arange(0, PARTS)[:, None]
        inner = (part * PART + tl.arange(0, PART)[None, :])[:, None, :]
        group = (part * SHARED + tl.arange(0, SHARED)[None, :])[:, None, :]
        total = tl.zeros((PARTS, T_TILE * M_TILE, weight_row.shape[1]), tl.float32)
        squares = tl.zeros((PARTS, T_TILE * M_TILE, PART), tl.float32)
    for start in tl.range(0, D, D_TILE, num_stages=STAGES):
        d = start + inner
        inside = d < D
        w = tl.load(weight + weight_row * D + d, mask=weight_used & inside, other=0.0)
        a = tl.load(x + (m - tap) * D + d, mask=used & inside, other=0.0)
        if NORMED:
            exact = a.to(tl.float32)
            squares += exact * exact
            if WIDE or BEFORE:
                a = exact
            a *= tl.load(norm + d, mask=inside, other=0.0).to(a.dtype)
        if BEFORE:
            fixed = tl.load(base + tap * D + d, mask=used & inside, other=0.0).to(tl.float32)
            corrections = delta + m * delta_stride + tap * GROUPS
            if WHOLE:
                g = start // SIZE + group
                dynamic = _spread(tl.load(corrections + g, mask=used & (g < GROUPS), other=0.0), SIZE)
            else:
                dynamic = tl.load(corrections + d // SIZE, mask=used & inside, other=0.0)
            a = a.to(tl.float32) * (fixed + dynamic.to(tl.float32))
        if WIDE:
            w = w.to(tl.float32)
        a = a.to(w.dtype)
        if PARTS == 1:
            total = tl.dot(a, tl.trans(w), total, input_precision=PRECISION)
        else:
            total = tl.dot(a, tl.trans(w, (0, 2, 1)), total, input_precision=PRECISION)
    if PARTS > 1:
        total = tl.sum(total, axis=0)
    if NORMED:
        square = tl.sum(squares, axis=1) if PARTS == 1 else tl.sum(tl.sum(squares, axis=2), axis=0)
        total *= tl.rsqrt(square / D + eps)[:, None]
    return sum_taps(total, T_TILE) if BEFORE else total


@triton.jit
def conv_weights(
    base, delta, row, tap, channel, used, delta_stride, CHANNELS: tl.constexpr, GROUPS: tl.constexpr
):  # fmt: skip
    """A convolution's weights, base kernel and correction, for these rows, taps and channels."""
    fixed = tl.load(base + tap * CHANNELS + channel, mask=used, other=0.0).to(tl.float32)
    corrections = delta + (row * delta_stride + tap * GROUPS) + channel // (CHANNELS // GROUPS)
    return fixed + tl.load(corrections, mask=used, other=0.0).to(tl.float32)


@triton.jit
def _prepare_rows(
    x, norm, base, delta, out, delta_stride, eps,
    L: tl.constexpr, D: tl.constexpr, TAPS: tl.constexpr, GROUPS: tl.constexpr,
    NORMED: tl.constexpr, BEFORE: tl.constexpr, D_TILE: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    follow(OVERLAP)
    m = tl.program_id(0)
    d = tl.program_id(1) * D_TILE + tl.arange(0, D_TILE)
    total = tl.zeros((D_TILE,), tl.float32)
    for tap in tl.static_range(TAPS):
        has_tap = m % L >= tap
        row = x + (m - tap) * D
        used = (d < D) & has_tap
        a = tl.load(row + d, mask=used, other=0.0).to(tl.float32)
        if NORMED:
            squares = a * a
            if D > D_TILE:
                squares = tl.zeros((D_TILE,), tl.float32)
                for start in range(0, D, D_TILE):
                    other = start + tl.arange(0, D_TILE)
                    exact = tl.load(row + other, mask=(other < D) & has_tap, other=0.0).to(tl.float32)
                    squares += exact * exact
            # Without a row there is no factor; of zeros it may be infinite.
            a *= tl.where(has_tap, tl.rsqrt(tl.sum(squares, axis=0) / D + eps), 0.0)
            a *= tl.load(norm + d, mask=used, other=0.0).to(tl.float32)
        if BEFORE:
            a *= conv_weights(base, delta, m, tap, d, used, delta_stride, D, GROUPS)
        total += a
    tl.store(out + m * D + d, total.to(out.dtype.element_ty), mask=d < D)


def prepare(
    launch: Callable[..., None],
    x: Tensor,
    norm: Tensor | None,
    eps: float,
    before: Tensor | None,
    before_base: Tensor | None,
) -> Tensor:
    """The rows after their norm and convolution, in one launch by the operation's `launch`; x where there is neither.

    A program makes one row, or PREPARE_TILE channels of one. For each tap it reads a row, and for the norm that row as
    a whole: neighbours find each other's in the caches, and few rows still make a program each.
    """
    if norm is None and before is None:
        return x
    batch, length, channels = x.shape
    taps, groups = (1, 1) if before is None else before.shape[2:]
    out = torch.empty_like(x)
    width = min(PREPARE_TILE, tile(channels))
    launch(
        _prepare_rows, (batch * length, triton.cdiv(channels, width)),
        x, norm, before_base, before, out, 0 if before is None else before.stride(1), float(eps),
        L=length if taps > 1 else 1, D=channels, TAPS=taps, GROUPS=groups,
        NORMED=norm is not None, BEFORE=before is not None, D_TILE=width, num_warps=warps(width, PREPARE_VALUES),
    )  # fmt: skip
    return out


@torch.no_grad()
def multiply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The library's `x @ weight.T + bias`, `[B, L, N]` in x's dtype.

    A product of float32 is as torch is set to make it, which is true float32 unless someone allowed TF32.
    """
    check_range("products of rows and weights", x.shape[0] * x.shape[1] * len(weight), 1, MAX_WEIGHTS)
    return F.linear(x, weight, bias)


def warps(values: int, each: int) -> int:
    """Warps, 8 at most, for a tile of so many values with `each` a thread."""
    return max(1, min(8, values // (32 * each)))


def check_rows(op: str, x: Tensor, norm: Tensor | None, dtypes: tuple) -> None:
    """Raise BackendError unless the rows and their norm's weight fit."""
    check_tensor("x", x, x.shape, dtypes)
    check_range(f"{op}: values of x", x.numel(), 1, MAX_WEIGHTS)
    if norm is not None:
        check_tensor("norm", norm, (x.shape[2],), (x.dtype,))


def check_convolution(
    name: str, delta: Tensor, base: Tensor, rows: tuple[int, int], channels: int, like: Tensor
) -> None:
    """Raise BackendError unless a convolution's corrections and base kernel fit `channels`."""
    taps, groups = delta.shape[2:]
    check_range(f"{name}: taps", taps, 1, MAX_TAPS)
    if channels % groups:
        raise BackendError(f"{name}: {channels} channels do not divide into {groups} groups: fix its shape")
    check_tensor(name, delta, (*rows, taps, groups), (like.dtype,), rows_apart=True)
    check_tensor(f"{name}_base", base, (taps, channels), (like.dtype,))


def choose_tiles(rows: int, taps: int, channels: int, pieces: int, least: int, most: int, width: int) -> Tiles:
    """Tiles of a product of so many rows and taps with `pieces` rows of weights, `least` to `most` of them at a time.

    Few rows: the weights alone count. Narrow tiles make enough programs to read them at the whole chip's rate, and the
    warps divide the channels, for one warp's chain of dependent products would take longer than the reading. Many
    rows: tiles as flat as that would crowd the chip, so they are taller, and wider until each has a multiprocessor.
    `width` is the size of an element in bytes.
    """
    taps = tile(taps)
    room = CROWD if channels <= DEEP else MULTIPROCESSORS
    height = next(h for h in (16, 32, 64) if h == 64 or triton.cdiv(rows * taps, h) * triton.cdiv(pieces, 32) <= room)
    blocks = triton.cdiv(rows * taps, height)
    columns = least
    while columns < most and blocks * triton.cdiv(pieces, columns) > MULTIPROCESSORS:
        columns *= 2
    # Where there are programs enough, the warps of a wide tile have work without dividing the channels.
    narrow = 1024 if 2 * blocks * triton.cdiv(pieces, columns) < MULTIPROCESSORS else 512
    parts = 4 if height * columns <= narrow else 1
    depth = min((512 if parts > 1 else 256) // width, tile(channels, 16 * parts))
    return Tiles(max(1, height // taps), columns, depth, parts, 8 if height * columns * width > 8192 else 4, 4)
