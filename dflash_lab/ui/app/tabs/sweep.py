"""The Ablations tab: block size by candidates as a heat map, a cell's trace in Inspect, a small sweep from the page."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import math
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gradio as gr

from dflash_lab.core.data.prompts import DATA_FOLDER_VARIABLE, local_datasets
from dflash_lab.core.errors import DFlashLabError, RequestError
from dflash_lab.ui.app.header import QUIET
from dflash_lab.ui.app.place import Place
from dflash_lab.ui.app.run import Engine
from dflash_lab.ui.app.session import TraceStore
from dflash_lab.ui.app.sweep import SweepSource, SweepStore, Work
from dflash_lab.ui.app.sweep_run import SweepRun
from dflash_lab.ui.view.charts import plotly_template
from dflash_lab.ui.view.sweep_grid import cell_wire, sweep_wire

if TYPE_CHECKING:
    from dflash_lab.core.ablate.sweep import Sweep

TAB = "sweep"
OWN = "own prompts"
OWN_PROMPTS = (
    "A baker sells 24 rolls in the morning and half as many in the afternoon. How many rolls is that?\n"
    "Write a Python function that returns the longest common prefix of a list of strings."
)
OWN_FILE = "prompts.txt"
MODES = {"replay": "Replay: exact, greedy, fast", "decode": "Decode: the real loop, any temperature"}

# Constant text: static/sweep.js fills it with textContent.
PANE = """
<div class="dfa-notice" role="alert" hidden></div>
<div class="dfa-sweep-work" hidden></div>
<div class="dfa-live-bar"></div>
<div class="dfa-sweep-grid"></div>
<div class="dfa-sweep-figures"></div>
"""


@dataclass(frozen=True)
class Ask:
    """What the form asks for."""

    sweep: Sweep
    """Checked."""
    own_prompts: str
    """Prompts line by line; empty if the sweep has none of its own."""
    folder: Path
    """Where its results go: the same sweep has the same folder, and goes on in it."""

    @property
    def command(self) -> str:
        """The command that does the same in a terminal."""
        return f"{self.sweep.command()} --out {shlex.quote(str(self.folder))}"

    @property
    def num_cells(self) -> int:
        """Cells of the sweep; an axis left empty has one value."""
        from dflash_lab.core.ablate.sweep import AXES

        return math.prod(len(getattr(self.sweep, axis)) or 1 for axis in AXES)


def make_ask(
    folder: Path,
    datasets: list[str],
    own_prompts: str,
    num_prompts: float | None,
    block_size: str,
    num_candidates: str,
    selector: list[str],
    mode: str,
    max_new_tokens: float | None,
    conv: list[str],
    layers: str,
    window: str,
    temperature: str,
) -> Ask:
    """What the form asks for; its results go into `folder`. Raises RequestError, naming what is empty or wrong."""
    # Checked by the same code as a command, which needs torch: imported at the first question.
    from dflash_lab.core.ablate.sweep import parse_sweep

    numbers = {"prompts": num_prompts, "max tokens": max_new_tokens}
    empty = [name for name, value in numbers.items() if value is None] or ([] if datasets else ["prompt sets"])
    if empty:
        raise RequestError(f"expected a value for {', '.join(empty)}, got none; fill it in")
    if OWN in datasets and not own_prompts.strip():
        raise RequestError("expected prompts, one a line, got none; write some")
    axes = {
        "block_size": block_size,
        "num_candidates": num_candidates,
        # On alone is what an axis has that nobody named.
        "selector": "" if selector == ["on"] else ",".join(selector),
        "conv": "" if conv == ["on"] else ",".join(conv),
        "layers": layers,
        "window": window,
        "temperature": temperature,
    }
    given = {name: text for name, text in axes.items() if text.strip()}
    given |= {"mode": mode, "num_prompts": int(num_prompts), "max_new_tokens": int(max_new_tokens)}
    own = own_prompts.strip() if OWN in datasets else ""
    digest = hashlib.sha256(json.dumps([given, datasets, own]).encode()).hexdigest()[:6]
    words = "-".join(re.sub(r"\W+", "-", "own" if name == OWN else name) for name in datasets)
    folder = folder / f"{words[:40]}-{digest}"
    names = [str(folder / OWN_FILE) if name == OWN else name for name in datasets]
    return Ask(parse_sweep({**given, "dataset": names}, "the form"), own, folder)


def look_ups(store: SweepStore) -> list[Callable[[Any], dict[str, Any]]]:
    """What the page calls for data: `sweep_view`, with what it has already, and `sweep_cell`.

    Whoever reaches the server may call them with anything, so the answer is data or {"error": one line}.
    """

    def sweep_view(ask: Any) -> dict[str, Any]:
        ask = ask if isinstance(ask, dict) else {}
        source = store.get(ask.get("source")) or store.opening()
        answer: dict[str, Any] = {
            "source": source.id,
            "sources": [[each.id, each.label] for each in store.sources()],
            "work": work_view(store.work(ask.get("mine"))),
        }
        index = ask.get("slice") if isinstance(ask.get("slice"), int) else 0
        version = f"{source.id} {source.version()} {index}"
        if version != ask.get("seen"):
            answer |= {"seen": version, "view": None, "problem": None}
            try:
                answer["view"] = draw(source, index)
            except DFlashLabError as error:
                answer["problem"] = str(error)
        return answer

    def sweep_cell(ask: Any) -> dict[str, Any]:
        source = store.get(ask.get("source")) if isinstance(ask, dict) else None
        try:
            row = source.row(ask.get("key")) if source else None
        except DFlashLabError as error:
            return {"error": str(error)}
        return cell_wire(row) if row else {"error": "This cell is not in the results any more: choose another one."}

    return [sweep_view, sweep_cell]


def draw(source: SweepSource, index: int) -> dict[str, Any] | None:
    """What the page draws of a slice, the first if there is no such; None while there is no row. Raises DataError."""
    found = source.report()
    if not found["grids"]:
        return None
    index = index if 0 <= index < len(found["grids"]) else 0
    drawn = sweep_wire(found, index)
    # Where the server keeps an upload, or the package its example, is nobody's business.
    folder = source.folder if source.kind in ("given", "run") else source.folder.name
    commands = [f"{command} --out {shlex.quote(str(folder))}" for command in drawn["commands"]]
    return {**drawn, "id": source.id, "commands": commands}


def work_view(work: Work | None) -> dict[str, Any] | None:
    """How a session's sweep and cell go; None if it has none."""
    if work is None:
        return None
    cell = None
    if work.cell is not None:
        run = work.cell.run
        cell = {"state": run.state, "message": run.message, "trace": run.trace_id, "ask": work.cell.ask}
    return {"sweep": work.sweep.view() if work.sweep else None, "cell": cell}


