"""What the Ablations tab remembers: results that it may show, and what each browser session computes."""

from __future__ import annotations

import hashlib
import itertools
import secrets
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from dflash_lab.core.ablate.report import report
from dflash_lab.core.ablate.results import PLAN, ROWS, Results, Row, load_results
from dflash_lab.core.errors import DataError, RequestError
from dflash_lab.core.trace.schema import Trace
from dflash_lab.ui.app.run import Engine, Run
from dflash_lab.ui.app.session import TraceStore
from dflash_lab.ui.app.sweep_run import SweepRun
from dflash_lab.ui.view.opening import EXAMPLE_SWEEP

OWN_FOLDER = Path("sweeps")
"""Where sweeps that the page runs are kept, in the folder that the server was started in."""
TRAINED = {"selector": True, "conv": True, "layers": "all", "window": 0}
"""A drafter as it was trained."""


class SweepSource:
    """A folder of results, read again whenever it has changed."""

    def __init__(self, id: str, folder: Path, kind: str) -> None:
        """`kind`: `example`, `given`, `run` or `upload`."""
        self.id, self.folder, self.kind = id, folder, kind
        self._lock = threading.Lock()
        self._read: tuple[str, Results, dict[str, Any]] | None = None

    @property
    def label(self) -> str:
        """One line for the picker."""
        return "example" if self.kind == "example" else f"{self.kind} · {self.folder.name}"

    def version(self) -> str:
        """Changes whenever the files do."""
        stats = [file.stat() for name in (ROWS, PLAN) if (file := self.folder / name).is_file()]
        return " ".join(f"{stat.st_size}:{stat.st_mtime_ns}" for stat in stats)

    def results(self) -> Results:
        """The rows. Raises DataError."""
        return self._load()[0]

    def report(self) -> dict[str, Any]:
        """What the rows come to. Raises DataError."""
        return self._load()[1]

    def row(self, key: Any) -> Row | None:
        """The row of a cell that did not fail."""
        return next((row for row in self.results().rows if row["key"] == key and "error" not in row), None)

    def _load(self) -> tuple[Results, dict[str, Any]]:
        with self._lock:
            version = self.version()
            if self._read is None or self._read[0] != version:
                results = load_results(self.folder)
                self._read = version, results, report(results)
            return self._read[1:]


@dataclass(frozen=True)
class CellRun:
    """A prompt of a cell that is decoded again, for Inspect."""

    ask: Mapping[str, str]
    """Which: source, key and prompt."""
    run: Run
    """The decode."""


@dataclass
class Work:
    """What one browser session computes."""

    token: str
    """Name by which its page asks for it; nobody else knows it."""
    sweep: SweepRun | None = None
    """Its last sweep."""
    cell: CellRun | None = None
    """The cell it opened last."""

    def stop(self) -> None:
        """End all of it; finished cells stay."""
        if self.sweep is not None:
            self.sweep.stop()
        if self.cell is not None:
            self.cell.run.cancel()


