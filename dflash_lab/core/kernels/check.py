"""Checks of the kernels against their references in float64."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dflash_lab.core.kernels.launch import LAUNCHES, interpreting, load_kernel, new_arrivals
from dflash_lab.core.kernels.opspec import OpSpec, describe, load_spec

MOST_ARRIVALS = 1024
"""Counters for any case."""


@dataclass(frozen=True)
class CaseCheck:
    """What was found for one case."""

    op: str
    """Operation."""
    case: str
    """Sizes."""
    dtype: str
    """Of the arguments."""
    errors: dict[str, float]
    """Relative error or number of wrong elements, by output."""
    tolerance: float
    """Largest error allowed."""
    faults: tuple[str, ...]
    """What is wrong whatever the values: an exception, elements not written, another result the second time, Triton
    not run."""

    @property
    def passed(self) -> bool:
        """Whether the kernel may be used."""
        return not self.faults and all(error <= self.tolerance for error in self.errors.values())


def check_case(spec: OpSpec, case: Any, device: torch.device, dtype: torch.dtype, seed: int = 0) -> CaseCheck:
    """Run the kernel twice over memory full of not-a-number and judge what it wrote."""
    kernel = load_kernel(spec.name, device)
    arguments = spec.arguments(case, device, dtype, torch.Generator(device).manual_seed(seed))
    errors = {}
    try:
        found, faults = _run(kernel, arguments, spec.changes, device)
        errors = spec.judge(arguments, found)
    except Exception as error:  # whatever a compiler or a driver raises: the other cases are still checked
        faults = (f"{type(error).__name__}: {' '.join(str(error).split())[:200]}",)
    return CaseCheck(
        op=spec.name,
        case=describe(case),
        dtype=str(dtype).removeprefix("torch."),
        errors={name: float(error) for name, error in errors.items()},
        tolerance=spec.tolerance[dtype],
        faults=faults,
    )


def check_ops(names: Sequence[str], device: torch.device) -> Iterator[CaseCheck]:
    """Every case of the operations, in every dtype that can be checked on the device."""
    for name in names:
        spec = load_spec(name)
        for dtype in dtypes_on(spec, device):
            for seed, case in enumerate(spec.cases):
                yield check_case(spec, case, device, dtype, seed)


def num_checks(names: Sequence[str], device: torch.device) -> int:
    """How many there will be."""
    return sum(len(spec.cases) * len(dtypes_on(spec, device)) for spec in map(load_spec, names))


def dtypes_on(spec: OpSpec, device: torch.device) -> tuple[torch.dtype, ...]:
    """Dtypes to check: all on a GPU; float32 in the interpreter, which has no true bfloat16."""
    return (torch.float32,) if device.type == "cpu" or interpreting() else tuple(spec.tolerance)


def _run(
    kernel: Callable[..., Any], arguments: dict[str, Any], changes: Sequence[str], device: torch.device
) -> tuple[Any, tuple[str, ...]]:
    """The kernel's outputs, and its faults; what it changes in place is a copy."""
    faults = []
    counters = {}
    if "arrivals" in inspect.signature(kernel).parameters:
        counters["arrivals"] = new_arrivals(MOST_ARRIVALS, device)
    before = LAUNCHES.total()
    copies = [{name: arguments[name].clone() for name in changes} for _ in range(2)]
    with poisoned_memory():
        found, again = (kernel(**arguments | copy, **counters) for copy in copies)
    if LAUNCHES.total() == before:
        faults.append("no Triton kernel was launched")
    if counters and bool(counters["arrivals"].any()):
        faults.append("arrivals were not left at zero")
    for name, first, second in zip(found._fields, found, again, strict=True):
        if first is None:
            continue
        if _unwritten(first):
            faults.append(f"{name}: {_unwritten(first)} elements were not written")
        if not torch.equal(first, second) and not _unwritten(first):
            faults.append(f"{name}: the second run gave another result")
    return found, tuple(faults)


def _unwritten(tensor: Tensor) -> int:
    """Elements that still hold the poison."""
    if tensor.is_floating_point():
        return int(tensor.isnan().sum())
    return int((tensor == torch.iinfo(tensor.dtype).max).sum())


@contextlib.contextmanager
def poisoned_memory() -> Iterator[None]:
    """New tensors hold not-a-number or the largest whole number until they are written."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    filling = torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        torch.utils.deterministic.fill_uninitialized_memory = filling
