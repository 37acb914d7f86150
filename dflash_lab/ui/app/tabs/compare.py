"""The Compare tab: the trace chosen in the header beside another one, linked by token."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import gradio as gr

from dflash_lab.core.errors import DFlashLabError
from dflash_lab.ui.app.header import QUIET, choices
from dflash_lab.ui.app.session import Entry, TraceStore
from dflash_lab.ui.app.tabs import inspect
from dflash_lab.ui.view.comparison import comparison_wire

TAB = "compare"


def view(store: TraceStore, inspected: dict[str, Any], other: str | None = None) -> dict[str, Any]:
    """The page's value: what Inspect shows (`inspected`) and the trace beside it.

    An `other` that is not on the server is answered with a message and the trace that would be taken without one.
    """
    first = inspected["trace"]
    entry = store.get(other) if other else None
    notice = None
    if other and entry is None:
        notice = f"There is no trace {other[:40]!r} on this server to compare with; open its file again."
    entry = entry or store.partner(first)
    second = entry.id if entry else None
    return {"trace": first, "with": second, "step": inspected["step"], "pos": inspected["pos"], "notice": notice}


def look_ups(store: TraceStore) -> list[Callable[[Any], dict[str, Any]]]:
    """What the page calls for data: those of Inspect, and `comparison` of two traces."""

    @lru_cache(maxsize=16)
    def compared(a: Entry, b: Entry) -> dict[str, Any]:
        return comparison_wire(a.trace, b.trace)

    def comparison(ask: Any) -> dict[str, Any]:
        try:
            other = ask.get("with") if isinstance(ask, dict) else None
            return compared(inspect.find(store, ask), inspect.find(store, {"trace": other}))
        except (LookupError, DFlashLabError) as error:
            return {"error": str(error)}

    return [comparison, *inspect.look_ups(store)]


def build(store: TraceStore) -> tuple[gr.Dropdown, gr.HTML]:
    """Draw the tab; gives the picker of the second trace and the comparison."""
    with gr.Row(elem_id="dfa-with"):
        partner = store.partner(store.opening().id)
        picker = gr.Dropdown(
            choices(store),
            value=partner.id if partner else None,
            label="Compare with",
            container=False,
            filterable=False,
            interactive=True,
            min_width=120,
            elem_id="dfa-with-picker",
        )
    comparison = gr.HTML(
        html_template='<div class="dfa-notice" role="alert" hidden></div><div class="dfa-slot"></div>',
        js_on_load="dflashLab.compare(element, props, server, watch)",
        server_functions=look_ups(store),
        apply_default_css=False,
        elem_id="dfa-comparison",
    )

    def pick(other: str, now: dict[str, Any]) -> dict[str, Any]:
        return view(store, now, other)

    picker.input(pick, [picker, comparison], comparison, **QUIET)
    return picker, comparison


def refresh(store: TraceStore, inspected: dict[str, Any], other: str | None) -> list[Any]:
    """Picker and value after the first trace changed, or another arrived."""
    value = view(store, inspected, other)
    return [gr.Dropdown(choices=choices(store), value=value["with"]), value]
