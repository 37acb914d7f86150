"""What the page remembers: the traces it may show, and the run of each browser session.

All that changes while the server runs is held here, in `TraceStore` and `Runs`; a `Run` is in run.py.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import secrets
import shutil
import tempfile
import threading
import weakref
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from dflash_lab.core.errors import TraceError
from dflash_lab.core.trace import store as trace_store
from dflash_lab.core.trace.schema import Trace
from dflash_lab.core.trace.table import position_table, step_table
from dflash_lab.core.types import GenerateRequest
from dflash_lab.ui.app.run import Engine, Run
from dflash_lab.ui.view import wire
from dflash_lab.ui.view.export import export_html, page_bytes
from dflash_lab.ui.view.opening import example_trace, opening_step, second_example

KINDS = ("trace", "step", "steps", "positions", "page")
"""What can be saved of a trace: the .safetensors file, one step as JSON, its steps or positions as CSV, an offline page
that opens at a step."""


@dataclass(frozen=True)
class Entry:
    """A trace that the page may show."""

    id: str
    """Short name in links: a digest of what the trace holds, the same in every session."""
    source: str
    """`example`, `file` (named when the server started), `upload` or `run`; the first two stay for good."""
    trace: Trace
    """The trace; its tensors are fetched on demand."""
    path: Path | None = None
    """Its file, where it came from one."""
    live: bool = False
    """Whether it is the beginning of a run that goes on."""

    @property
    def label(self) -> str:
        """One line for the picker."""
        if self.source in ("file", "upload"):
            return self.trace.name
        header = self.trace.header
        prompt = " ".join(str(header.request.get("prompt", self.trace.name)).split())
        how = f"block {header.block_size}" if header.drafter else "no drafter"
        return f"{'running' if self.live else self.source} · {how} · {prompt[:40]}{'…' if len(prompt) > 40 else ''}"

    @cached_property
    def summary(self) -> dict[str, Any]:
        """`wire.trace_summary` under the label of the picker, made once; `id` is the one for links,
        `pageBytes` about the size of its offline page."""
        named = {"name": self.label, "id": self.id, "pageBytes": page_bytes(self.trace)}
        return wire.trace_summary(self.trace) | named | ({"status": "running"} if self.live else {})

    @cached_property
    def opening_step(self) -> int:
        """The step to show first."""
        return opening_step(self.trace)


def trace_id(trace: Trace) -> str:
    """Ten hex digits that depend on what was decoded and recorded, not on where the trace lies."""
    header = trace.header
    run = (header.created, header.level, header.status, header.prompt_ids, header.output_ids, trace.steps)
    return hashlib.sha256(repr(run).encode()).hexdigest()[:10]


class TraceStore:
    """The traces of one server by id. Safe to use from several threads.

    Uploads and runs beyond `capacity` go, oldest first; a link to one that is gone is answered with a message.
    """

    def __init__(self, example: Trace, capacity: int = 32) -> None:
        self._lock = threading.Lock()
        self._entries: dict[str, Entry] = {}
        self._runs: dict[str, Entry] = {}
        self._capacity = capacity
        self._count = itertools.count()
        self.example = self.add(example, "example")

    def add(self, trace: Trace, source: str, path: Path | None = None) -> Entry:
        """Register `trace`; one that is already known keeps its first entry."""
        entry = Entry(trace_id(trace), source, trace, path)
        with self._lock:
            entry = self._entries.setdefault(entry.id, entry)
            passing = [e for e in self._entries.values() if e.source in ("upload", "run")]
            for old in passing[: -self._capacity]:
                del self._entries[old.id]
        return entry

    def keep_run(self, id: str, trace: Trace, live: bool) -> Entry:
        """Register what there is of the run called `id`; the finished trace is found under that name as well."""
        entry = Entry(id, "run", trace, live=True) if live else self.add(trace, "run")
        with self._lock:
            self._runs.pop(id, None)
            self._runs[id] = entry
            for old in list(self._runs)[: -self._capacity]:
                del self._runs[old]
        return entry

    def open(self, path: Path) -> Entry:
        """Register a trace file that was named when the server started. Raises TraceError."""
        return self.add(trace_store.load(path), "file", path)

    def upload(self, path: Path) -> Entry:
        """Check an uploaded file and register a copy, since the server clears its uploads. Raises TraceError."""
        known = self.get(trace_id(trace_store.load(path)))
        if known is not None:
            return known
        kept = self._file(f"upload-{next(self._count)}", path.name)
        shutil.copyfile(path, kept)
        return self.add(trace_store.load(kept), "upload", kept)

    def get(self, id: str) -> Entry | None:
        """The entry called `id`, or None."""
        with self._lock:
            return self._entries.get(id) or self._runs.get(id)

    def entries(self) -> list[Entry]:
        """All entries: those given at the start first, then the newest."""
        with self._lock:
            entries = [*self._entries.values(), *(e for e in self._runs.values() if e.live)]
        given = [e for e in entries if e.source in ("file", "example")]
        return given + [e for e in reversed(entries) if e not in given]

    def opening(self) -> Entry:
        """What the page opens on: the first file it was given, else the example."""
        return next((e for e in self.entries() if e.source == "file"), self.example)

    def partner(self, id: str) -> Entry | None:
        """What to compare the entry called `id` with: another answer to its prompt if there is one, else any other."""
        entry = self.get(id)
        others = [e for e in self.entries() if e.id != id]
        prompt = entry.trace.header.prompt_ids if entry else ()
        same = (e for e in others if e.trace.header.prompt_ids == prompt)
        return next(same, others[0] if others else None)

    @property
    def pair(self) -> tuple[Entry, Entry] | None:
        """The two files the server was given, if there are exactly two: they open side by side."""
        given = [e for e in self.entries() if e.source == "file"]
        return (given[0], given[1]) if len(given) == 2 else None

    def write(self, entry: Entry, kind: str, step: int) -> Path:
        """Make a file to download, of a kind in KINDS, in a folder that goes with the server."""
        name = _file_name(entry.label)
        if kind == "trace":
            path = self._file(entry.id, f"{name}.safetensors")
            if entry.path is None:
                trace_store.save(entry.trace, path)
            else:
                shutil.copyfile(entry.path, path)
        elif kind == "step":
            path = self._file(entry.id, f"{name}-step-{step}.json")
            text = json.dumps(wire.step_wire(entry.trace, step), ensure_ascii=False, allow_nan=False)
            path.write_text(text, encoding="utf-8")
        elif kind in ("steps", "positions"):
            path = self._file(entry.id, f"{name}-{kind}.csv")
            table = step_table(entry.trace) if kind == "steps" else position_table(entry.trace)
            path.write_text(table.to_csv(), encoding="utf-8", newline="")
        else:
            path = self._file(entry.id, f"{name}.html")
            path.write_text(export_html(entry.trace, step), encoding="utf-8")
        return path

    def _file(self, group: str, name: str) -> Path:
        folder = self._folder / group
        folder.mkdir(exist_ok=True)
        return folder / name

    @cached_property
    def _folder(self) -> Path:
        """Where uploads are kept and downloads made; removed with the store."""
        folder = tempfile.mkdtemp(prefix="dflash-lab-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        return Path(folder)


def _file_name(label: str) -> str:
    kept = "".join(c if c.isalnum() or c in "-_." else "-" for c in label.removesuffix(".safetensors"))
    return kept.strip("-.")[:60] or "trace"


class Runs:
    """The current run of every browser session, by Gradio's session hash."""

    def __init__(self, store: TraceStore, engine: Engine) -> None:
        self._store = store
        self._engine = engine
        self._lock = threading.Lock()
        self._runs: dict[str, Run] = {}

    def prepare(self, session: str, request: GenerateRequest) -> Run:
        """A new run for `session`, queued; a former one is cancelled."""
        id = f"run-{secrets.token_hex(4)}"
        run = Run(request, self._engine, lambda trace, live: self._store.keep_run(id, trace, live).id)
        with self._lock:
            former, self._runs[session] = self._runs.get(session), run
        if former is not None:
            former.cancel()
        return run

    def get(self, session: str) -> Run | None:
        """The run of `session`, or None."""
        with self._lock:
            return self._runs.get(session)

    def close(self, session: str) -> None:
        """The session is over: end its run and forget it."""
        with self._lock:
            run = self._runs.pop(session, None)
        if run is not None:
            run.cancel()


def read_traces(paths: list[Path]) -> TraceStore:
    """A store with the example and the files at `paths`. Raises TraceError, naming the file."""
    store = TraceStore(example_trace())
    store.add(second_example(), "example")
    for path in paths:
        if not path.is_file():
            raise TraceError(f"expected a trace file, found none at {path}")
        store.open(path)
    return store
