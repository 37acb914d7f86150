"""The app: composes header and tabs, and serves them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import gradio as gr

from dflash_lab.core.ablate.results import ROWS
from dflash_lab.core.errors import RequestError
from dflash_lab.ui.app import header as header_row
from dflash_lab.ui.app.live import LiveStore
from dflash_lab.ui.app.place import Place, parse_place
from dflash_lab.ui.app.run import Engine
from dflash_lab.ui.app.session import Runs, TraceStore, read_traces
from dflash_lab.ui.app.sweep import SweepStore
from dflash_lab.ui.app.tabs import compare, generate, help, inspect, live, sweep
from dflash_lab.ui.server.address import is_loopback
from dflash_lab.ui.view.assets import STATIC_DIR, plotly_js

PAGE_DIR = Path(__file__).parent / "static"
MAX_UPLOAD = "1gb"
SESSIONS = 50
"""Browser sessions whose state Gradio keeps; its own default is 10,000."""

TABS = (inspect.TAB, generate.TAB, live.TAB, compare.TAB, sweep.TAB, help.TAB)


def build_app(
    store: TraceStore,
    engine: Engine | None = None,
    servers: LiveStore | None = None,
    sweeps: SweepStore | None = None,
) -> gr.Blocks:
    """The page over the traces in `store`, the runs in `servers` and the results in `sweeps`.

    `engine` decodes for the Generate tab, by default the bundled pair.
    """
    # Every file of a static folder is served: this one holds modules and style sheets only.
    gr.set_static_paths([STATIC_DIR, plotly_js()])
    engine = engine or Engine()
    runs, servers, sweeps = Runs(store, engine), servers or LiveStore(), sweeps or SweepStore()
    with gr.Blocks(title="dflash-lab", fill_width=True, analytics_enabled=False, delete_cache=(3600, 86400)) as app:
        header = header_row.build(store)
        with gr.Tabs(elem_id="dfa-tabs") as tabs:
            with gr.Tab("Inspect", id=inspect.TAB) as inspect_tab:
                inspector = inspect.build(store, header)
            with gr.Tab("Generate", id=generate.TAB) as generate_tab:
                open_run = generate.build(runs)
            with gr.Tab("Live", id=live.TAB) as live_tab:
                live.build(servers)
            with gr.Tab("Compare", id=compare.TAB) as compare_tab:
                comparison = compare.build(store)
            with gr.Tab("Ablations", id=sweep.TAB) as sweep_tab:
                ablations = sweep.build(sweeps, engine, store, sweep_tab)
            with gr.Tab("Help", id=help.TAB) as help_tab:
                help.build()
        for tab in (inspect_tab, generate_tab, live_tab, compare_tab, sweep_tab, help_tab):
            tab.select(None, js=f"() => dflashLab.tab('{tab.id}')", api_visibility="private")
        chosen = [header.picker.input, header.upload.upload]
        gr.on(chosen, None, js="() => dflashLab.showTrace()", api_visibility="private")
        first = live.TAB if servers.given else sweep.TAB if sweeps.given else None
        outputs = [header.picker, inspector, tabs, *comparison]
        show = _connect(app, store, runs, open_run, outputs, first)

        def show_cell(event: gr.EventData) -> list[Any]:
            return show(inspect.arrive(store, sweep.place(sweeps, store, event)), inspect.TAB)

        ablations.show_trace(show_cell, None, outputs, **header_row.QUIET)
        app.unload(_closing(runs, servers, sweeps))
    return app


def _closing(*stores: Runs | LiveStore | SweepStore) -> Callable[[gr.Request], None]:
    def closed(request: gr.Request) -> None:
        for store in stores:
            store.close(request.session_hash)

    return closed


def _connect(
    app: gr.Blocks, store: TraceStore, runs: Runs, open_run: gr.Button, outputs: list[Any], first: str | None
) -> Callable[[dict[str, Any], str | None], list[Any]]:
    """The events that concern more than one tab; `outputs`: picker, inspector, tabs, second picker, comparison.

    `first` is the tab to open on if no trace is named. Gives what makes the outputs of an inspector's value and a tab.
    """
    _, inspector, _, *comparison = outputs

    def show(value: dict[str, Any], tab: str | None, other: str | None = None) -> list[Any]:
        chosen = gr.Dropdown(choices=header_row.choices(store), value=value["trace"])
        selected = gr.Tabs(selected=tab) if tab in TABS else gr.skip()
        return [chosen, value, selected, *compare.refresh(store, value, other)]

    def arrive(request: gr.Request) -> list[Any]:
        place = parse_place(request.query_params)
        side_by_side = store.pair is not None and place.trace is None
        tab = place.tab or (compare.TAB if side_by_side else first if place.trace is None else None)
        return show(inspect.arrive(store, place), tab, place.other)

    def open_in_inspect(request: gr.Request) -> list[Any]:
        run = runs.get(request.session_hash)
        id = run.watch() if run else None
        problem = None if id else "Nothing is decoded yet: open the run again in a moment."
        return show(inspect.arrive(store, Place(id, problem=problem)), inspect.TAB)

    def changed(value: dict[str, Any], now: dict[str, Any] | None) -> list[Any]:
        if now and value["trace"] == now["trace"]:
            return [gr.skip(), gr.skip()]
        return compare.refresh(store, value, now and now["with"])

    app.load(arrive, None, outputs, **header_row.QUIET)
    open_run.click(open_in_inspect, None, outputs, **header_row.QUIET)
    inspector.change(changed, [inspector, comparison[1]], comparison, **header_row.QUIET)
    return show


def launch(
    paths: list[Path],
    host: str = "127.0.0.1",
    port: int | None = None,
    open_browser: bool = True,
    block: bool = True,
    auth: str | None = None,
) -> gr.Blocks:
    """Serve the page over the examples and `paths`: traces, the first of which is shown, runs of servers (`.jsonl`
    files, or folders of them), and results of sweeps (folders with results.jsonl, or that file).

    auth: `USER:PASSWORD`, needed for a `host` that other machines can reach. Raises RequestError, TraceError, RunError,
    DataError.
    """
    login = _login(host, auth)
    swept = [path for path in paths if path.name == ROWS or (path / ROWS).is_file()]
    measured = [path for path in paths if path not in swept and (path.suffix == ".jsonl" or path.is_dir())]
    traces = [path for path in paths if path not in (*swept, *measured)]
    app = build_app(read_traces(traces), servers=LiveStore(measured), sweeps=SweepStore(swept))
    try:
        url = serve(app, server_name=host, server_port=port, inbrowser=open_browser, auth=login, quiet=True)
    except OSError:
        tried = port or "7860 to 7959"
        raise RequestError(f"expected a free port on {host}, found none at {tried}; give another --port") from None
    print(f"dflash-lab is at {url} (Ctrl-C ends it)", file=sys.stderr)
    if block:
        app.block_thread()
    return app


def serve(app: gr.Blocks, **options: Any) -> str:
    """Start the server in threads of its own and give its address; `options` are those of `gr.Blocks.launch`."""
    _, url, _ = app.launch(
        theme=theme(),
        css_paths=[*(STATIC_DIR / f"{name}.css" for name in ("inspector", "live", "sweep")), PAGE_DIR / "page.css"],
        head=_head(),
        ssr_mode=False,
        share=False,
        run_history=False,
        enable_monitoring=False,
        footer_links=[],
        state_session_capacity=SESSIONS,
        max_file_size=MAX_UPLOAD,
        prevent_thread_lock=True,
        **options,
    )
    return url


def _login(host: str, auth: str | None) -> tuple[str, str] | None:
    user, colon, password = (auth or "").partition(":")
    if auth is not None and not (user and colon and password):
        raise RequestError("expected --auth USER:PASSWORD, got something without a colon, a user or a password")
    if auth is None and not is_loopback(host):
        raise RequestError(
            f"expected a loopback address or a password, got host {host!r} without one: prompts would be open to the "
            "network; add --auth USER:PASSWORD, or forward the port over ssh"
        )
    return (user, password) if auth else None


def _head() -> str:
    served = {"dflashModules": STATIC_DIR, "dflashPlotly": plotly_js()}
    places = "".join(
        f"window.{name} = {json.dumps('gradio_api/file=' + quote(path.as_posix()))};\n" for name, path in served.items()
    )
    scripts = [(PAGE_DIR / name).read_text(encoding="utf-8") for name in ("page.js", "live.js", "sweep.js")]
    return f"<script>{places}{''.join(scripts)}</script>"


def theme() -> gr.themes.Base:
    """Quiet and compact, in the inspector's own blue and grounds."""
    plain = dict.fromkeys(("block_background_fill", "block_background_fill_dark"), "transparent")
    blue = "#0072b2"
    return gr.themes.Base(
        primary_hue=gr.themes.colors.sky,
        neutral_hue=gr.themes.colors.slate,
        text_size=gr.themes.sizes.text_sm,
        spacing_size=gr.themes.sizes.spacing_sm,
        radius_size=gr.themes.sizes.radius_sm,
    ).set(
        body_background_fill="#ffffff",
        body_background_fill_dark="#10151f",
        block_border_width="0px",
        block_padding="0px",
        block_label_text_color="#595959",
        block_info_text_color="#595959",
        block_info_text_color_dark="#a8b0bd",
        block_title_text_color="#595959",
        block_title_text_color_dark="#a8b0bd",
        input_background_fill="#ffffff",
        input_background_fill_dark="#171e2b",
        input_border_width="1px",
        input_border_color="#d5dae1",
        input_border_color_dark="#2c3644",
        button_primary_background_fill=blue,
        button_primary_background_fill_dark=blue,
        button_primary_background_fill_hover="#005a8f",
        button_primary_background_fill_hover_dark="#005a8f",
        button_primary_text_color="#ffffff",
        button_primary_text_color_dark="#ffffff",
        **plain,
    )
