"""Time by phase without a synchronisation of its own.

The loop reads the verdict from the device once per step; by then the draft, select and verify phases are over and
their events can be read without waiting. Committing is host work and is timed on the host.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from dflash_lab.core.types import StepTimings

PHASES = ("draft", "select", "verify", "commit")


class Clock:
    """`with clock("draft"): ...`, then `clock.take()` once per step."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._spans: dict[str, list] = {}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        on_device = self._cuda and phase != "commit"
        start = _event() if on_device else time.perf_counter()
        yield
        end = _event() if on_device else time.perf_counter()
        self._spans.setdefault(phase, []).append((start, end))

    def take(self) -> StepTimings:
        """Milliseconds by phase since the last call; device work must be over."""
        timings = StepTimings(**{f"{phase}_ms": sum(map(_ms, spans)) for phase, spans in self._spans.items()})
        self._spans = {}
        return timings


def _event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _ms(span: tuple) -> float:
    start, end = span
    return (end - start) * 1e3 if isinstance(start, float) else start.elapsed_time(end)
