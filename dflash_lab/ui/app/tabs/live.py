"""The Live tab: watch a server by its own counters, or measure it with a load; its charts and the card's tables."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import gradio as gr

from dflash_lab.core.data.prompts import DATA_FOLDER_VARIABLE, load_prompts, local_datasets
from dflash_lab.core.errors import DFlashLabError, RequestError
from dflash_lab.core.serve.endpoint import KEY_VARIABLE, base_address
from dflash_lab.core.serve.measure import Task, make_task
from dflash_lab.core.serve.plan import MIN_WARMUP
from dflash_lab.core.serve.published import published_tables
from dflash_lab.core.serve.records import LoadPlan
from dflash_lab.core.serve.watch import Watch
from dflash_lab.ui.app.header import QUIET
from dflash_lab.ui.app.live import GSM8K_ALONE, LiveStore

TAB = "live"
DEFAULT_URL = "http://127.0.0.1:30000"
WATCH, MEASURE = "Watch", "Measure"
OWN = "own prompts"
OWN_PROMPTS = (
    "A baker sells 24 rolls in the morning and half as many in the afternoon. How many rolls is that?\n"
    "Write a Python function that returns the longest common prefix of a list of strings.\n"
    "Explain why the sky is blue, in three sentences for a child."
)
MOST_PROMPTS = 128
"""Prompts of a run unless told otherwise, or all of a smaller set: as `live bench`."""
ZLAB = "z-lab's client"

# Constant text: static/live.js fills it with textContent.
PANE = """
<div class="dfa-notice" role="alert" hidden></div>
<div class="dfa-live-bar"></div>
<div class="dfa-live-pane"></div>
<div class="dfa-live-card"></div>
"""


@dataclass(frozen=True)
class Ask:
    """What the form asks for."""

    url: str
    """Address of the server."""
    model: str | None = None
    """Served model, if there are several."""
    label: str | None = None
    """What tables call the runs."""
    datasets: tuple[str, ...] = ()
    """Prompt sets, in turn; empty to watch only."""
    own_prompts: str = ""
    """Prompts line by line, for the set `OWN`."""
    num_prompts: int | None = None
    """Requests of a run; None takes all, 128 at most."""
    concurrency: tuple[int, ...] = (1,)
    """Requests under way at a time, in turn."""
    options: dict[str, Any] = field(default_factory=dict)
    """The other fields of a LoadPlan."""


def make_ask(
    mode: str,
    url: str,
    model: str,
    label: str,
    datasets: list[str],
    own_prompts: str,
    num_prompts: float | None,
    concurrency: str,
    max_new_tokens: float | None,
    temperature: float | None,
    top_p: float | None,
    top_k: float | None,
    reasoning: str,
    stream: bool,
) -> Ask:
    """What the form asks for. Raises RequestError, ServerError, naming what is empty or out of range."""
    url = base_address(url)
    names = (model.strip() or None, label.strip() or None)
    if mode == WATCH:
        return Ask(url, names[0])
    given = {"max tokens": max_new_tokens, "temperature": temperature, "top-p": top_p, "top-k": top_k}
    empty = [name for name, value in given.items() if value is None]
    if empty:
        raise RequestError(f"expected a number for {', '.join(empty)}, got none; fill it in")
    ranges = {"prompts": (num_prompts or 1, 1, None), "max tokens": (max_new_tokens, 1, None),
              "temperature": (temperature, 0, None), "top-p": (top_p, 0, 1), "top-k": (top_k, 0, None)}  # fmt: skip
    for name, (value, low, high) in ranges.items():
        if value < low or (high is not None and value > high) or (name == "top-p" and value == 0):
            raise RequestError(f"{name} must be {'above ' if name == 'top-p' else ''}{low} "
                               f"{'or more' if high is None else f'and at most {high}'}, got {value:g}")  # fmt: skip
    if not datasets:
        raise RequestError("expected a prompt set, got none; choose one or more")
    if OWN in datasets and not own_prompts.strip():
        raise RequestError("expected prompts, one a line, got none; write some")
    options = {
        "max_new_tokens": int(max_new_tokens),
        "temperature": float(temperature),
        "top_p": float(top_p),
        "top_k": int(top_k),
        "reasoning": reasoning.strip() or None,
        "stream": stream,
    }
    loads = _concurrency(concurrency)
    count = None if num_prompts is None else int(num_prompts)
    return Ask(url, *names, tuple(datasets), own_prompts, count, loads, options)


def _concurrency(text: str) -> tuple[int, ...]:
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        raise RequestError(f"concurrency must be a number of requests, or several as 1,8,32, got {text!r}")
    return found


def command_line(ask: Ask, folder: Path | None = None) -> str:
    """The command that does the same in a terminal; `folder` is where its runs are."""
    words = [["dflash-lab", "live", "bench" if ask.datasets else "watch", ask.url]]
    if ask.model:
        words.append(["--model", ask.model])
    if ask.datasets:
        own = str((folder or Path()) / "prompts.txt")
        words.append(["--dataset", ",".join(own if name == OWN else name for name in ask.datasets)])
        if ask.num_prompts is not None:
            words.append(["--num-prompts", str(ask.num_prompts)])
        words.append(["--concurrency", ",".join(map(str, ask.concurrency))])
        words += [[f"--{name.replace('_', '-')}", *_value(value)] for name, value in _unusual(ask.options).items()]
        if ask.label:
            words.append(["--label", ask.label])
    return " \\\n  ".join(shlex.join(line) for line in words)


def _unusual(options: dict[str, Any]) -> dict[str, Any]:
    """The options whose value is not the default of the command."""
    usual = LoadPlan("", 1)
    return {name: value for name, value in options.items() if value != getattr(usual, name)}


def _value(value: Any) -> list[str]:
    return [] if value is True else [f"{value:g}" if isinstance(value, float) else str(value)]


def same_command(*fields: Any) -> str:
    """The command of the form as it stands, or what is wrong with it."""
    try:
        return command_line(make_ask(*fields))
    except DFlashLabError as error:
        return f"# {error}"


def make_tasks(ask: Ask, folder: Path) -> list[Task]:
    """The runs that are asked for. Raises DataError. One's own prompts are written to `folder`."""
    tasks = []
    for name in ask.datasets:
        if name == OWN:
            folder.mkdir(parents=True, exist_ok=True)
            own = folder / "prompts.txt"
            own.write_text(ask.own_prompts.strip() + "\n", encoding="utf-8")
            name = str(own)
        prompts = load_prompts(name)
        count = min(MOST_PROMPTS, prompts.available) if ask.num_prompts is None else ask.num_prompts
        for at_a_time in ask.concurrency:
            warmup = max(MIN_WARMUP, at_a_time)
            plan = LoadPlan(prompts.name, count, at_a_time, num_warmup=warmup, **ask.options)
            tasks.append(make_task(prompts, plan))
    return tasks


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