class SweepStore:
    """All that the Ablations tab may show. Safe to use from several threads.

    Results come from folders named at the start, from those that the page made, from uploads; a page names them by id,
    never by path. A session has one sweep and one cell under way at most, and all share the engine's lock.
    """

    def __init__(
        self,
        paths: Sequence[Path] = (),
        load_cell: Callable[..., Any] | None = None,
        own_folder: Path = OWN_FOLDER,
    ) -> None:
        """`paths`: folders of results, or their results.jsonl. Raises DataError, naming the file.

        `load_cell(row, notify)` gives a cell's pair; by default core's, imported when a cell is opened.
        """
        self._lock = threading.RLock()
        self._sources: dict[str, SweepSource] = {}
        self._work: dict[str, Work] = {}
        self._recorded: dict[tuple[str, ...], str] = {}
        self._load_cell, self.own_folder = load_cell, own_folder
        self._count = itertools.count()
        self._pair: tuple[tuple[Any, ...], Any] | None = None
        for path in paths:
            self.open(path if path.is_dir() else path.parent, "given").report()
        self.given = bool(paths)
        self.example = self.open(EXAMPLE_SWEEP, "example")

    def open(self, folder: Path, kind: str) -> SweepSource:
        """The results in `folder`, registered; they may come later."""
        id = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:10]
        with self._lock:
            return self._sources.setdefault(id, SweepSource(id, folder, kind))

    def upload(self, files: Sequence[Path]) -> SweepSource:
        """Check uploaded files and register copies, since the server clears its uploads. Raises DataError."""
        rows = next((file for file in files if file.suffix == ".jsonl"), None)
        if rows is None:
            raise DataError(f"expected {ROWS}, alone or with {PLAN}, got {', '.join(file.name for file in files)}")
        folder = self._folder / f"{rows.stem}-{next(self._count)}"
        folder.mkdir()
        shutil.copyfile(rows, folder / ROWS)
        plan = next((file for file in files if file.suffix == ".json"), None)
        if plan is not None:
            shutil.copyfile(plan, folder / PLAN)
        SweepSource("", folder, "upload").report()
        return self.open(folder, "upload")

    def sources(self) -> list[SweepSource]:
        """All results: those given, then those uploaded or made here, the newest first, the example last."""
        own = self.own_folder.glob(f"*/{ROWS}")
        for file in sorted(own, key=lambda file: file.stat().st_mtime):
            self.open(file.parent, "run")
        with self._lock:
            found = [source for source in reversed(self._sources.values()) if (source.folder / ROWS).is_file()]
        order = {"given": 0, "upload": 1, "run": 1, "example": 2}
        return sorted(found, key=lambda source: order[source.kind])

    def get(self, id: Any) -> SweepSource | None:
        """The results called `id`, or None."""
        with self._lock:
            return self._sources.get(id) if isinstance(id, str) else None

    def opening(self) -> SweepSource:
        """What is shown before anyone chose: the first that was given, else the example."""
        with self._lock:
            return next((source for source in self._sources.values() if source.kind == "given"), self.example)

    def work(self, token: Any) -> Work | None:
        """What is computed under this name, or None."""
        with self._lock:
            return next((work for work in self._work.values() if work.token == token), None)

    def begin(self, session: str, run: SweepRun) -> Work:
        """Start `run` in a session, in place of what it ran before."""
        work = self._of(session)
        if work.sweep is not None:
            work.sweep.stop()
        work.sweep = run
        run.start()
        return work

    def open_cell(self, session: str, ask: Mapping[str, Any], engine: Engine, traces: TraceStore) -> Work | str:
        """Begin to decode a prompt of a cell, or give the id of its trace if that was done before.

        `ask`: source, key and prompt. Raises RequestError for what is not there, and DataError.
        """
        source, row = self._find(ask)
        prompt = ask["prompt"]
        name = (source.id, row["key"], prompt)
        known = self._recorded.get(name)
        if known is not None and traces.get(known) is not None:
            return known
        from dflash_lab.core.ablate.again import cell_request, find_prompt

        found = find_prompt(row, prompt, source.folder, elsewhere=source.kind != "upload")
        id = f"cell-{secrets.token_hex(4)}"

        def keep(trace: Trace, live: bool) -> str:
            kept = traces.keep_run(id, trace, live).id
            if not live and trace.header.status == "complete":
                self._recorded[name] = kept
            return kept

        own = Engine(lambda notify: self._cell_pair(row, engine, notify), engine.generate, engine.lock)
        run = Run(cell_request(row, found, source.results().runs), own, keep)
        work = self._of(session)
        if work.cell is not None:
            work.cell.run.cancel()
        work.cell = CellRun({"source": source.id, "key": row["key"], "prompt": prompt}, run)
        run.start()
        return work

    def judged(self, ask: Mapping[str, Any], trace: Trace) -> str:
        """Whether a trace of a cell is what its row says, in one sentence. Raises RequestError and DataError."""
        from dflash_lab.core.ablate.again import compare

        return compare(self._find(ask)[1], ask["prompt"], trace)

    def _find(self, ask: Mapping[str, Any]) -> tuple[SweepSource, Row]:
        source, prompt = self.get(ask.get("source")), ask.get("prompt")
        row = source.row(ask.get("key")) if source else None
        if source is None or row is None or all(each["prompt"] != prompt for each in row["per_prompt"]):
            raise RequestError("this cell is not in the results any more: choose another one")
        return source, row

    def _cell_pair(self, row: Row, engine: Engine, notify: Callable[[str], None]) -> Any:
        """Models of a cell: those of the Generate tab where they are the same, else its own, of which the last are
        kept. Called by one run at a time."""
        bundled = (row["target"], row["drafter"]) == ("bundled", "bundled")
        if bundled and all(row[name] == value for name, value in TRAINED.items()):
            return engine.pair(notify)
        name = tuple(row[key] for key in ("target", "drafter", *TRAINED))
        if self._pair is None or self._pair[0] != name:
            self._pair = None
            load = self._load_cell
            if load is None:
                from dflash_lab.core.ablate.again import load_cell as load
            self._pair = name, load(row, notify)
        return self._pair[1]

    def _of(self, session: str) -> Work:
        with self._lock:
            return self._work.setdefault(session, Work(secrets.token_hex(8)))

    def stop(self, session: str) -> None:
        """End what a session computes; finished cells stay."""
        self._of(session).stop()

    def close(self, session: str) -> None:
        """The session is over."""
        with self._lock:
            work = self._work.pop(session, None)
        if work is not None:
            work.stop()

    @cached_property
    def _folder(self) -> Path:
        """Where uploads are kept; removed with the store."""
        folder = tempfile.mkdtemp(prefix="dflash-lab-sweeps-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        return Path(folder)
