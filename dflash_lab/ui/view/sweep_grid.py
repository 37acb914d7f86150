"""A sweep's grid and its cells as the page and the notebook get them, and as a table that needs no script."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from dflash_lab.ui.view.sweep import METRIC_WORDS, colour, grid_cells, shown, slice_figures

Values = Mapping[str, Any]

SMALLER_IS_BETTER = ("ms_per_token", "draft_ms")
INK_TURNS = 0.47
"""Share of the scale of colours from which black reads better on it than white; either is above 4.5 to 1 there."""
BEST = "#D55E00"
STATUS_TEXT = {"failed": "failed", "missing": "not run"}
CELL = "padding:4px 10px;text-align:center;white-space:nowrap;"


def sweep_wire(report: Values, index: int) -> dict[str, Any]:
    """What the page draws of slice number `index` of a report: its grid, figures, and the tables of all slices."""
    grids = report["grids"]
    grid, own = grids[index], f"{grids[index]['label']} ({grids[index]['mode']}, n = {grids[index]['num_prompts']})"
    figures = [figure for figure in slice_figures(report, index) if figure["data"][0]["type"] != "heatmap"]
    return {
        "slices": slice_names(report),
        "slice": index,
        "grid": grid_wire(grid),
        # What they are of is said once, above the grid.
        "figures": [fig | {"title": html.unescape(fig["title"]).removesuffix(f", {own}")} for fig in figures],
        "tables": [table for table in report["tables"] if table["kind"] != "grid"],
        "warnings": report["warnings"],
        "commands": list(dict.fromkeys(run["command"] for run in report["runs"])),
    }


def slice_names(report: Values) -> list[str]:
    """A name for each grid of a report."""
    grids = report["grids"]
    about = [[grid["label"], grid["mode"], f"n = {grid['num_prompts']}", _place(grid)] for grid in grids]
    # What all have in common is said once, beside the grid.
    told = [0, *(i for i in range(1, 4) if len({parts[i] for parts in about}) > 1)]
    return [" · ".join(parts[i] for i in told) for parts in about]


def grid_wire(grid: Values) -> dict[str, Any]:
    """A grid as it is drawn: for each cell its key, status and words, and text and colours in each metric."""
    metrics = [name for name in METRIC_WORDS if grid["best"][name]]
    drawn = {name: _looks(grid, name) for name in metrics}
    cells = grid_cells(grid, metrics[0] if metrics else "mean_acceptance_length")
    columns = len(grid["candidate_counts"])
    flags: dict[str, None] = {}
    lines: list[list[dict[str, Any]]] = []
    for number, cell in enumerate(cells):
        i, j = divmod(number, columns)
        interval, own = grid["intervals"][i][j], grid["flags"][i][j] or []
        flags |= dict.fromkeys(own)
        made = {name: cell[name] for name in ("block_size", "num_candidates", "key", "status", "hover")}
        made |= {
            "interval": _between(interval) if interval else "",
            "flagged": bool(own),
            "looks": {name: drawn[name][number] for name in metrics},
        }
        lines = [*lines, []] if j == 0 else lines
        lines[-1].append(made)
    return {
        "label": grid["label"],
        "about": about(grid),
        "block_sizes": grid["block_sizes"],
        "candidate_counts": grid["candidate_counts"],
        "metrics": [{"id": name, "name": METRIC_WORDS[name]} for name in metrics],
        "cells": lines,
        "flags": list(flags),
    }


def _between(interval: Sequence[float]) -> str:
    """An interval in as many digits as tell its ends apart."""
    low, high = interval
    digits = 1 if high - low >= 0.2 else 2
    return f"{low:.{digits}f}–{high:.{digits}f}"


def about(grid: Values) -> str:
    """What holds for every cell of a grid."""
    how = {"replay": "replayed along the target's texts", "decode": "decoded"}[grid["mode"]]
    count = grid["num_prompts"]
    prompts = f"n = {count} prompt{'s' if count > 1 else ''} of up to {grid['max_new_tokens']} tokens"
    target = [] if grid["target"] == "bundled" else [grid["target"]]
    return ", ".join([how, prompts, *target, _place(grid)])


def _place(grid: Values) -> str:
    return f"{grid['device']} {grid['dtype']}"


def _looks(grid: Values, metric: str) -> list[dict[str, Any] | None]:
    """Text and colours of every cell, row by row; None where there is no value."""
    cells = grid_cells(grid, metric)
    values = [cell["value"] for cell in cells if cell["value"] is not None]
    least, most = min(values), max(values)
    looks: list[dict[str, Any] | None] = []
    for cell in cells:
        if cell["status"] != "done" or cell["value"] is None:
            looks.append(None)
            continue
        share = (cell["value"] - least) / (most - least) if most > least else 0.5
        share = 1 - share if metric in SMALLER_IS_BETTER else share
        looks.append({"text": cell["text"], "fill": colour(share), "ink": ink(share), "best": cell["best"]})
    return looks


def ink(share: float) -> str:
    """Black or white, whichever reads better on `colour(share)`."""
    return "#ffffff" if share < INK_TURNS else "#000000"


def cell_wire(row: Values) -> dict[str, Any]:
    """One cell in numbers, and its prompts, the longest acceptance first; `row` is one of results.jsonl."""
    prompts = sorted(row["per_prompt"], key=lambda prompt: -(prompt["mean_acceptance_length"] or 0))
    return {
        "key": row["key"],
        "title": f"block {row['block_size']}, {row['num_candidates']} candidates",
        "facts": [list(fact) for fact in _facts(row)],
        "flags": list(row["flags"]),
        "prompts": [
            {
                "id": prompt["prompt"],
                "category": prompt["category"],
                "length": shown(prompt["mean_acceptance_length"]),
                "steps": prompt["num_steps"],
            }
            for prompt in prompts
        ],
        "typical": _typical(row, prompts),
    }


def _typical(row: Values, prompts: Sequence[Values]) -> str | None:
    """The prompt whose acceptance length is nearest to the cell's own."""
    stepped = [prompt for prompt in prompts if prompt["mean_acceptance_length"] is not None]
    if not stepped:
        return None
    mean = row["mean_acceptance_length"]
    return min(stepped, key=lambda prompt: abs(prompt["mean_acceptance_length"] - mean))["prompt"]


