"""A run as a file of JSON lines, written while it runs, read while it is written, continued after an interruption.

The first line is the header; then come segments, requests and snapshots as they happen; an `end` line closes a segment.

    {"kind": "header", "schema": 1, "label": ..., "server": {...}, "plan": {...}, ...}   a RunHeader
    {"kind": "warmup", ...}      a RequestRecord that is not measured
    {"kind": "segment", "number": 0, "begin_at_s": ...}   the measured requests begin; one more each time it is resumed
    {"kind": "request", ...}     a RequestRecord, in the order in which they ended
    {"kind": "snapshot", ...}    a Snapshot of the server's own counters
    {"kind": "end", ...}         a RunEnd; without one the run goes on, or its process died

A last line that is not whole yet is left for the next look. Everything else must parse.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from dflash_lab.core.errors import RunError
from dflash_lab.core.serve.records import (
    LoadPlan,
    RequestRecord,
    RunEnd,
    RunHeader,
    ServerInfo,
    ServerStats,
    Snapshot,
)

SCHEMA = 1
"""Version of the format; a newer file is refused."""

_NESTED = {
    RunHeader: {"server": ServerInfo, "plan": LoadPlan},
    RequestRecord: {"stats": ServerStats},
}


@dataclass(frozen=True)
class Segment:
    """A part of a run that went on without interruption."""

    number: int
    """From 0."""
    begin_at_s: float
    """When its first measured request was sent, Unix seconds."""


@dataclass
class Run:
    """A run as far as it is written. It grows while `RunReader` reads on."""

    path: Path
    """The file."""
    header: RunHeader
    """What is the same for all of it."""
    segments: list[Segment] = field(default_factory=list)
    """Its parts."""
    warmups: list[RequestRecord] = field(default_factory=list)
    """Requests before the measured ones."""
    attempts: list[RequestRecord] = field(default_factory=list)
    """Every measured request in the order of their ends; one that was sent again has several."""
    snapshots: list[Snapshot] = field(default_factory=list)
    """The server's counters over time."""
    ends: list[RunEnd] = field(default_factory=list)
    """How each segment ended."""

    @property
    def status(self) -> str:
        """`running` (or its process died), `complete`, `interrupted` or `server lost`."""
        return self.ends[-1].status if len(self.ends) == len(self.segments) and self.ends else "running"

    @property
    def requests(self) -> list[RequestRecord]:
        """The last attempt of each prompt, in the plan's order."""
        last = {record.index: record for record in self.attempts}
        return [last[index] for index in sorted(last)]

    @property
    def missing(self) -> list[int]:
        """Prompts that have no answer yet: not sent, interrupted by us, or lost with the server."""
        open_kinds = {"cancelled"} if self.status != "server lost" else {"cancelled", "connection", "cut"}
        settled = {record.index for record in self.requests if record.failure not in open_kinds}
        return [index for index in range(self.header.plan.num_prompts) if index not in settled]


class RunReader:
    """Reads a run on, line by line, while it is written."""

    def __init__(self, path: Path) -> None:
        """Reads what is there. Raises RunError if it is not a run or its header is not written yet."""
        self._offset = self._line = 0
        self._path = path
        lines = self._new_lines()
        if not lines:
            raise RunError(f"{path} holds no run: expected a header as its first line")
        self.run = Run(path, _header(path, lines[0]))
        self._take(lines[1:])

    def poll(self) -> bool:
        """Read what was written since; True if there was anything. Raises RunError."""
        lines = self._new_lines()
        self._take(lines)
        return bool(lines)

    @property
    def offset(self) -> int:
        """Bytes read: the end of the last whole line."""
        return self._offset

    def _new_lines(self) -> list[dict[str, Any]]:
        try:
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                data = file.read()
        except OSError as error:
            raise RunError(f"cannot read the run {self._path}: {error.strerror}") from error
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        found = []
        for text in whole.splitlines():
            self._line += 1
            try:
                value = json.loads(text)
            except ValueError:  # broken JSON, or bytes that are not UTF-8
                value = None
            if not isinstance(value, dict) or "kind" not in value:
                raise RunError(f"{self._path}, line {self._line}: expected a JSON object with a kind; not a run's line")
            found.append(value)
        return found

    def _take(self, lines: list[dict[str, Any]]) -> None:
        run = self.run
        for line in lines:
            kind = line.pop("kind")
            match kind:
                case "request":
                    run.attempts.append(_load(RequestRecord, line, self._path))
                case "warmup":
                    run.warmups.append(_load(RequestRecord, line, self._path))
                case "snapshot":
                    run.snapshots.append(_load(Snapshot, line, self._path))
                case "segment":
                    run.segments.append(_load(Segment, line, self._path))
                case "end":
                    run.ends.append(_load(RunEnd, line, self._path))
                case _:
                    raise RunError(f"{self._path}: unknown kind of line {kind!r}; written by a newer dflash-lab?")


def read_run(path: Path) -> Run:
    """A run as far as it is written. Raises RunError."""
    return RunReader(path).run


class RunWriter:
    """Appends lines to a run, each whole and at once."""

    def __init__(self, path: Path, header: RunHeader | None = None) -> None:
        """Begin a run with `header`, or continue the one at `path`: a line that was cut off is cut away.

        Raises RunError if the file cannot be written, or is there although a header was given.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if header is None:
                end = RunReader(path).offset
                self._file = open(path, "r+b")  # noqa: SIM115 - closed by __exit__
                self._file.truncate(end)
                self._file.seek(end)
            else:
                self._file = open(path, "xb")  # noqa: SIM115
        except OSError as error:
            raise RunError(f"cannot write the run {path}: {error.strerror}") from error
        if header is not None:
            self.write("header", header, schema=SCHEMA)

    def write(self, kind: str, record: Any, **more: Any) -> None:
        """Append one record as a line of `kind`. Raises RunError."""
        line = {"kind": kind, **more, **dataclasses.asdict(record)}
        try:
            self._file.write(json.dumps(line, ensure_ascii=False, allow_nan=False).encode() + b"\n")
            self._file.flush()
        except OSError as error:
            raise RunError(f"cannot go on writing the run {self._file.name}: {error.strerror}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()


def _header(path: Path, line: dict[str, Any]) -> RunHeader:
    if line.pop("kind") != "header":
        raise RunError(f"{path} is not a run: expected a header as its first line")
    schema = line.pop("schema", None)
    if schema != SCHEMA:
        raise RunError(f"{path} has run schema {schema}, this dflash-lab reads {SCHEMA}; read it with a newer version")
    return _load(RunHeader, line, path)


def _load(record: type, values: Mapping[str, Any], path: Path) -> Any:
    """A record from JSON values: lists become tuples, nested records are made."""
    nested = _NESTED.get(record, {})
    try:
        return record(
            **{
                name: _load(nested[name], value, path) if name in nested and value is not None else _tuples(value)
                for name, value in values.items()
            }
        )
    except TypeError as error:
        raise RunError(f"{path}: a line does not fit {record.__name__} ({error})") from None


def _tuples(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_tuples(item) for item in value)
    return value
