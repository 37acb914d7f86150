"""The operations of one decoding loop, all from one place: torch or Triton."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import torch

from dflash_lab.core.kernels.launch import load_kernel, new_arrivals, require_triton

COUNTERS = 8192
"""Counters that the kernels of one stream share: each launch leaves them at zero."""


class Ops:
    """Every operation by name, e.g. `ops.edge_walk(...)`, on one backend and device."""

    def __init__(self, backend: str, device: torch.device) -> None:
        """`backend` is `reference` or `triton`. Raises BackendError where Triton is not installed."""
        self.backend = backend
        self._device = device
        if backend == "triton":
            require_triton()
            self._arrivals = new_arrivals(COUNTERS, device)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):  # what copying and pickling ask for
            raise AttributeError(name)
        function = self._load(name)
        setattr(self, name, function)
        return function

    def _load(self, name: str) -> Callable[..., Any]:
        if self.backend == "reference":
            return getattr(import_module(f"dflash_lab.core.kernels.{name}.reference"), name)
        kernel = load_kernel(name, self._device)
        if "arrivals" not in inspect.signature(kernel).parameters:
            return kernel
        return partial(kernel, arrivals=self._arrivals)