def _facts(row: Values) -> list[tuple[str, str, str]]:
    """Name, value and meaning of what is known of a cell."""
    interval = row["interval"]
    between = f" ({interval[0]:.2f} to {interval[1]:.2f})" if interval else ""
    length = shown(row["mean_acceptance_length"])
    facts = [("acceptance length", length + between, "1 + accepted proposals, mean over steps; 95 % over prompts")]
    if row["best_path_acceptance_length"] is not None:
        bounds = f"{shown(row['argmax_acceptance_length'])} / {shown(row['best_path_acceptance_length'])}"
        facts.append(
            ("arg-max / best path", bounds, "had each position's best candidate, or the best path, been proposed")
        )
    rate = row["acceptance_rate"]
    facts.append(("acceptance rate", "–" if rate is None else f"{rate:.1%}", "of all proposals"))
    if row["tok_s"] is not None:
        token = f"{shown(row['tok_s'])} tok/s, {shown(row['ms_per_token'])} ms"
        facts.append(("speed, cost of a token", token, "acceptance length / step time, and its inverse"))
        phases = [shown(row[name]) for name in ("draft_ms", "select_ms", "verify_ms")]
        step = f"{shown(row['step_ms'])} ms = {' + '.join(phases)} + rest"
        facts.append(("a step", step, f"draft + select + verify + commit, over {row['cost_steps']} steps"))
    facts.append(("steps", f"{row['num_steps']:,} for {row['num_output_tokens']:,} tokens", "over all prompts"))
    if row.get("num_near_ties"):
        facts.append(("near ties", str(row["num_near_ties"]), "choices of this replay that rounding may turn"))
    return facts


def grid_html(grid: Values, metric: str = "mean_acceptance_length") -> str:
    """A grid as an HTML table for where no script runs; what colours say is said by characters as well."""
    wire = grid_wire(grid)
    head = "".join(f'<th scope="col" style="{CELL}">{count}</th>' for count in wire["candidate_counts"])
    lines = []
    for size, line in zip(wire["block_sizes"], wire["cells"], strict=True):
        cells = "".join(_cell_html(cell, metric) for cell in line)
        lines.append(f'<tr><th scope="row" style="{CELL}">{size}</th>{cells}</tr>')
    notes = ["★ the best", *wire["flags"]]
    return (
        f"<p><strong>{html.escape(METRIC_WORDS[metric])}</strong>, {html.escape(wire['label'])}: "
        f"{html.escape(wire['about'])}</p>"
        f'<table><thead><tr><th style="{CELL}">block size \\ candidates</th>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table><p>{html.escape('; '.join(notes))}</p>"
    )


def _cell_html(cell: Values, metric: str) -> str:
    look = cell["looks"].get(metric)
    if look is None:
        return f'<td style="{CELL}">{STATUS_TEXT.get(cell["status"], "–")}</td>'
    ring = f"outline:3px solid {BEST};outline-offset:-3px;" if look["best"] else ""
    text = f"★ {look['text']}" if look["best"] else look["text"]
    title = html.escape(cell["hover"])
    return f'<td style="{CELL}{ring}background:{look["fill"]};color:{look["ink"]}" title="{title}">{text}</td>'