def draw_form() -> list[Any]:
    """The fields of `make_ask`, with defaults that take a minute on a CPU."""
    local = local_datasets()
    info = None if local else f"Named sets appear when {DATA_FOLDER_VARIABLE} names a folder of their files."
    first = local[0] if local else OWN
    datasets = gr.Dropdown([*local, OWN], value=[first], multiselect=True, label="Prompt sets", info=info)
    own = gr.Textbox(OWN_PROMPTS, label="Own prompts, one a line", lines=3, max_lines=8, visible=not local)
    datasets.change(lambda names: gr.Textbox(visible=OWN in names), datasets, own, **QUIET)
    block_size = _axis("4,8,16", "Block sizes", "2,4,8,16")
    num_candidates = _axis("1,4,16", "Candidates", "1,2,4,8,16")
    selector = gr.CheckboxGroup(["on", "off"], value=["on"], label="Selector", elem_classes="dfa-switch")
    with gr.Row(elem_classes="dfa-fields"):
        num_prompts = gr.Number(2, label="Prompts of each", precision=0, min_width=60)
        max_new_tokens = gr.Number(128, label="Max tokens", precision=0, min_width=60)
    mode = gr.Dropdown([(text, name) for name, text in MODES.items()], value="replay", label="Mode", filterable=False)
    with gr.Accordion("More axes", open=False):
        conv = gr.CheckboxGroup(["on", "off"], value=["on"], label="Convolution", elem_classes="dfa-switch")
        layers = _axis("all", "Tapped layers", "all,shift+1,shift-1,drop20")
        window = _axis("0", "Window, 0 as trained", "0,64,256")
        temperature = _axis("0", "Temperature, by decoding", "0,0.7")
    main = [datasets, own, num_prompts, block_size, num_candidates, selector, mode, max_new_tokens]
    return [*main, conv, layers, window, temperature]


def _axis(value: str, label: str, example: str) -> gr.Textbox:
    return gr.Textbox(value, label=label, placeholder=example, max_lines=1, min_width=60)


