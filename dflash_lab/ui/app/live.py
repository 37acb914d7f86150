"""What the Live tab remembers: runs it may show, and what each browser session watches or measures."""

from __future__ import annotations

import hashlib
import itertools
import math
import secrets
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from dflash_lab.core.errors import RunError, ServerError
from dflash_lab.core.serve.compare import check_alike, tabulate
from dflash_lab.core.serve.endpoint import Endpoint
from dflash_lab.core.serve.measure import Task, next_go, send
from dflash_lab.core.serve.probe import probe
from dflash_lab.core.serve.published import DATASET_LABELS, tables_of
from dflash_lab.core.serve.records import ServerInfo
from dflash_lab.core.serve.runfile import Run, RunReader
from dflash_lab.core.serve.watch import Job, Watch
from dflash_lab.ui.view.live_tables import card, sorted_loads
from dflash_lab.ui.view.live_view import View, run_view, watch_view
from dflash_lab.ui.view.opening import ASSETS

EXAMPLE_RUN = ASSETS / "example-run.jsonl"
"""A run on `live serve` on a CPU, which ships with the package."""

GSM8K_ALONE = ("gsm8k", "1")
"""Data set and load whose published values a server that is watched is shown beside, until the reader chooses."""

SILENT_S = 60.0
"""A run without an end that has not grown for so long is not opened first any more."""

Beside = tuple[str, str]


class Source(Protocol):
    """Something that the tab shows."""

    id: str

    @property
    def label(self) -> str:
        """One line for the picker."""

    def version(self) -> str:
        """Changes whenever `view` would."""

    def view(self, beside: Beside) -> View:
        """What the page draws."""


class RunSource:
    """A run in a file, read on while it is written."""

    def __init__(self, id: str, path: Path) -> None:
        """Raises RunError if `path` holds no run, or no header yet."""
        self.id = id
        self._reader = RunReader(path)
        self._lock = threading.Lock()
        self._drawn: tuple[str, View] | None = None
        self._problem: str | None = None

    @property
    def run(self) -> Run:
        """The run as far as it was read."""
        return self._reader.run

    @property
    def label(self) -> str:
        header = self.run.header
        words = [header.label, header.plan.name, header.server.hardware or "hardware not told"]
        return " · ".join((["example"] if self.run.path == EXAMPLE_RUN else []) + words)

    @property
    def ended(self) -> bool:
        """Whether it has an end, by what is in its file now."""
        if self.run.status == "running":
            self.version()
        return self.run.status != "running"

    @property
    def goes_on(self) -> bool:
        """Whether it is being written: one without an end that has not grown for long was left by a dead process."""
        age_s = time.time() - self.run.path.stat().st_mtime if self.run.path.exists() else math.inf
        return self.run.status == "running" and age_s < SILENT_S

    def version(self) -> str:
        with self._lock:
            if self._problem is None:
                try:
                    self._reader.poll()
                except RunError as error:
                    self._problem = str(error)
        return f"{self._reader.offset} {self._problem or ''}"

    def view(self, beside: Beside = GSM8K_ALONE) -> View:
        version = self.version()
        with self._lock:
            if self._drawn is None or self._drawn[0] != version:
                view = run_view(self.run)
                if self._problem is not None:
                    view |= {"state": "failed", "message": self._problem}
                self._drawn = version, view
            return self._drawn[1]


class WatchSource:
    """A server that is watched."""

    def __init__(self, id: str, watch: Watch) -> None:
        self.id, self._watch = id, watch

    @property
    def label(self) -> str:
        return f"watching {self._watch.url}"

    @property
    def info(self) -> ServerInfo | None:
        """Who answers; None before it has."""
        return self._watch.info

    def version(self) -> str:
        watch, snapshots = self._watch, self._watch.snapshots
        last = snapshots[-1].at_s if snapshots else 0.0
        return f"{last} {watch.job.state} {watch.trouble or ''} {watch.info is None}"

    def view(self, beside: Beside) -> View:
        watch, job = self._watch, self._watch.job
        message = job.message or watch.trouble
        view = watch_view(watch.info, watch.snapshots, watch.began_at_s, job.state, message, beside)
        return view | {"stoppable": not job.finished, "beside": list(beside), "choices": _choices(watch.info)}

    def stop(self) -> None:
        """End watching; what was seen stays."""
        self._watch.job.stop()


