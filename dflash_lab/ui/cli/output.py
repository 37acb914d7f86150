"""The one sink of every command: text for people or one JSON document on stdout, everything else on stderr."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from dflash_lab.core.errors import RequestError
from dflash_lab.ui.view.text import printable

INTERRUPTED = 130
"""Exit code of a command that was stopped; what was finished is kept."""


@dataclass(frozen=True)
class Result:
    """What a command found."""

    document: Mapping[str, Any]
    """For scripts: printed as one line of JSON with --json."""
    text: str = ""
    """For people: printed without --json; empty if the command has streamed its text already."""
    exit_code: int = 0
    """0 done, 1 what was checked does not hold, 130 interrupted."""


class Output:
    """Where a command writes while it runs. `closed` turns true when the reader of stdout has gone."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        self.closed = False
        self._stdout = sys.stdout
        self.color = not as_json and sys.stdout.isatty() and "NO_COLOR" not in os.environ

    def write(self, text: str) -> None:
        """Text for people on stdout, as it comes; nothing with --json."""
        if not self.as_json:
            self._put(text)

    def note(self, text: str) -> None:
        """A line of progress, a hint or a summary, on stderr."""
        click.echo(text, err=True)

    def warn(self, text: str) -> None:
        """A line on stderr that starts with `warning:`."""
        click.echo(f"warning: {one_line(text)}", err=True)

    def show(self, result: Result) -> int:
        """Print `result` in the chosen form; returns the exit code."""
        if self.as_json:
            self._put(json_text(result.document) + "\n")
        elif result.text:
            self._put(result.text.rstrip("\n") + "\n")
        return INTERRUPTED if self.closed else result.exit_code

    @contextlib.contextmanager
    def progress(self, label: str, total: int) -> Iterator[Callable[[], None]]:
        """Gives a call that advances a bar by one; drawn on a terminal, nothing in a pipe."""
        if not sys.stderr.isatty():
            yield lambda: None
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(label, total=total)
            yield lambda: bar.advance(task)

    def _put(self, text: str) -> None:
        if self.closed:
            return
        try:
            self._stdout.write(text)
            self._stdout.flush()
        except BrokenPipeError:
            self.closed = True
            # The interpreter flushes stdout once more at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stdout.fileno())


def story(function: Callable[..., Result]) -> Callable[..., int]:
    """Give a command its --json option, its `Output` as first argument, and print the `Result` it returns."""

    @click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, everything else on stderr.")
    @functools.wraps(function)
    def command(as_json: bool, **options: Any) -> int:
        out = Output(as_json)
        # With --json nothing but the document may reach stdout, whatever a library prints.
        with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
            result = function(out, **options)
        return out.show(result)

    return command


def write_file(path: Path, text: str) -> None:
    """Write `text` to `path` whole or not at all. Raises RequestError."""
    partial = path.with_name(f".{path.name}.part")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        raise RequestError(f"cannot write {path}: {error.strerror}; nothing was written") from error
    finally:
        partial.unlink(missing_ok=True)


def json_text(document: Mapping[str, Any], indent: int | None = None) -> str:
    """`document` as JSON; a number that is not finite becomes null."""
    return json.dumps(_plain(document), ensure_ascii=False, allow_nan=False, indent=indent)


def one_line(text: object) -> str:
    """The text of an error or a warning, line breaks and runs of blanks as single blanks, safe in a terminal."""
    return printable(" ".join(str(text).split()))


def _plain(value: Any) -> Any:
    """JSON values: mappings and sequences in depth, a number that is not finite as null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
