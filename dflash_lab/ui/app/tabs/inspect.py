"""The Inspect tab: one trace, step by step. The page holds ids and numbers; data comes through two look-ups."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gradio as gr

from dflash_lab.core.errors import DFlashLabError
from dflash_lab.core.trace.schema import Trace
from dflash_lab.ui.app.header import QUIET, Header, choices
from dflash_lab.ui.app.place import Place
from dflash_lab.ui.app.session import KINDS, Entry, TraceStore
from dflash_lab.ui.view import wire

TAB = "inspect"
BLOCK = 8
"""Steps that are answered together; static/page.js has the same."""
MAX_EDGES = 8192
"""Edge scores of a step above which it is answered alone: eight of them would be more than a page takes at once."""


def view(entry: Entry, step: int | None = None, pos: int | None = None, notice: str | None = None) -> dict[str, Any]:
    """The inspector's value: where to look, and a message above it."""
    last = max(len(entry.trace) - 1, 0)
    opening = last if entry.live else entry.opening_step
    step = opening if step is None else min(max(step, 0), last)
    return {"trace": entry.id, "step": step, "pos": pos, "notice": notice}


def arrive(store: TraceStore, place: Place) -> dict[str, Any]:
    """The inspector's value for a link; an unknown trace is answered with the opening one and a message."""
    opening = store.opening()
    if place.trace is None:
        return view(opening, place.step, place.pos, place.problem)
    entry = store.get(place.trace)
    if entry is None:
        return view(
            opening,
            notice=f"There is no trace {place.trace[:40]!r} on this server: uploads and runs are gone when it ends. "
            f"Open the trace's file, or look at this one: {opening.label}.",
        )
    return view(entry, place.step, place.pos, place.problem)


def look_ups(store: TraceStore) -> list[Callable[[Any], dict[str, Any]]]:
    """The functions that the page calls for data: cheap, without side effects, with one JSON argument.

    Whoever reaches the server may call them with anything, so the answer is data or {"error": one line}.
    """

    def trace_summary(ask: Any) -> dict[str, Any]:
        try:
            return find(store, ask).summary
        except (LookupError, DFlashLabError) as error:
            return {"error": str(error)}

    def step_wire(ask: Any) -> dict[str, Any]:
        try:
            entry = find(store, ask)
            step = find_step(entry, ask)
            return step_block(entry.trace, step) if ask.get("block") is True else wire.step_wire(entry.trace, step)
        except (LookupError, DFlashLabError) as error:
            return {"error": str(error)}

    return [trace_summary, step_wire]


def step_block(trace: Trace, step: int) -> dict[str, Any]:
    """`step` with its neighbours, {"steps": [...]}: one call for BLOCK of them, as long as they are small."""
    first = step - step % BLOCK
    small = len(trace.steps[step].draft_ids) * trace.header.num_candidates**2 <= MAX_EDGES
    steps = range(first, min(first + BLOCK, len(trace))) if small else [step]
    return {"steps": [wire.step_wire(trace, i) for i in steps]}


def find(store: TraceStore, ask: Any) -> Entry:
    """The entry that a request of the page names. Raises LookupError."""
    id = ask.get("trace") if isinstance(ask, dict) else None
    entry = store.get(id) if isinstance(id, str) else None
    if entry is None:
        raise LookupError("This trace is not on the server any more: open its file again.")
    return entry


def find_step(entry: Entry, ask: dict[str, Any]) -> int:
    """The step that a request of the page names. Raises LookupError if `entry` has no such step."""
    step = ask.get("step")
    if type(step) is not int or not 0 <= step < len(entry.trace):
        raise LookupError(f"Expected a step from 0 to {len(entry.trace) - 1}, got {str(step)[:20]}.")
    return step


def build(store: TraceStore, header: Header) -> gr.HTML:
    """Draw the tab and connect the header's components to it; gives the inspector."""
    inspector = gr.HTML(
        html_template='<div class="dfa-notice" role="alert" hidden></div><div class="dfa-slot"></div>',
        js_on_load="dflashLab.inspect(element, props, server, watch)",
        server_functions=look_ups(store),
        apply_default_css=False,
        elem_id="dfa-inspector",
    )

    def pick(id: str) -> dict[str, Any]:
        return arrive(store, Place(trace=id))

    def upload(file: str, now: dict[str, Any]) -> list[Any]:
        try:
            entry = store.upload(Path(file))
        except DFlashLabError as error:
            return [gr.skip(), now | {"notice": str(error)}]
        return [gr.Dropdown(choices=choices(store), value=entry.id), view(entry)]

    def save(event: gr.EventData) -> gr.DownloadButton:
        ask = event._data
        try:
            entry = find(store, ask)
            if ask.get("kind") not in KINDS:
                raise LookupError(f"Expected one of {', '.join(KINDS)} to save, got {str(ask.get('kind'))[:20]!r}.")
            return gr.DownloadButton(value=str(store.write(entry, ask["kind"], find_step(entry, ask))))
        except (LookupError, DFlashLabError) as error:
            raise gr.Error(str(error), print_exception=False) from None

    header.picker.input(pick, header.picker, inspector, **QUIET)
    header.upload.upload(upload, [header.upload, inspector], [header.picker, inspector], **QUIET)
    saved = header.tools.save(save, None, header.download, **QUIET)
    saved.success(None, header.download, js="dflashLab.download", **QUIET)
    return inspector