class BenchSource:
    """Runs that are being measured, one after another; shown is the one under way."""

    def __init__(
        self,
        id: str,
        store: LiveStore,
        url: str,
        tasks: Sequence[Task],
        folder: Path,
        model: str | None = None,
        label: str | None = None,
        api_key: str | None = None,
    ) -> None:
        """Begins at once."""
        self.id = id
        self._store, self._url, self._tasks, self._folder = store, url, tasks, folder
        self._model, self._label, self._api_key = model, label, api_key
        self._number = 0
        self._info: ServerInfo | None = None
        self.job = Job(self._measure)

    @property
    def label(self) -> str:
        return f"measuring {self._url}"

    @property
    def info(self) -> ServerInfo | None:
        """Who answers; None before it has."""
        return self._info

    @property
    def current(self) -> RunSource | None:
        """The run under way, or the last one; None before the first has begun."""
        return self._store.open(self._path(self._number)) if self._info else None

    def version(self) -> str:
        current = self.current
        return f"{self._number} {self.job.state} {current and current.version()} {self._info is None}"

    def view(self, beside: Beside) -> View:
        state, message, current = self.job.state, self.job.message, self.current
        if current is None:
            view = watch_view(self._info, (), 0.0, state, message, beside)
        else:
            view = dict(current.view())
            words = [f"run {self._number + 1} of {len(self._tasks)}"] if len(self._tasks) > 1 else []
            words += [message or view["message"], f"written to {self._path(self._number)}"]
            # A run that was given up in its warm-up has no end of its own.
            over = state == "failed" or (self.job.finished and view["state"] == "running")
            view |= {"message": " · ".join(words), "state": state if over else view["state"]}
            if self.job.finished and view["state"] != "complete":
                view["message"] += f" · to go on, add --out {self._folder} to the command"
        return view | {"stoppable": not self.job.finished}

    def stop(self) -> None:
        """Give up what is under way; what was answered stays in its file."""
        self.job.stop()

    def _path(self, number: int) -> Path:
        return self._folder / f"{self._tasks[number].plan.name}.jsonl"

    async def _measure(self) -> None:
        timeout = self._tasks[0].plan.timeout_s
        async with Endpoint(self._url, self._api_key, timeout) as endpoint:
            self._info = await probe(endpoint, self._model)
            for number, task in enumerate(self._tasks):
                self._number = number
                go = next_go(task, self._info, self._path(number), self._label)
                run = await send(endpoint, task, go)
                self._store.open(go.path)  # also when nobody looked meanwhile
                if run.status == "server lost":
                    raise ServerError(run.ends[-1].message or "the server no longer answers")
                if run.status != "complete":
                    return