def build(store: SweepStore, engine: Engine, traces: TraceStore, tab: gr.Tab) -> gr.HTML:
    """Draw the tab and connect it; gives the pane, whose `show_trace` says which trace Inspect should show."""
    with gr.Row(elem_classes="dfa-generate", elem_id="dfa-sweep"):
        with gr.Column(scale=2, min_width=260, elem_id="dfa-sweep-form"):
            fields = draw_form()
            with gr.Row(elem_classes="dfa-fields"):
                start = gr.Button("Run", variant="primary", size="md", min_width=80)
                upload = gr.UploadButton(
                    "Open results…", file_count="multiple", file_types=[".jsonl", ".json"], size="md", min_width=80
                )
            command = gr.Textbox(
                "",
                label="Same as this command",
                interactive=False,
                lines=3,
                max_lines=10,
                buttons=["copy"],
                elem_id="dfa-sweep-command",
                elem_classes="dfa-command",
            )
        with gr.Column(scale=7, min_width=320):
            templates = json.dumps({theme: plotly_template(theme) for theme in ("light", "dark")})
            pane = gr.HTML(
                html_template=PANE,
                js_on_load="dflashSweep(element, props, server, watch, "
                "{ open: (cell) => trigger('open_cell', cell), show: (trace) => trigger('show_trace', trace), "
                f"stop: () => trigger('stop', {{}}) }}, {templates})",
                server_functions=look_ups(store),
                apply_default_css=False,
                elem_id="dfa-sweep-view",
            )
    _connect(store, engine, traces, fields, [start, upload, pane])

    def same_command(*values: Any) -> str:
        try:
            return make_ask(store.own_folder, *values).command
        except DFlashLabError as error:
            return f"# {error}"

    told = [tab.select, *(field.change for field in fields)]
    gr.on(told, same_command, fields, command, trigger_mode="always_last", **QUIET)
    return pane


def _connect(store: SweepStore, engine: Engine, traces: TraceStore, fields: list[Any], parts: list[Any]) -> None:
    start, upload, pane = parts
    turns = itertools.count()

    def tell(**values: Any) -> dict[str, Any]:
        # Numbered: the page hears of a value only if it is another one.
        return {"turn": next(turns), "notice": None, **values}

    def begin(request: gr.Request, *values: Any) -> dict[str, Any]:
        try:
            ask = make_ask(store.own_folder, *values)
            if ask.own_prompts:
                ask.folder.mkdir(parents=True, exist_ok=True)
                (ask.folder / OWN_FILE).write_text(ask.own_prompts + "\n", encoding="utf-8")
        except (DFlashLabError, OSError) as error:
            return tell(notice=str(error))
        arguments = shlex.split(ask.sweep.command())[1:]
        work = store.begin(request.session_hash, SweepRun(arguments, ask.folder, ask.num_cells, engine.lock))
        return tell(source=store.open(ask.folder, "run").id, mine=work.token)

    def opened(files: list[str]) -> dict[str, Any]:
        try:
            return tell(source=store.upload([Path(file) for file in files]).id)
        except DFlashLabError as error:
            return tell(notice=str(error))

    def open_cell(request: gr.Request, event: gr.EventData) -> dict[str, Any]:
        ask = _cell(event)
        try:
            found = store.open_cell(request.session_hash, ask, engine, traces)
        except DFlashLabError as error:
            return tell(notice=str(error))
        if isinstance(found, str):
            return tell(show={**ask, "trace": found})
        return tell(mine=found.token)

    def halt(request: gr.Request) -> None:
        store.stop(request.session_hash)

    start.click(begin, fields, pane, **QUIET)
    upload.upload(opened, upload, pane, **QUIET)
    pane.open_cell(open_cell, None, pane, **QUIET)
    pane.stop(halt, None, None, **QUIET)


def _cell(event: gr.EventData) -> dict[str, str]:
    """Which cell a message of the page names; whatever it lacks is empty."""
    data: Mapping[str, Any] = event._data if isinstance(event._data, dict) else {}
    return {name: value if isinstance(value := data.get(name), str) else "" for name in ("source", "key", "prompt")}


def place(store: SweepStore, traces: TraceStore, event: gr.EventData) -> Place:
    """Where Inspect should look, with what is said of it: whether the trace is what the sweep has."""
    trace = event._data.get("trace") if isinstance(event._data, dict) else None
    entry = traces.get(trace) if isinstance(trace, str) else None
    said = None
    if entry is not None:
        with contextlib.suppress(DFlashLabError):
            said = store.judged(_cell(event), entry.trace)
    return Place(str(trace), problem=said)
