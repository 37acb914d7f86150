"""A trace as rows: one per verification step or one per position, as CSV, JSON, Markdown or dicts."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from dflash_lab.core.trace.metrics import StepAnalysis, step_analysis, trace_metrics
from dflash_lab.core.trace.schema import Trace
from dflash_lab.core.types import StepRecord


@dataclass(frozen=True)
class Table:
    """Named columns and rows of plain values; None is a value that was not recorded."""

    columns: tuple[str, ...]
    """Column names."""
    rows: tuple[tuple[Any, ...], ...]
    """Rows of numbers, strings or None, in the order of the columns."""

    def to_dicts(self) -> list[dict[str, Any]]:
        """One dict per row."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    def to_json(self) -> str:
        """A JSON array of objects."""
        return json.dumps(self.to_dicts(), allow_nan=False)

    def to_csv(self) -> str:
        """RFC 4180 with a header line. Text that a spreadsheet would run as a formula gets an apostrophe in front."""
        out = io.StringIO()
        writer = csv.writer(out)
        writer.writerow(self.columns)
        writer.writerows([_guarded(cell) for cell in row] for row in self.rows)
        return out.getvalue()

    def to_markdown(self) -> str:
        """A pipe table; fractions with three decimals, token text escaped so that it reads as it is."""
        lines = [self.columns, ["---"] * len(self.columns)]
        lines += [[_markdown(cell) for cell in row] for row in self.rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


_MARKUP = re.compile(r"[\\`*_\[\]<>&|~$#]")
"""What Markdown or the HTML it allows would not show as it is."""


class StepView(NamedTuple):
    """What a column of the step table may read."""

    trace: Trace
    """The whole trace, for token texts."""
    record: StepRecord
    """The step."""
    analysis: StepAnalysis
    """The step, explained."""


STEP_COLUMNS: dict[str, Callable[[StepView], Any]] = {
    "step": lambda view: view.record.index,
    "start": lambda view: view.record.start,
    "drafted": lambda view: view.analysis.num_drafted,
    "accepted": lambda view: view.analysis.num_accepted,
    "committed": lambda view: view.record.commit_length,
    "truncated": lambda view: view.record.truncated,
    "cause": lambda view: view.analysis.cause,
    "target_rank": lambda view: view.analysis.target_rank,
    "argmax_length": lambda view: view.analysis.argmax_length,
    "selected_length": lambda view: view.analysis.selected_length,
    "best_length": lambda view: view.analysis.best_length,
    "known": lambda view: view.analysis.known,
    "draft_ms": lambda view: view.record.timings.draft_ms,
    "select_ms": lambda view: view.record.timings.select_ms,
    "verify_ms": lambda view: view.record.timings.verify_ms,
    "commit_ms": lambda view: view.record.timings.commit_ms,
    "total_ms": lambda view: view.record.timings.total_ms,
    "text": lambda view: "".join(view.trace.token(token).text for token in view.record.committed_ids),
}
"""Columns of the step table: name and how a step gives its value."""

POSITION_COLUMNS = (
    "drafted_n",
    "survival",
    "conditional_rate",
    "conditional_n",
    "recall_at_1",
    "recall_at_c",
    "recall_n",
)
"""Columns of the position table after `position`, each a list by position of TraceMetrics."""


def step_table(trace: Trace, columns: Sequence[str] = tuple(STEP_COLUMNS)) -> Table:
    """One row per verification step, with the `columns` of STEP_COLUMNS asked for."""
    views = [StepView(trace, record, step_analysis(trace, i)) for i, record in enumerate(trace.steps)]
    return Table(tuple(columns), tuple(tuple(STEP_COLUMNS[name](view) for name in columns) for view in views))


def position_table(trace: Trace) -> Table:
    """One row per draft position, counted from 1: the anchor is not a position."""
    metrics = trace_metrics(trace)
    lists = [getattr(metrics, name) for name in POSITION_COLUMNS]
    rows = tuple((position, *values) for position, values in enumerate(zip(*lists, strict=True), start=1))
    return Table(("position", *POSITION_COLUMNS), rows)


def _guarded(cell: Any) -> Any:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t", "\r")) else cell


def _markdown(cell: Any) -> str:
    if cell is None:
        return ""
    if isinstance(cell, float):
        return f"{cell:.3f}"
    if not isinstance(cell, str):
        return str(cell)
    visible = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cell)
    return _MARKUP.sub(lambda match: f"&#{ord(match[0])};", visible)
