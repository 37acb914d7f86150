"""An operation as data: what it computes, on what it is checked, and the least work it can take."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from dflash_lab.core.errors import BackendError
from dflash_lab.core.kernels import OPS

CaseT = TypeVar("CaseT")
Maker = Callable[[Any, torch.device, torch.dtype, torch.Generator], dict[str, Any]]
"""`make(case, device, dtype, generator)`: keyword arguments of the operation, drawn anew."""


@dataclass(frozen=True)
class OpSpec(Generic[CaseT]):
    """One operation. Its Triton form is `kernel.py`'s function of the same name and the same keyword arguments."""

    name: str
    """Name of the operation and of its package."""
    summary: str
    """What it does, for `kernels list`."""
    reference: Callable[..., tuple]
    """The torch definition; computes in the dtype of its floating-point arguments. Gives a NamedTuple."""
    weights: Maker
    """Arguments that are the same at every call of a model."""
    inputs: Maker
    """Arguments that are new at every call."""
    judge: Callable[[dict[str, Any], Any], dict[str, float]]
    """`judge(arguments, found)`: relative error of each output against float64, and counts of wrong elements where a
    whole number must be right; a tie is right either way."""
    tolerance: Mapping[torch.dtype, float]
    """Largest error by dtype of the arguments; these are the dtypes the kernel takes."""
    cases: tuple[CaseT, ...]
    """Sizes to check, odd ones first of all."""
    published: tuple[CaseT, ...]
    """Sizes of published drafters, to time."""
    bytes: Callable[[CaseT, torch.dtype], int]
    """Fewest bytes that any exact algorithm moves: arguments read once, outputs written once."""
    flops: Callable[[CaseT], int]
    """Floating-point operations of the products."""
    changes: tuple[str, ...] = ()
    """Arguments that are written in place."""

    def arguments(
        self, case: CaseT, device: torch.device, dtype: torch.dtype, generator: torch.Generator
    ) -> dict[str, Any]:
        """All keyword arguments for one call."""
        return {**self.weights(case, device, dtype, generator), **self.inputs(case, device, dtype, generator)}


def load_spec(name: str) -> OpSpec:
    """The operation `name`. Raises BackendError for a name that does not exist."""
    if name not in OPS:
        raise BackendError(f"no operation {name!r}; expected one of {', '.join(OPS)}")
    return importlib.import_module(f"dflash_lab.core.kernels.{name}.spec").SPEC


def describe(case: Any) -> str:
    """A case in one line: `batch 1, candidates 16`."""
    values = dataclasses.asdict(case)
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in values.items() if value is not None)


def widen(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The same arguments with floating-point tensors in float64."""
    return {
        name: value.double() if isinstance(value, Tensor) and value.is_floating_point() else value
        for name, value in arguments.items()
    }


def relative_error(found: Tensor, wanted: Tensor) -> float:
    """`|found - wanted| / |wanted|` over all elements; infinite for another shape or anything that is not finite."""
    if found.shape != wanted.shape or not bool(torch.isfinite(found).all()):
        return float("inf")
    norm = float(wanted.double().norm())
    return float((found.double() - wanted.double()).norm()) / (norm or 1.0)


def uniform_misses(weights: Tensor, uniforms: Tensor, chosen: Tensor, slack: float) -> int:
    """How many draws are not what inverse CDF gives, within `slack` of the total.

    weights `[N, M]` need not sum to one; uniforms `[N]`, chosen `[N]`: index i is right where the uniform lies between
    the sums before and after it, and its weight is above zero.
    """
    weights = weights.double()
    after = weights.cumsum(-1)
    total = after[:, -1]
    inside = (chosen >= 0) & (chosen < weights.shape[-1])
    place = chosen.clamp(0, weights.shape[-1] - 1)[:, None]
    weight, end = weights.gather(1, place)[:, 0], after.gather(1, place)[:, 0]
    threshold = uniforms.double() * total
    right = (threshold >= end - weight - slack * total) & (threshold < end + slack * total) & (weight > 0)
    return int((~(right & inside)).sum())


def randn(*shape: int, device: torch.device, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Normal values."""
    return torch.randn(shape, generator=generator, device=device, dtype=dtype)


def rand(*shape: int, device: torch.device, generator: torch.Generator) -> Tensor:
    """Uniform float32 values in [0, 1)."""
    return torch.rand(shape, generator=generator, device=device)


def some_ids(vocab: int, *shape: int, device: torch.device, generator: torch.Generator) -> Tensor:
    """Token ids, different from each other along the last axis."""
    rows = 1
    for size in shape[:-1]:
        rows *= size
    starts = torch.randint(vocab, (rows, 1), generator=generator, device=device)
    strides = torch.randint(1, max(2, vocab // max(1, shape[-1])), (rows, 1), generator=generator, device=device)
    return ((starts + strides * torch.arange(shape[-1], device=device)) % vocab).view(shape)
