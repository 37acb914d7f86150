"""The whole inspector in one line of a notebook."""

from __future__ import annotations

import html
from dataclasses import dataclass

from dflash_lab.core.errors import RequestError
from dflash_lab.core.trace.schema import Trace
from dflash_lab.ui.view.export import export_html
from dflash_lab.ui.view.opening import opening_step
from dflash_lab.ui.widgets.base import TraceWidget

HEIGHT_PX = 900
"""Height of the frame of a page, which cannot grow with its content."""


class Inspector(TraceWidget):
    """The inspector as a widget."""


@dataclass(frozen=True)
class Page:
    """The inspector as one page in a frame: complete in the saved notebook, but deaf to Python."""

    trace: Trace
    """The trace, whole in the page."""
    step: int
    """The step it opens at, from 0."""

    def _repr_html_(self) -> str:
        page = html.escape(export_html(self.trace, self.step))
        return f'<iframe srcdoc="{page}" title="Inspector" style="width:100%;height:{HEIGHT_PX}px;border:0"></iframe>'


def inspect(trace: Trace, step: int | None = None, mode: str = "widget") -> Inspector | Page:
    """The inspector of `trace`; `step` None opens at one whose proposals were refused midway.

    mode `widget` talks to Python; `html` needs no widget channel (VS Code offline, nbconvert) and carries every step.
    """
    if mode not in ("widget", "html"):
        raise RequestError(f"mode must be widget or html, got {mode!r}")
    if mode == "html":
        return Page(trace, opening_step(trace) if step is None else step)
    return Inspector(trace, step)