class LiveStore:
    """All that the Live tab may show. Safe to use from several threads.

    Runs come from files named at the start, from folders named then (new files in them too), from uploads, and from
    what was measured here; a page names them by id, never by path.
    """

    def __init__(self, paths: Sequence[Path] = ()) -> None:
        """`paths`: run files, or folders of them. Raises RunError, naming the file."""
        self._lock = threading.RLock()
        self._runs: dict[str, RunSource] = {}
        self._sources: dict[str, WatchSource | BenchSource] = {}
        self._sessions: dict[str, WatchSource | BenchSource] = {}
        self._count = itertools.count()
        self._folders = [path for path in paths if path.is_dir()]
        self._cards: tuple[object, dict[str, Any]] | None = None
        for path in paths:
            if path.is_dir() and not any(path.glob("*.jsonl")):
                raise RunError(f"{path} holds no runs (.jsonl)")
            if not path.is_dir() and self.open(path, strict=True) is None:
                raise RunError(f"{path} holds no run")
        self.given = bool(paths)
        self.example = self.open(EXAMPLE_RUN)

    def open(self, path: Path, strict: bool = False) -> RunSource | None:
        """The run at `path`, registered; None if it is none (yet). Raises RunError instead if `strict`."""
        id = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:10]
        with self._lock:
            if id not in self._runs:
                try:
                    self._runs[id] = RunSource(id, path)
                except RunError:
                    if strict:
                        raise
                    return None
            return self._runs[id]

    def upload(self, path: Path) -> RunSource:
        """Check an uploaded file and register a copy, since the server clears its uploads. Raises RunError."""
        RunReader(path)
        kept = self._folder / f"{next(self._count)}-{path.name}"
        shutil.copyfile(path, kept)
        source = self.open(kept, strict=True)
        assert source is not None
        return source

    def runs(self) -> list[RunSource]:
        """All runs, the newest first, the example last."""
        for path in sorted(file for folder in self._folders for file in folder.glob("*.jsonl")):
            self.open(path)
        with self._lock:
            runs = [source for source in self._runs.values() if source is not self.example]
        return [*reversed(runs), *([self.example] if self.example else [])]

    def get(self, id: Any) -> Source | None:
        """What is called `id`, or None."""
        with self._lock:
            return self._sources.get(id) or self._runs.get(id)

    def opening(self) -> Source | None:
        """What is shown before anyone chose: a run that goes on, else the newest, else the example."""
        runs = self.runs()
        return next((source for source in runs if source.goes_on), runs[0] if runs else None)

    def watch(self, session: str, watch: Watch) -> WatchSource:
        """Show `watch` in a session, in place of what it watched or measured before."""
        return self._begin(session, WatchSource(f"watch-{secrets.token_hex(8)}", watch))

    def measure(self, session: str, url: str, tasks: Sequence[Task], folder: Path, **options: Any) -> BenchSource:
        """Measure in a session, in place of what it watched or measured before; `options` are BenchSource's."""
        self.stop(session)
        return self._begin(session, BenchSource(f"bench-{secrets.token_hex(8)}", self, url, tasks, folder, **options))

    def stop(self, session: str) -> None:
        """End what a session watches or measures; what there is stays to be looked at."""
        with self._lock:
            source = self._sessions.get(session)
        if source is not None:
            source.stop()

    def close(self, session: str) -> None:
        """The session is over."""
        self.stop(session)
        with self._lock:
            source = self._sessions.pop(session, None)
            if source is not None:
                self._sources.pop(source.id, None)

    def card(self, source: Source | None) -> tuple[str, dict[str, Any]]:
        """The card's tables of what a source measures: all runs that have ended and were made alike; with a version."""
        with self._lock:
            lead, info = self._lead(source)
            target = (info.target or info.model) if info else None
            ended = [other for other in self.runs() if other.ended]
            same = [other.run for other in ended if target and _target(other.run) == target]
            alike, left_out = _alike(lead.run, same) if lead else ([], [])
            key = (target, tuple((str(run.path), len(run.attempts)) for run in alike), tuple(left_out))
            if self._cards is None or self._cards[0] != key:
                tables = tables_of(target) if target else ()
                made = card(tabulate(alike) if alike else None, tables, target)
                self._cards = key, {**made, "left_out": left_out}
            return hashlib.sha256(repr(key).encode()).hexdigest()[:10], self._cards[1]

    def _lead(self, source: Source | None) -> tuple[RunSource | None, ServerInfo | None]:
        """The run that others must be like, and the server whose target the tables are of."""
        if isinstance(source, BenchSource):
            return source.current, source.info
        if isinstance(source, RunSource):
            return source, source.run.header.server
        info = source.info if isinstance(source, WatchSource) else None
        here = (run for run in self.runs() if info and _same_place(run.run.header.server, info))
        return next(here, None), info

    def _begin(self, session: str, source: Any) -> Any:
        self.close(session)
        with self._lock:
            self._sources[source.id] = self._sessions[session] = source
        return source

    @cached_property
    def _folder(self) -> Path:
        """Where uploads are kept; removed with the store."""
        folder = tempfile.mkdtemp(prefix="dflash-lab-runs-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        return Path(folder)


def _choices(info: ServerInfo | None) -> list[list[tuple[str, str]]]:
    """Data sets and loads of which something is published of a server's target, with their names; empty of nothing."""
    tables = tables_of(info.target or info.model) if info else ()
    loads = sorted_loads({load for table in tables for load in table.throughput_tok_s})
    return [list(DATASET_LABELS.items()), [(load, load) for load in loads]] if loads else []


def _alike(lead: Run, runs: Sequence[Run]) -> tuple[list[Run], list[str]]:
    """Those of `runs` that can stand in one table with `lead`, it first, and why each of the others cannot."""
    alike: list[Run] = []
    left_out = []
    for run in sorted(runs, key=lambda run: run is not lead):
        try:
            check_alike([lead, *alike, run])
        except RunError as error:
            left_out.append(f"Left out, {error}")
        else:
            alike.append(run)
    return alike, left_out


def _target(run: Run) -> str:
    return run.header.server.target or run.header.server.model


def _same_place(one: ServerInfo, other: ServerInfo) -> bool:
    return (one.target, one.hardware_text) == (other.target, other.hardware_text)
