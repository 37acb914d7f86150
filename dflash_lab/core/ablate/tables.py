"""A sweep's report as tables, and as text: Markdown for people, CSV for spreadsheets.

A table is {kind, title, head, lines, note}, all text.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Values = Mapping[str, Any]
Table = dict[str, Any]


def tables(report: Values) -> list[Table]:
    """Every table of a report that has a line."""
    makers = (_grids, _recommended, _contrasts, _costs, _categories, _agreement, _failed, _runs)
    return [table for make in makers for table in make(report) if table["lines"]]


BRIEF = ("grid", "recommended", "failed")
"""Kinds of tables that answer what a sweep asks."""


def markdown(report: Values, kinds: Sequence[str] = ()) -> str:
    """The report as Markdown, whole or only tables of these kinds."""
    parts = []
    for table in report["tables"]:
        if kinds and table["kind"] not in kinds:
            continue
        rule = [":--", *["--:"] * (len(table["head"]) - 1)]
        lines = ("| " + " | ".join(map(_cell, line)) + " |" for line in (table["head"], rule, *table["lines"]))
        parts += [f"### {table['title']}", "\n".join(lines), *([table["note"]] if table["note"] else [])]
    parts += ["\n".join(f"- {text}" for text in report["warnings"])] if report["warnings"] else []
    return "\n\n".join(parts) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def to_csv(report: Values) -> str:
    """One line for each cell."""
    rows = report["rows"]
    names = list(dict.fromkeys(name for row in rows for name in row))
    sink = io.StringIO()
    writer = csv.DictWriter(sink, names, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _plain(value) for name, value in row.items()})
    return sink.getvalue()


def _plain(value: Any) -> Any:
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else value


def _table(kind: str, title: str, head: Sequence[str], lines: Sequence[Sequence[str]], note: str = "") -> Table:
    return {"kind": kind, "title": title, "head": list(head), "lines": [list(line) for line in lines], "note": note}


def _number(value: float | None, digits: int = 2) -> str:
    """A number, or a dash where there is none."""
    return "–" if value is None else f"{value:.{digits}f}"


def _span(interval: Sequence[float] | None, digits: int = 2) -> str:
    """An interval, or nothing."""
    return "" if interval is None else f"{interval[0]:.{digits}f} to {interval[1]:.{digits}f}"


def _grids(report: Values) -> Iterator[Table]:
    for grid in report["grids"]:
        best, lines, flags = grid["best"]["mean_acceptance_length"], [], {}
        for i, size in enumerate(grid["block_sizes"]):
            cells = []
            for j, value in enumerate(grid["mean_acceptance_length"][i]):
                status = grid["status"][i][j]
                cells.append((_number(value) if status == "done" else status) + (" ★" if best == [i, j] else ""))
                flags |= dict.fromkeys(grid["flags"][i][j] or [])
            lines.append([str(size), *cells])
        title = f"{grid['label']}: acceptance length, {grid['num_prompts']} prompts, {grid['mode']}"
        head = ["block size \\ candidates", *map(str, grid["candidate_counts"])]
        yield _table("grid", title, head, lines, "; ".join(["★ the best", *flags]))


def _recommended(report: Values) -> Iterator[Table]:
    lines = [
        [
            item["label"] + (f", {item['category']}" if item["category"] else ""),
            item["mode"],
            str(item["block_size"]),
            str(item["num_candidates"]),
            _number(item["tok_s"], 1),
            _span(item["interval"], 1),
            _number(item["mean_acceptance_length"]),
            f"{item['share']:.0%}",
            ", ".join(map(str, item["close"] or [])) or "none",
            str(item["n"]),
        ]
        for item in report["recommended"]
    ]
    head = ["content", "mode", "block size", "candidates", "tok/s", "95 %", "acceptance", "share", "as good", "n"]
    note = (
        "tok/s = acceptance length / step time. Share: how many draws of prompts agree. As good: block sizes that "
        "cannot be told from it over these prompts."
    )
    yield _table("recommended", "Recommended block size", head, lines, note)


def _contrasts(report: Values) -> Iterator[Table]:
    lines = [
        [
            f"{item['axis']} {_value(item['value'])} instead of {_value(item['baseline'])}",
            item["label"],
            item["mode"],
            str(item["block_size"]),
            str(item["num_candidates"]),
            f"{item['difference']:+.3f}",
            _span(item["interval"], 3),
            str(item["n"]),
            "" if item["same_text"] else "texts differ",
        ]
        for item in report["contrasts"]
    ]
    head = ["change", "set", "mode", "block size", "candidates", "acceptance length", "95 %", "n", ""]
    yield _table("contrasts", "One change each, paired over prompts", head, lines)


def _value(value: Any) -> str:
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


def _costs(report: Values) -> Iterator[Table]:
    lines = []
    for curve in report["curves"]:
        for i, size in enumerate(curve["block_sizes"]):
            times = {name: values[i] for name, values in curve["costs"].items()}
            if times["step_ms"] is not None:
                own = [_number(times[name]) for name in ("draft_ms", "select_ms", "verify_ms", "step_ms")]
                speed = [_number(times["tok_s"], 1), _number(times["ms_per_token"])]
                lines.append([curve["label"], curve["mode"], str(size), *own, *speed])
    head = ["set", "mode", "block size", "draft ms", "select ms", "verify ms", "step ms", "tok/s", "ms per token"]
    yield _table("costs", "What a step costs, with the most candidates", head, lines)


def _categories(report: Values) -> Iterator[Table]:
    lines = [
        [
            item["category"],
            item["label"],
            item["mode"],
            f"{item['block_size']}, {item['num_candidates']}",
            _number(item["mean_acceptance_length"]),
            _span(item["interval"]),
            str(item["n"]),
        ]
        for item in report["categories"]
    ]
    head = ["category", "set", "mode", "block size, candidates", "acceptance length", "95 %", "n"]
    yield _table("categories", "By category", head, lines)


def _agreement(report: Values) -> Iterator[Table]:
    found = report["agreement"]
    if found is None:
        return
    lines = [
        ["cells equal, prompt by prompt", f"{found['num_equal']} of {found['num_cells']}"],
        ["prompts that differ", str(len(found["differences"]))],
        ["of them without a near tie", str(sum(item["explained"] is False for item in found["differences"]))],
        ["largest difference of an acceptance length", _number(found["largest_difference"], 4)],
    ]
    if found["speedup"]:
        lines += [
            ["seconds a cell, decoded", _number(found["decode_s_per_cell"])],
            ["seconds a cell, replayed", _number(found["replay_s_per_cell"], 3)],
            ["times faster", _number(found["speedup"], 1)],
        ]
    yield _table("agreement", "Replay against decode", ["", ""], lines, "Seconds of whole runs, loading included.")


def _failed(report: Values) -> Iterator[Table]:
    lines = [[cell_name(item), item["error"]] for item in report["failed"]]
    yield _table("failed", "Cells that failed", ["cell", "why"], lines)


def _runs(report: Values) -> Iterator[Table]:
    lines = [
        [
            run["command"],
            str(run["num_computed"]),
            _number(run["wall_s"], 1),
            f"{run['device'] or run['cpu']}, {run['threads'] or 1} threads",
            f"{(run['revision'] or 'no revision')[:8]}{' (changed)' if run['dirty'] else ''}",
            str(run["created"]),
        ]
        for run in report["runs"]
        if run["num_computed"]
    ]
    yield _table("runs", "Runs", ["command", "cells", "seconds", "machine", "revision", "started"], lines)


def cell_name(item: Values) -> str:
    """A cell in words."""
    size = f"block {item['block_size']}, {item['num_candidates']} candidates"
    return f"{item['dataset']}, {size}{'' if item['selector'] else ', no selector'}, {item['mode']}"
