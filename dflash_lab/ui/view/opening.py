"""What is shown before anyone chose: the example trace and sweep, and the step that a trace opens on."""

from __future__ import annotations

from pathlib import Path

from dflash_lab.core.trace import store
from dflash_lab.core.trace.schema import Trace

ASSETS = Path(__file__).parents[2] / "assets"
EXAMPLE_SWEEP = ASSETS / "example-sweep"
"""Results of a small sweep of the bundled pair that ship with the package."""


def example_trace() -> Trace:
    """The trace that ships with the package. Raises TraceError if the installation lacks it."""
    return store.load(ASSETS / "example.safetensors")


def second_example() -> Trace:
    """The same prompt in blocks of 8, to compare with the first. Raises TraceError if the installation lacks it."""
    return store.load(ASSETS / "example-block-8.safetensors")


def example_sweep() -> Path:
    """Folder of the sweep that ships with the package."""
    return EXAMPLE_SWEEP


def opening_step(trace: Trace) -> int:
    """The step to show first: 4 to 7 proposals accepted and the next one refused, or the nearest to that."""
    mixed = [step for step in trace.steps if step.num_accepted < len(step.draft_ids)]
    chosen = next((step for step in mixed if 4 <= step.num_accepted <= 7), None)
    chosen = chosen or max(mixed, key=lambda step: step.num_accepted, default=None)
    return trace.steps.index(chosen) if chosen else 0
