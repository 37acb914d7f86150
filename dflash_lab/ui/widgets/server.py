"""A live server in a notebook, or a run on one, watched while it goes on."""

from __future__ import annotations

import gzip
import html
import os
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import traitlets

from dflash_lab.core.errors import RunError
from dflash_lab.core.serve.endpoint import KEY_VARIABLE
from dflash_lab.core.serve.runfile import RunReader
from dflash_lab.core.serve.watch import Watch
from dflash_lab.ui.view.assets import module_text, plotly_js, style_text
from dflash_lab.ui.view.charts import Curve, curves_svg
from dflash_lab.ui.view.live_view import View, run_view, watch_view
from dflash_lab.ui.widgets.base import STATIC_DIR, anywidget, enter_cell


class LiveServer(anywidget.AnyWidget):
    """Throughput, acceptance, its histogram and survival, and running requests: of a server by its own counters, or of
    a run of `live bench` by its file, also while that is written. Published values stand beside.

    Sends no requests to the server. `with` closes it at the end; running its cell again closes the one before. A saved
    notebook keeps the numbers.
    """

    # Text, not paths: anywidget watches paths, and whatever it watches is never freed.
    _esm = module_text("live") + (STATIC_DIR / "server.js").read_text(encoding="utf-8")
    _css = style_text("live") + (STATIC_DIR / "widget.css").read_text(encoding="utf-8")

    view = traitlets.Dict(help="What is shown, as ui.view.live_view makes it: title, state, numbers, figures.").tag(
        sync=True
    )

    _worker: threading.Thread | None = None

    def __init__(
        self,
        source: str | Path,
        model: str | None = None,
        interval_s: float = 1.0,
        beside: tuple[str, str] = ("gsm8k", "1"),
    ) -> None:
        """`source`: address of a server, or the file of a run. Watching starts at once.

        interval_s: seconds between two looks. beside: data set and concurrency whose published values a server is shown
        beside; a run knows its own. DFLASH_LAB_API_KEY is sent as the server's key. Raises ServerError if an address
        is none, RunError if a file holds no run.
        """
        self._ended = threading.Event()
        self._watch: Watch | None = None
        self._look: Callable[[], tuple[str, View]]
        if Path(source).suffix == ".jsonl" or Path(source).is_file():
            self._look = _run_looks(Path(source))
        else:
            self._watch = Watch(str(source), model, interval_s, os.environ.get(KEY_VARIABLE))
            self._look = _server_looks(self._watch, beside)
        super().__init__()
        self._interval_s = interval_s
        self._seen = ""
        self._show()
        self.on_msg(self._answer)
        enter_cell(self)
        self._worker = threading.Thread(target=self._go_on, name="dflash-lab live server", daemon=True)
        self._worker.start()

    def stop(self) -> None:
        """End watching; what was seen stays."""
        if self._watch is not None:
            self._watch.job.stop()
            self._watch.job.join()
        assert self._worker is not None
        self._ended.set()
        self._worker.join()
        self._show()

    def close(self) -> None:
        """Stop, and take it off the page."""
        if self._worker is None:
            return  # closed by the interpreter, since its source was none
        self.stop()
        super().close()
        self.layout.close()  # made with the widget, and kept alive by ipywidgets as the widget was
        self.on_msg(self._answer, remove=True)

    def __enter__(self) -> LiveServer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def still(self) -> str:
        """State, numbers and survival as HTML that needs no script."""
        view = self.view
        rows = "".join(
            f"<tr><th>{html.escape(item['name'])}</th><td>{item['value']:,.4g} {html.escape(item['unit'])}</td></tr>"
            for item in view["numbers"]
            if item["value"] is not None
        )
        told = " · ".join(html.escape(text) for text in (view["state"], view["message"] or "") if text)
        head = f"<p><strong>{html.escape(view['title'])}</strong> {told}</p><table>{rows}</table>"
        survival = next(figure for figure in view["figures"] if figure["id"] == "survival")["data"]
        shares = tuple(survival[0]["y"]) if survival else ()
        return head + curves_svg([Curve("survival by position", shares, 1 + sum(shares))]) if shares else head

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        data, metadata = super()._repr_mimebundle_(**kwargs)
        return {**data, "text/html": self.still()}, metadata

    def _answer(self, widget: LiveServer, content: Any, buffers: list[memoryview]) -> None:
        """A message of the page: it needs Plotly, or wants to stop."""
        match content:
            case {"plotly": True}:
                self.send({"plotly": True}, [_packed_plotly()])
            case {"stop": True}:
                threading.Thread(target=self.stop, daemon=True).start()  # the kernel does not wait for the server

    def _go_on(self) -> None:
        while not self._ended.wait(self._interval_s):
            self._show()
            if self.view["state"] not in ("waiting", "running"):
                return

    def _show(self) -> None:
        version, view = self._look()
        if version != self._seen:
            self._seen = version
            self.view = {**view, "id": "live", "stoppable": self._watch is not None and not self._watch.job.finished}


def _server_looks(watch: Watch, beside: tuple[str, str]) -> Callable[[], tuple[str, View]]:
    def look() -> tuple[str, View]:
        state, message, snapshots = watch.job.state, watch.job.message or watch.trouble, watch.snapshots
        version = f"{state} {message} {snapshots[-1].at_s if snapshots else ''}"
        return version, watch_view(watch.info, snapshots, watch.began_at_s, state, message, beside)

    return look


def _run_looks(path: Path) -> Callable[[], tuple[str, View]]:
    reader = RunReader(path)

    def look() -> tuple[str, View]:
        try:
            reader.poll()
        except RunError as error:
            return "broken", run_view(reader.run) | {"state": "failed", "message": str(error)}
        return str(reader.offset), run_view(reader.run)

    return look


@cache
def _packed_plotly() -> bytes:
    """Plotly's script, packed. It goes to the page once, and only where a chart is drawn."""
    return gzip.compress(plotly_js().read_bytes(), 6)
