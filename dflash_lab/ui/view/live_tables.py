"""A model card's tables: acceptance, and throughput by concurrency; one's own runs with what is published beside them.

A table is {title, note, columns, rows}, a row {name, cells}, a cell {value, detail, published}, all text, or None.
A published value stands beside a measured one, each with the speed-up over its own baseline; never one by the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dflash_lab.core.serve.compare import Cell, Comparison, Estimate
from dflash_lab.core.serve.published import BASELINE, DATASET_LABELS, PublishedTable, published_tables
from dflash_lab.core.serve.texts import VERDICTS
from dflash_lab.ui.view.live import settings_line

Table = dict[str, Any]


def card(comparison: Comparison | None, published: Sequence[PublishedTable], target: str | None) -> dict[str, Any]:
    """The tables of a target: of runs of one's own, if there are any, and of what is published of it.

    `missing` says which published numbers are not known; `others` are the published tables of other targets.
    """
    cells = comparison.cells if comparison else ()
    known = next((table for table in published if table.acceptance_length or table.throughput_tok_s), None)
    loads = {*(cell.load for cell in cells), *(known.throughput_tok_s if known else ())}
    tables = [_acceptance_table(cells, known), *(_throughput_table(cells, known, load) for load in sorted_loads(loads))]
    return {
        "target": target,
        "measured": comparison.hardware if comparison else None,
        "published": [published_head(table) for table in published],
        "missing": missing(published, target),
        "tables": [table for table in tables if table["rows"]],
        "texts": _texts(comparison) if comparison else [],
        "warnings": list(comparison.warnings) if comparison else [],
        "others": [_whole(table) for table in published_tables() if table not in published],
    }


def published_head(table: PublishedTable) -> dict[str, Any]:
    """Whose numbers a published table has, and how they were made."""
    tokens = f", at most {table.max_new_tokens} new tokens" if table.max_new_tokens else ""
    return {
        "target": table.target,
        "drafter": table.drafter,
        "hardware": table.hardware,
        "runtime": table.runtime,
        "settings": settings_line(table.block_size, table.sampling) + tokens,
        "source": table.source,
        "confidence": table.confidence,
        "known": bool(table.acceptance_length or table.throughput_tok_s),
    }


def datasets_of(table: PublishedTable) -> list[str]:
    """The data sets that a published table has numbers of."""
    rows = [*table.acceptance_length.values(), *(row for by in table.throughput_tok_s.values() for row in by.values())]
    return list(dict.fromkeys(name for row in rows for name in row))


def sorted_loads(loads: set[str]) -> list[str]:
    """Concurrencies in their order, then arrival rates."""
    return sorted(loads, key=lambda load: (not load.isdigit(), float(load.removesuffix("/s"))))


def acceptance_load(cells: Sequence[Cell]) -> str | None:
    """The lowest load at which acceptance was measured: the card gives it at concurrency 1."""
    return next(iter(sorted_loads({cell.load for cell in cells if cell.acceptance is not None})), None)


def load_words(load: str) -> str:
    """A load as the tables name it."""
    return f"concurrency {load}" if load.isdigit() else f"{load} arriving"


def estimate_text(estimate: Estimate | None, unit: str = "") -> str:
    """A value with its interval."""
    if estimate is None:
        return "–"
    interval = interval_text(estimate)
    return f"{estimate.value:.2f}{unit}" + (f" {interval}" if interval else "")


def interval_text(estimate: Estimate) -> str:
    """The 95 % interval; empty without one."""
    return "" if estimate.low is None else f"{estimate.low:.2f}..{estimate.high:.2f}"


def speedup_text(value: float | None, baseline: float | None) -> str:
    """Tokens per second, with its ratio to a baseline of the same table; empty if there is no value."""
    if value is None:
        return ""
    return f"{value:,.1f}" + (f" ({value / baseline:.2f}×)" if baseline else "")


def _acceptance_table(cells: Sequence[Cell], known: PublishedTable | None) -> Table:
    load = acceptance_load(cells)
    measured = {(cell.dataset, cell.label): cell for cell in cells if cell.load == load and cell.acceptance is not None}
    published = known.acceptance_length if known else {}

    def cell(dataset: str, method: str) -> dict[str, str] | None:
        mine, theirs = measured.get((dataset, method)), published.get(method, {}).get(dataset)
        estimate = mine.acceptance if mine else None
        if estimate is None and theirs is None:
            return None
        value, detail = (f"{estimate.value:.2f}", interval_text(estimate)) if estimate else ("", "")
        return {"value": value, "detail": detail, "published": "" if theirs is None else f"{theirs:.2f}"}

    at = f"measured at {load_words(load)}" if load and load != "1" else "at concurrency 1"
    note = f"mean over requests of completion tokens / verification steps, {at}, 95 % interval where measured"
    return _table("Acceptance length", note, measured, published, cell)


def _throughput_table(cells: Sequence[Cell], known: PublishedTable | None, load: str) -> Table:
    measured = {(cell.dataset, cell.label): cell for cell in cells if cell.load == load}
    published = known.throughput_tok_s.get(load, {}) if known else {}

    def cell(dataset: str, method: str) -> dict[str, str] | None:
        mine, theirs = measured.get((dataset, method)), published.get(method, {}).get(dataset)
        value, detail = _throughput_cell(mine)
        if not value and theirs is None:
            return None
        baseline = published.get(BASELINE, {}).get(dataset) if method != BASELINE else None
        return {"value": value, "detail": detail, "published": speedup_text(theirs, baseline)}

    note = "completion tokens / wall time, tok/s; times autoregressive, with its 95 % interval where measured"
    return _table(f"Throughput, {load_words(load)}", note, measured, published, cell)


def _throughput_cell(cell: Cell | None) -> tuple[str, str]:
    """Throughput with the speed-up over one's own autoregressive run; its interval, and how the throughput stands to a
    published one that was measured alike."""
    speed = cell.report.throughput_tok_s if cell else None
    if cell is None or speed is None:
        return "", ""
    value = f"{speed:,.1f}" + (f" ({cell.speedup.value:.2f}×)" if cell.speedup else "")
    words = [interval_text(cell.speedup)] if cell.speedup else []
    if cell.of_published is not None:
        words.append(f"{cell.of_published:.0%} of ◇")
    return value, " · ".join(filter(None, words))


def _table(
    title: str,
    note: str,
    measured: Mapping[tuple[str, str], Cell],
    published: Mapping[str, Mapping[str, float]],
    cell: Any,
) -> Table:
    """Methods in the published order, then one's own names; data sets in the card's order, then one's own."""
    methods = list(dict.fromkeys([BASELINE, *published, *(method for _, method in measured)]))
    told = {*published, *(method for _, method in measured)}
    datasets = {*(name for row in published.values() for name in row), *(name for name, _ in measured)}
    order = [*(name for name in DATASET_LABELS.values() if name in datasets)]
    order += sorted(datasets - set(order))
    columns = [method for method in methods if method in told]
    rows = [{"name": name, "cells": [cell(name, method) for method in columns]} for name in order]
    return {"title": title, "note": note, "columns": columns, "rows": rows}


def missing(published: Sequence[PublishedTable], target: str | None) -> list[str]:
    """Which published numbers of a target are not known, in words: an empty state that is no zero."""
    if not published:
        return [f"Nothing is published of {target} that is known here."] if target else []
    return [
        f"Of {table.target} on {table.hardware} the settings are known and the numbers are not: {table.confidence}. "
        "None are shown rather than guessed ones."
        for table in published
        if not (table.acceptance_length or table.throughput_tok_s)
    ]


def _texts(comparison: Comparison) -> list[str]:
    return [
        f"Greedy texts of {dataset}: {VERDICTS[verdict.verdict]}."
        for dataset, verdict in comparison.texts.items()
        if verdict.verdict != "not compared"
    ]


def _whole(table: PublishedTable) -> dict[str, Any]:
    """A published table of another target, to look at and not to compare with."""
    tables = [_acceptance_table((), table)]
    tables += [_throughput_table((), table, load) for load in sorted_loads(set(table.throughput_tok_s))]
    return {
        **published_head(table),
        "missing": missing([table], table.target),
        "tables": [item for item in tables if item["rows"]],
    }
