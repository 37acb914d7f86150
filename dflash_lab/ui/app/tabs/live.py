"""The Live tab: watch a server by its own counters, or measure it with a load; its charts and the card's tables."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import gradio as gr

from dflash_lab.core.data.prompts import DATA_FOLDER_VARIABLE, local_datasets
from dflash_lab.core.errors import DFlashLabError
from dflash_lab.core.serve.endpoint import KEY_VARIABLE
from dflash_lab.core.serve.watch import Watch
from dflash_lab.ui.app.ask import (
    MEASURE,
    MOST_PROMPTS,
    OWN,
    PRESETS,
    WATCH,
    ZLAB,
    command_line,
    make_ask,
    make_tasks,
    preset,
)
from dflash_lab.ui.app.header import QUIET
from dflash_lab.ui.app.live import GSM8K_ALONE, LiveStore

TAB = "live"
DEFAULT_URL = "http://127.0.0.1:30000"
OWN_PROMPTS = (
    "A baker sells 24 rolls in the morning and half as many in the afternoon. How many rolls is that?\n"
    "Write a Python function that returns the longest common prefix of a list of strings.\n"
    "Explain why the sky is blue, in three sentences for a child."
)
# Constant text: static/live.js fills it with textContent.
PANE = """
<div class="dfa-notice" role="alert" hidden></div>
<div class="dfa-live-bar"></div>
<div class="dfa-live-pane"></div>
<div class="dfa-live-card"></div>
"""


def same_command(*fields: Any) -> str:
    """The command of the form as it stands, or what is wrong with it."""
    try:
        return command_line(make_ask(*fields))
    except DFlashLabError as error:
        return f"# {error}"


def look_ups(store: LiveStore) -> list[Callable[[Any], dict[str, Any]]]:
    """What the page calls for data: `live_view`, once a second, with what it has already.

    Whoever reaches the server may call it with anything, so the answer is data or {"error": one line}.
    """

    def live_view(ask: Any) -> dict[str, Any]:
        ask = ask if isinstance(ask, dict) else {}
        wanted, mine = (
            store.get(ask.get(key)) if isinstance(ask.get(key), str) else None for key in ("source", "mine")
        )
        source = wanted or store.opening()
        version, tables = store.card(source)
        answer: dict[str, Any] = {
            "source": source and source.id,
            "sources": [[each.id, each.label] for each in ([mine] if mine else []) + store.runs()],
            "cardVersion": version,
        }
        if version != ask.get("card"):
            answer["card"] = tables
        if source is None:
            return answer
        beside = _beside(ask.get("beside"))
        answer["version"] = f"{source.version()} {beside}"
        if answer["version"] != ask.get("seen") or answer["source"] != ask.get("source"):
            answer["view"] = {**source.view(beside), "id": source.id}
        return answer

    return [live_view]


def _beside(value: Any) -> tuple[str, str]:
    match value:
        case [str(dataset), str(load)]:
            return dataset[:40], load[:20]
    return GSM8K_ALONE


@dataclass(frozen=True)
class Form:
    """The components of the form."""

    mode: gr.Radio
    """Watch or measure."""
    fields: list[Any]
    """All of `make_ask`, `mode` first."""
    preset: gr.Dropdown
    """Fills in the sampling."""
    sampling: list[Any]
    """What it fills in."""
    own: gr.Textbox
    """One's own prompts."""
    datasets: gr.Dropdown
    """Prompt sets."""
    load: gr.Column
    """What only measuring needs."""


