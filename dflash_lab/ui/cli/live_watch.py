"""`dflash-lab live watch`: a server, or a run on it, drawn in the terminal while it goes on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dflash_lab.core.errors import ServerError
from dflash_lab.ui.cli.live_options import DEFAULT_URL, model_option
from dflash_lab.ui.cli.output import Output, Result, story

if TYPE_CHECKING:
    from dflash_lab.core.serve.records import Snapshot
    from dflash_lab.core.serve.runfile import Run

Show = Callable[[str, str], None]
"""Takes a whole picture and the same in one line."""


@click.command()
@click.argument("source", default=DEFAULT_URL, metavar="URL|RUN")
@model_option
@click.option("--interval-s", type=click.FloatRange(0.05), default=1.0, show_default=True, metavar="S")
@click.option("--samples", type=click.IntRange(1), metavar="N", help="End after so many looks; else by Ctrl-C.")
@story
def watch(out: Output, source: str, model: str | None, interval_s: float, samples: int | None) -> Result:
    """Watch throughput, acceptance and running requests of a server by its own counters, or of a run by its file.

    Sends no requests of its own. Draws in a terminal; in a pipe, writes a line for each look. A run is watched to its
    end.
    """
    path = Path(source)
    with _screen(out) as show:
        if path.suffix == ".jsonl" or path.exists():
            document = _watch_run(path, interval_s, samples, show)
        else:
            document = _watch_server(source, model, interval_s, samples, show)
    return Result(document)


@contextlib.contextmanager
def _screen(out: Output) -> Iterator[Show]:
    """Where pictures go: a place in the terminal that is drawn over, or lines."""
    if out.as_json or not sys.stdout.isatty():
        yield lambda picture, line: out.write(f"{line}\n")
        return
    from rich.live import Live
    from rich.text import Text

    with Live(auto_refresh=False) as live:
        yield lambda picture, line: live.update(Text(picture), refresh=True)


def _watch_server(url: str, model: str | None, interval_s: float, samples: int | None, show: Show) -> dict[str, Any]:
    snapshots: list[Snapshot] = []
    told: dict[str, Any] = {}
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_look_at_server(url, model, interval_s, samples, show, snapshots, told))
    return {**told, **_state(snapshots)}


async def _look_at_server(
    url: str,
    model: str | None,
    interval_s: float,
    samples: int | None,
    show: Show,
    snapshots: list[Snapshot],
    told: dict[str, Any],
) -> None:
    """Fill `snapshots` until there are enough; `told` is what the server says of itself. Raises ServerError."""
    from dflash_lab.core.serve.endpoint import KEY_VARIABLE, Endpoint
    from dflash_lab.core.serve.probe import probe, read_snapshot
    from dflash_lab.core.serve.watch import KEPT, nothing_to_watch
    from dflash_lab.ui.view.live_frame import frame

    async with Endpoint(url, os.environ.get(KEY_VARIABLE)) as endpoint:
        info = await probe(endpoint, model, ask=False)
        told |= {"url": info.url, "model": info.model, "method": info.method, "hardware": info.hardware}
        looks = 0
        while samples is None or looks < samples:
            if looks:
                await asyncio.sleep(interval_s)
            looks += 1
            notes = []
            try:
                snapshot = await read_snapshot(endpoint, info)
            except ServerError as error:
                notes.append(str(error))
            else:
                if snapshot is None:
                    raise ServerError(nothing_to_watch(info))
                snapshots.append(snapshot)
                del snapshots[:-KEPT]
            state = _state(snapshots)
            title = f"{info.method} · {info.model} · {info.hardware or 'hardware not told'} · {info.url}"
            show(frame(title, state["series"], state["positions"], notes, _width()), _line(state, notes))


def _watch_run(path: Path, interval_s: float, samples: int | None, show: Show) -> dict[str, Any]:
    from dflash_lab.core.serve.runfile import RunReader
    from dflash_lab.ui.view.live_frame import frame

    reader = RunReader(path)
    looks = 0
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            looks += 1
            state = _run_state(reader.run)
            title = f"{reader.run.header.label} · {reader.run.header.plan.name} · {reader.run.status}"
            show(frame(title, state["series"], state["positions"], [], _width()), _line(state, []))
            if reader.run.status != "running" or (samples is not None and looks >= samples):
                break
            time.sleep(interval_s)
            reader.poll()
    return {"file": str(path), "status": reader.run.status, **_run_state(reader.run)}


def _state(snapshots: list[Snapshot]) -> dict[str, Any]:
    from dflash_lab.ui.view.live import position_chart, server_series, watched_acceptance

    return {"series": server_series(snapshots), "positions": position_chart(watched_acceptance(snapshots))}


def _run_state(run: Run) -> dict[str, Any]:
    """The server's counters during the run, with our own tokens and acceptance in place of its."""
    from dflash_lab.ui.view.live import load_series, position_chart, run_acceptance, server_series

    load = load_series(run)
    series = {
        **server_series(run.snapshots),
        "tok_s": load["tok_s"],
        "acceptance_length": load["request_acceptance_length"],
        "convention": "1 + accepted / steps of each request",
        "failures": load["failures"],
    }
    return {"series": series, "positions": position_chart(run_acceptance(run)), "requests": len(run.requests)}


def _width() -> int:
    return shutil.get_terminal_size().columns


def _line(state: dict[str, Any], notes: list[str]) -> str:
    """The last value of each series."""
    series = state["series"]
    names = {"tok_s": "tok/s", "acceptance_length": "acceptance length", "running": "running", "waiting": "waiting"}
    parts = []
    for key, name in names.items():
        value = next((value for value in reversed(series[key]) if value is not None), None)
        parts.append(f"{name} {'–' if value is None else f'{value:.2f}' if isinstance(value, float) else value}")
    return "  ".join([*parts, *notes])
