"""What the page is given: a summary of the whole trace once, then one dict per step on demand.

Both are ready for `json.dumps(..., allow_nan=False)`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dflash_lab.core.trace.schema import Trace


def trace_summary(trace: Trace) -> dict[str, Any]:
    """Everything the page needs of the whole trace: header, one short entry per step, the output's tokens."""
    raise NotImplementedError


def step_wire(trace: Trace, i: int) -> dict[str, Any]:
    """Step `i` of `trace` for the page: candidates, scores, path, verdict, timings. IndexError if there is no such step."""
    raise NotImplementedError
