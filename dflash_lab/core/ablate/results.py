"""A sweep's folder: `sweep.json` says what was asked for and where it ran, `results.jsonl` has a row for each cell.

Rows are appended whole and flushed, so that a run may be killed at any time. A row names its cell by a hash of all
that decides its numbers (settings, prompts, contents of target and drafter); what has a row is not computed again.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_lab.core.errors import DataError, RequestError

SCHEMA_VERSION = 1
"""Of rows; part of every cell's hash."""
ROWS, PLAN, TEXTS = "results.jsonl", "sweep.json", "texts"
"""Files of a sweep's folder, and its folder of greedy texts."""
SAMPLES, SAMPLE_BYTES = 64, 1 << 16
"""How much of a weight file goes into its fingerprint: so many pieces of so many bytes, evenly spread."""

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Results:
    """What a sweep's folder holds."""

    folder: Path
    """Where."""
    rows: tuple[Row, ...]
    """The last row of each cell, in the order of the file; a row with `error` is of a cell that failed."""
    runs: tuple[Mapping[str, Any], ...]
    """Every call of `sweep run`: its sweep, provenance, and how long it took."""
    warnings: tuple[str, ...] = ()
    """What was wrong with the files, but could be read over."""


def load_results(folder: Path) -> Results:
    """The rows of a sweep's folder, without a half-written last one. Raises DataError."""
    file = folder / ROWS
    if not file.is_file():
        raise DataError(f"no {ROWS} in {folder}: expected a folder that `dflash-lab sweep run --out` has made")
    rows, cut = _read_rows(file)
    warnings = (f"the last row of {file} is half-written and was left out: run the sweep again",) if cut else ()
    latest = {row["key"]: row for row in rows}
    return Results(folder, tuple(latest.values()), tuple(_read_runs(folder)), warnings)


def _read_rows(file: Path) -> tuple[list[Row], int]:
    """Whole rows, and how many bytes behind them belong to none."""
    raw = file.read_bytes()
    whole = raw[: raw.rfind(b"\n") + 1]
    rows = []
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            row = json.loads(line)
            version = row["schema_version"]
            row["key"]
        except (ValueError, KeyError, TypeError):
            raise DataError(f"{file}, row {number}: not a row of a sweep; remove it, or name another folder") from None
        if version != SCHEMA_VERSION:
            raise DataError(f"{file}, row {number} has schema_version {version}, this version reads {SCHEMA_VERSION}")
        rows.append(row)
    return rows, len(raw) - len(whole)


def _read_runs(folder: Path) -> list[Mapping[str, Any]]:
    try:
        return json.loads((folder / PLAN).read_text(encoding="utf-8"))["runs"]
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError):
        raise DataError(f"{folder / PLAN} is not a sweep's plan: remove it; the rows are kept elsewhere") from None


class Writer:
    """Appends rows and keeps the plan; one process at a time."""

    def __init__(self, folder: Path, sink: Any, results: Results) -> None:
        self._folder, self._sink, self._runs = folder, sink, [*results.runs]
        self.results = results
        self.done = {row["key"] for row in results.rows if "error" not in row}

    def append(self, row: Row) -> None:
        """Write a row, whole, to the disk."""
        self._sink.write(json.dumps(row, ensure_ascii=False, allow_nan=False).encode() + b"\n")
        self._sink.flush()
        os.fsync(self._sink.fileno())

    def begin(self, run: Mapping[str, Any]) -> None:
        """Note a call of `sweep run`."""
        self._runs.append(run)
        self._save()

    def end(self, outcome: Mapping[str, Any]) -> None:
        """Note what came of it."""
        self._runs[-1] = {**self._runs[-1], **outcome}
        self._save()

    def _save(self) -> None:
        partial = self._folder / f".{PLAN}.part"
        document = {"schema_version": SCHEMA_VERSION, "runs": self._runs}
        partial.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        partial.replace(self._folder / PLAN)


@contextmanager
def open_results(folder: Path) -> Iterator[Writer]:
    """Go on with the folder, or begin it. A half-written last row is cut off. Raises RequestError or DataError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        sink = open(folder / ROWS, "ab")  # noqa: SIM115 (closed below)
    except OSError as error:
        raise RequestError(f"cannot write to {folder}: {error.strerror}") from None
    with sink:
        try:
            fcntl.flock(sink, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RequestError(f"another sweep is writing to {folder}: wait for it, or name another folder") from None
        _, cut = _read_rows(folder / ROWS)
        results = load_results(folder)
        if cut:
            sink.truncate(sink.tell() - cut)
        yield Writer(folder, sink, results)


def cell_key(parts: Mapping[str, Any]) -> str:
    """A hash of everything that decides a cell's numbers."""
    text = json.dumps({"schema_version": SCHEMA_VERSION, **parts}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def fingerprint(folder: Path) -> str:
    """A hash of a model's configuration whole and its weights in samples: retrained weights differ everywhere."""
    digest = hashlib.sha256()
    files = sorted((*folder.glob("config.json"), *folder.glob("generation_config.json"), *folder.glob("*.safetensors")))
    if not files:
        raise DataError(f"no config.json and no *.safetensors in {folder}: expected a model's folder")
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.name} {size}\n".encode())
        with open(file, "rb") as data:
            for start in _sample_starts(size):
                data.seek(start)
                digest.update(data.read(SAMPLE_BYTES))
    return digest.hexdigest()[:16]


def _sample_starts(size: int) -> Iterable[int]:
    if size <= SAMPLES * SAMPLE_BYTES:
        return range(0, size, SAMPLE_BYTES)
    last = size - SAMPLE_BYTES
    return (last * i // (SAMPLES - 1) for i in range(SAMPLES))
