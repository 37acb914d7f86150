"""What the widgets share: a trace shown by the inspector's module, its steps sent to the browser one at a time."""

from __future__ import annotations

import html
import json
import weakref
from pathlib import Path
from typing import Any

from dflash_lab.core.errors import BackendError, DFlashLabError, RequestError
from dflash_lab.core.trace.schema import Trace
from dflash_lab.ui.view.assets import module_text, style_text
from dflash_lab.ui.view.opening import opening_step
from dflash_lab.ui.view.still import step_html
from dflash_lab.ui.view.wire import step_wire, trace_summary

try:
    import anywidget
    import traitlets
    from IPython import get_ipython
except ImportError as error:
    raise BackendError(f"widgets need {error.name}, which is not there: pip install 'dflash-lab[notebook]'") from error

STATIC_DIR = Path(__file__).parent / "static"


class TraceWidget(anywidget.AnyWidget):
    """A trace in the notebook. `with` closes it at the end; running its cell again closes the one before.

    Where no widget can live (a saved notebook, a code host) the step it stands on is shown as a static table.
    """

    # Text, not paths: anywidget watches paths, and whatever it watches is never freed.
    _esm = module_text() + (STATIC_DIR / "widget.js").read_text(encoding="utf-8")
    _css = style_text() + (STATIC_DIR / "widget.css").read_text(encoding="utf-8")
    _show = traitlets.Unicode("inspector").tag(sync=True)

    step = traitlets.Int(help="Step shown, from 0; set or read it. Kept within the trace.").tag(sync=True)
    pos = traitlets.Int(
        None,
        allow_none=True,
        help="Position in the block, from 1; None: where its proposals were first refused.",
    ).tag(sync=True)
    selected = traitlets.Dict(help="What the user moved to last: step, pos, rank (from 1), token_id, token.")
    summary = traitlets.Dict(help="What the page is told of the whole trace.").tag(sync=True)

    def __init__(self, trace: Trace | None, step: int | None = None, pos: int | None = None) -> None:
        """`step` None: one whose proposals were refused midway. `trace` None: `_open` brings one later."""
        if not isinstance(trace, Trace | None):
            raise RequestError(f"a widget shows a Trace, got {type(trace).__name__}: open a file with load_trace(path)")
        self.trace: Trace | None = None
        super().__init__()
        if trace is not None:
            self._open(trace, step, pos)
        self.on_msg(self._answer)
        enter_cell(self)

    def _open(self, trace: Trace, step: int | None = None, pos: int | None = None) -> None:
        self.trace = trace
        with self.hold_sync():
            self.summary = trace_summary(trace)
            self.step = opening_step(trace) if step is None else step
            self.pos = pos

    def close(self) -> None:
        """Take it off the page and let go of the trace."""
        super().close()
        self.layout.close()  # made with the widget, and kept alive by ipywidgets as the widget was
        self.on_msg(self._answer, remove=True)
        self.trace = None

    def __enter__(self) -> TraceWidget:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def still(self) -> str:
        """The step it stands on as HTML that needs no script."""
        if self.trace is None:
            return "<p>No trace.</p>"
        if not len(self.trace):
            status = html.escape(self.trace.header.status)
            return f"<p>This trace has no verification steps (status: {status}).</p>"
        return step_html(self.trace, self.step)

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        data, metadata = super()._repr_mimebundle_(**kwargs)
        return {**data, "text/html": self.still()}, metadata

    @traitlets.validate("step")
    def _step_of_the_trace(self, proposal: dict[str, Any]) -> int:
        # Clamped and not refused: two traces of different lengths may be linked.
        last = len(self.trace) - 1 if self.trace is not None else 0
        return max(0, min(proposal["value"], last))

    @traitlets.validate("pos")
    def _pos_of_a_block(self, proposal: dict[str, Any]) -> int | None:
        value = proposal["value"]
        deepest = self.trace.header.block_size - 1 if self.trace is not None else 0
        return None if value is None or deepest < 1 else max(1, min(value, deepest))

    def _answer(self, widget: TraceWidget, content: Any, buffers: list[memoryview]) -> None:
        """A message of the page: it wants a step, or the user moved."""
        match content:
            case {"get": int(step)}:
                self._send_step(step)
            case {"select": {"step": int(step), "pos": int(pos), "rank": int(rank)}}:
                self._select(step, pos, rank)

    def _send_step(self, step: int) -> None:
        try:
            data = json.dumps(step_wire(self.trace, step), allow_nan=False, separators=(",", ":"))
        except (IndexError, DFlashLabError) as error:
            self.send({"step": step, "error": str(error)})
        else:
            self.send({"step": step}, [data.encode()])

    def _select(self, step: int, pos: int, rank: int) -> None:
        if not 0 <= step < len(self.trace) or not 1 <= pos <= len(self.trace.steps[step].draft_ids):
            return
        record = self.trace.steps[step]
        candidates = self.trace.tensor("candidate_ids", record.index)
        column = record.draft_ids[pos - 1 : pos] if candidates is None else candidates[pos - 1]
        if not 1 <= rank <= len(column):
            return
        token_id = int(column[rank - 1])
        text = self.trace.token(token_id).text
        self.selected = {"step": step, "pos": pos, "rank": rank, "token_id": token_id, "token": text}


_cells: dict[str, tuple[str, weakref.WeakSet[anywidget.AnyWidget]]] = {}
"""By notebook cell: its last run, and the widgets made in it that are still alive."""


def enter_cell(widget: anywidget.AnyWidget) -> None:
    """Close what an earlier run of the running cell made: nobody sees it any more, and widgets live until closed."""
    parent = getattr(get_ipython(), "get_parent", dict)()
    cell, run = parent.get("metadata", {}).get("cellId"), parent.get("header", {}).get("msg_id")
    if cell is None:
        return
    last, widgets = _cells.get(cell, (None, weakref.WeakSet()))
    if run != last:
        for old in list(widgets):
            old.close()
        _cells[cell] = run, widgets
    widgets.add(widget)
