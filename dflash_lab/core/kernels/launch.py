"""Launching Triton kernels: is Triton there, do the tensors fit, and how many launches were made."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from dflash_lab.core.errors import BackendError

LAUNCHES: Counter[str] = Counter()
"""Launches of this process by kernel name: a test that claims to test a kernel asserts that its count rose."""

PROGRAMS = 528
"""Programs that fill an H200 four deep: how far the work of few rows is split. Fixed, so that results are too."""

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
INTS = (torch.int64,)


def has_triton() -> bool:
    """Whether Triton is installed."""
    try:
        return importlib.util.find_spec("triton") is not None
    except ValueError:  # it was made impossible to import
        return False


def require_triton() -> None:
    """Raise BackendError, in one line, if Triton is not installed."""
    if not has_triton():
        raise BackendError(
            "Triton kernels were asked for and triton is not installed: pip install 'dflash-lab[triton]' (Linux), "
            "or use --kernels reference"
        )


def interpreting() -> bool:
    """Whether Triton runs in its interpreter in this process."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def load_kernel(op: str, device: torch.device) -> Callable[..., Any]:
    """The Triton implementation of `op` for tensors on `device`; a CPU has it through Triton's interpreter.

    The interpreter is for checking, not for speed. It must be chosen before triton is first imported, which this does
    where it still can.
    """
    require_triton()
    if device.type == "cpu" and not interpreting():
        if "triton.language" in sys.modules:
            raise BackendError(
                "on a CPU Triton kernels run in its interpreter only, and triton was loaded without it: "
                "set TRITON_INTERPRET=1 before starting"
            )
        os.environ["TRITON_INTERPRET"] = "1"
    return getattr(importlib.import_module(f"dflash_lab.core.kernels.{op}.kernel"), op)


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **meta: Any) -> None:
    """Launch a Triton kernel over `grid` and count it: the only way kernels are started here.

    One that takes OVERLAP starts up while the launch before it ends (programmatic dependent launch) and waits for that
    itself, through `follow`; the result is the same.
    """
    LAUNCHES[kernel.fn.__name__] += 1
    if "OVERLAP" in kernel.arg_names:
        meta["OVERLAP"] = overlaps(args[0].device)
        if meta["OVERLAP"]:
            meta["launch_pdl"] = True
    kernel[grid](*args, **meta)


def overlaps(device: torch.device) -> bool:
    """Whether launches on this device can overlap: Hopper and later."""
    return not interpreting() and device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def check_tensor(
    name: str, tensor: Tensor, shape: Sequence[int], dtypes: Sequence[torch.dtype], *, rows_apart: bool = False
) -> None:
    """Raise BackendError unless `tensor` has this shape, one of these dtypes, and is contiguous.

    With `rows_apart` its rows (all but the first two axes) are contiguous and evenly spaced, as in a slice of a wider
    projection.
    """
    if tuple(tensor.shape) != tuple(shape):
        raise BackendError(f"{name}: expected shape {list(shape)}, got {list(tensor.shape)}: pass matching tensors")
    if tensor.dtype not in dtypes:
        wanted = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise BackendError(
            f"{name}: the kernel takes {wanted}, got {str(tensor.dtype).removeprefix('torch.')}: convert it, "
            "or use --kernels reference"
        )
    if rows_apart:
        spaced = tensor.shape[0] == 1 or tensor.stride(0) == tensor.shape[1] * tensor.stride(1)
        fits = spaced and tensor[0, 0].is_contiguous()
    else:
        fits = tensor.is_contiguous()
    if not fits:
        raise BackendError(f"{name}: the kernel needs contiguous data, got strides {tensor.stride()}: copy it first")


def check_range(name: str, value: int, least: int, most: int) -> None:
    """Raise BackendError unless `least <= value <= most`."""
    if not least <= value <= most:
        raise BackendError(f"{name}: the kernel takes {least} to {most}, got {value}: use --kernels reference")


def new_arrivals(size: int, device: torch.device) -> Tensor:
    """Counters for the kernels whose last program merges what the others found: int32 zeros, left zero by each launch.

    Allocate once and pass them to every call on one stream: that saves a launch.
    """
    return torch.zeros(size, dtype=torch.int32, device=device)


def arrivals_for(arrivals: Tensor | None, size: int, device: torch.device) -> Tensor:
    """The caller's counters after a check, or new ones."""
    if arrivals is None:
        return new_arrivals(size, device)
    if arrivals.dtype != torch.int32 or arrivals.numel() < size:
        raise BackendError(
            f"arrivals: expected at least {size} int32 zeros, got {arrivals.numel()} of {arrivals.dtype}: "
            "make them with new_arrivals"
        )
    return arrivals


def tile(size: int, least: int = 1) -> int:
    """The power of two that holds `size`, at least `least`: tile edges in Triton are powers of two."""
    return max(least, 1 << (size - 1).bit_length())