def draw_form() -> Form:
    """The form, with z-lab's settings."""
    url = gr.Textbox(DEFAULT_URL, label="Server address", max_lines=1, elem_id="dfa-live-url")
    mode = gr.Radio([WATCH, MEASURE], value=WATCH, label="What to do", elem_id="dfa-live-mode")
    with gr.Column(visible=False, elem_classes="dfa-live-load") as load:
        local = local_datasets()
        info = None if local else f"Named sets appear when {DATA_FOLDER_VARIABLE} names a folder of their files."
        datasets = gr.Dropdown(
            [*local, OWN], value=[local[0] if local else OWN], multiselect=True, label="Prompt sets", info=info
        )
        own = gr.Textbox(OWN_PROMPTS, label="Own prompts, one a line", lines=3, max_lines=8, visible=not local)
        with gr.Row(elem_classes="dfa-fields"):
            num_prompts = gr.Textbox(
                "", label="Prompts", max_lines=1, min_width=60, placeholder=f"all, ≤ {MOST_PROMPTS}"
            )
            concurrency = gr.Textbox("1", label="Concurrency", max_lines=1, min_width=60, placeholder="1,8,32")
        chosen = gr.Dropdown(list(PRESETS), value=ZLAB, label="Settings as in", filterable=False)
        with gr.Row(elem_classes="dfa-fields"):
            max_new_tokens = gr.Number(2048, label="Max tokens", precision=0, min_width=60)
            temperature = gr.Number(0, label="Temperature", step=0.1, min_width=60)
        with gr.Row(elem_classes="dfa-fields"):
            top_p = gr.Number(1, label="Top-p", step=0.05, min_width=60)
            top_k = gr.Number(0, label="Top-k", precision=0, min_width=60)
        with gr.Row(elem_classes="dfa-fields"):
            reasoning = gr.Textbox("", label="Reasoning", max_lines=1, min_width=60, placeholder="on, off, high…")
            stream = gr.Checkbox(False, label="Stream", min_width=60, elem_id="dfa-live-stream")
        label = gr.Textbox("", label="Label in tables", max_lines=1, placeholder="the method")
    model = gr.Textbox("", label="Model", max_lines=1, placeholder="the first that is served")
    sampling = [max_new_tokens, temperature, top_p, top_k, reasoning]
    fields = [mode, url, model, label, datasets, own, num_prompts, concurrency, *sampling, stream]
    return Form(mode, fields, chosen, sampling, own, datasets, load)


def build(store: LiveStore) -> None:
    """Draw the tab and connect it to `store`."""
    with gr.Row(elem_classes="dfa-generate", elem_id="dfa-live"):
        with gr.Column(scale=2, min_width=280, elem_id="dfa-live-form"):
            form = draw_form()
            with gr.Row(elem_classes="dfa-fields"):
                start = gr.Button("Watch", variant="primary", size="md", min_width=80)
                upload = gr.UploadButton(
                    "Open runs…", file_count="multiple", file_types=[".jsonl"], size="md", min_width=80
                )
            command = gr.Textbox(
                same_command(*(item.value for item in form.fields)),
                label="Same as this command",
                interactive=False,
                lines=2,
                max_lines=10,
                buttons=["copy"],
                elem_id="dfa-live-command",
                elem_classes="dfa-command",
            )
        with gr.Column(scale=7, min_width=320):
            pane = gr.HTML(
                html_template=PANE,
                js_on_load="dflashLive(element, props, server, watch, () => trigger('stop', {}))",
                server_functions=look_ups(store),
                apply_default_css=False,
                elem_id="dfa-live-view",
            )
    _connect(store, form, start, upload, command, pane)


def _connect(
    store: LiveStore, form: Form, start: gr.Button, upload: gr.UploadButton, command: gr.Textbox, pane: gr.HTML
) -> None:
    def begin(request: gr.Request, *fields: Any) -> dict[str, Any]:
        key = os.environ.get(KEY_VARIABLE)
        try:
            ask = make_ask(*fields)
            if not ask.datasets:
                source: Any = store.watch(request.session_hash, Watch(ask.url, ask.model, api_key=key))
            else:
                folder = Path("live-runs") / datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
                tasks, rest = make_tasks(ask, folder), {"model": ask.model, "label": ask.label, "api_key": key}
                source = store.measure(request.session_hash, ask.url, tasks, folder, **rest)
        except (DFlashLabError, OSError) as error:
            return {"source": None, "notice": str(error)}
        return {"source": source.id, "mine": source.id, "notice": None}

    def opened(files: list[str]) -> dict[str, Any]:
        try:
            sources = [store.upload(Path(file)) for file in files]
        except DFlashLabError as error:
            return {"source": None, "notice": str(error)}
        return {"source": sources[-1].id, "notice": None}

    def halt(request: gr.Request) -> None:
        store.stop(request.session_hash)

    def switch(mode: str, datasets: list[str]) -> list[Any]:
        measuring = mode == MEASURE
        return [gr.Column(visible=measuring), gr.Button(mode), gr.Textbox(visible=OWN in datasets)]

    start.click(begin, form.fields, pane, **QUIET)
    upload.upload(opened, upload, pane, **QUIET)
    pane.stop(halt, None, None, **QUIET)
    gr.on(
        [form.mode.change, form.datasets.change],
        switch,
        [form.mode, form.datasets],
        [form.load, start, form.own],
        **QUIET,
    )
    form.preset.input(lambda name: list(preset(name).values()), form.preset, form.sampling, **QUIET)
    changed = [item.change for item in form.fields]
    gr.on(changed, same_command, form.fields, command, trigger_mode="always_last", **QUIET)
