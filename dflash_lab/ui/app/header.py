"""The header row: which trace, and what can be done with it; the inspector says what it is a trace of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gradio as gr

from dflash_lab.ui.app.session import TraceStore

QUIET: dict[str, Any] = {"show_progress": "hidden", "queue": False, "api_visibility": "private"}
"""Options of an event that is answered at once: the page is not dimmed and nothing waits for a run."""

# Constant text: what comes from a trace is set by page.js as textContent, never through a template.
TOOLS = """
<details class="dfa-menu">
  <summary>Save</summary>
  <div class="dfa-menu-items">
    <button type="button" data-save="trace">Trace file <small>.safetensors</small></button>
    <button type="button" data-save="step">This step <small>.json</small></button>
    <button type="button" data-save="steps">Steps <small>.csv</small></button>
    <button type="button" data-save="positions">Positions <small>.csv</small></button>
    <button type="button" data-save="page">Offline page <small class="dfa-page-size">.html</small></button>
    <button type="button" data-picture="svg">Picture of the grid <small>.svg</small></button>
    <button type="button" data-picture="png">Picture of the grid <small>.png</small></button>
  </div>
</details>
<button type="button" data-do="link" title="Copy a link to this trace, step and position">Copy link</button>
<button type="button" data-do="theme" title="Theme: as the system, light, dark">Auto</button>
<button type="button" data-do="help" title="Legend, keys, words" aria-label="Help">?</button>
"""


@dataclass(frozen=True)
class Header:
    """Components of the row that others listen to or write to."""

    picker: gr.Dropdown
    """Chooses the trace; its value is an id."""
    upload: gr.UploadButton
    """Takes a trace file."""
    tools: gr.HTML
    """Save menu, link, theme, help; triggers `save` with {kind, trace, step}."""
    download: gr.DownloadButton
    """Not visible; carries the file to be saved to the browser."""


def choices(store: TraceStore) -> list[tuple[str, str]]:
    """What the picker offers: (label, id)."""
    return [(entry.label, entry.id) for entry in store.entries()]


def build(store: TraceStore) -> Header:
    """Draw the row."""
    with gr.Row(elem_id="dfa-header"):
        _html("<h1>dflash-lab</h1>", "dfa-brand")
        picker = gr.Dropdown(
            choices(store),
            value=store.opening().id,
            label="Trace",
            show_label=False,
            container=False,
            filterable=False,
            interactive=True,
            min_width=120,
            elem_id="dfa-picker",
        )
        upload = gr.UploadButton("Open…", size="sm", min_width=0, elem_id="dfa-open")
        tools = _html(TOOLS, "dfa-tools", "dflashLab.tools(element, detail => trigger('save', detail))")
        download = gr.DownloadButton("Download", visible="hidden", elem_id="dfa-download")
    return Header(picker, upload, tools, download)


def _html(template: str, elem_id: str, js: str | None = None) -> gr.HTML:
    return gr.HTML(html_template=template, js_on_load=js, apply_default_css=False, min_width=0, elem_id=elem_id)