def preset(name: str) -> list[Any]:
    """Max tokens, temperature, top-p, top-k and reasoning as z-lab's client has them, or as a table was made."""
    table = next((table for table in published_tables() if _preset_name(table) == name), None)
    if table is None:
        usual = LoadPlan("", 1)
        return [usual.max_new_tokens, usual.temperature, usual.top_p, usual.top_k, ""]
    thinking = {True: "on", False: "off"}.get(table.sampling.get("thinking"), "")
    sampling = table.sampling
    reasoning = sampling.get("reasoning", thinking)
    tokens = table.max_new_tokens or gr.skip()
    return [tokens, sampling["temperature"], sampling["top_p"], sampling["top_k"], reasoning]


def _preset_name(table: Any) -> str:
    return f"{table.target.rsplit('/', 1)[-1]}, {table.hardware}"


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
            num_prompts = gr.Number(
                None, label="Prompts", precision=0, min_width=60, placeholder=f"all, ≤ {MOST_PROMPTS}"
            )
            concurrency = gr.Textbox("1", label="Concurrency", max_lines=1, min_width=60, placeholder="1,8,32")
        choices = [ZLAB, *map(_preset_name, published_tables())]
        chosen = gr.Dropdown(choices, value=ZLAB, label="Settings as in", filterable=False)
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
    form.preset.input(preset, form.preset, form.sampling, **QUIET)
    changed = [item.change for item in form.fields]
    gr.on(changed, same_command, form.fields, command, trigger_mode="always_last", **QUIET)
