"""What a sweep's rows come to, as plain JSON values: grids, curves, contrasts, costs, recommendations.

Everything that is drawn or printed is computed here once; tables, pages and widgets only lay it out. Rows are compared
on the same prompts, drawn in the same way for both sides.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from dflash_lab.core.ablate.agreement import agreement
from dflash_lab.core.ablate.results import Results, Row
from dflash_lab.core.ablate.tables import tables
from dflash_lab.core.trace.bootstrap import draw_prompts, drawn_lengths, interval, pooled_length

SLICE = (
    "mode", "target", "dataset", "drafter", "selector", "conv", "layers", "window", "temperature",
    "num_prompts", "max_new_tokens", "device", "dtype",
)  # fmt: skip
"""What all cells of a block size by candidates grid have in common."""
GRID = ("block_size", "num_candidates")
"""What they differ in."""
TRAINED = {"conv": True, "layers": "all", "window": 0}
"""Axes that change the drafter, as it was trained."""
CONTRASTS = ("selector", "conv", "layers", "window", "drafter")
"""Axes whose values are compared in pairs; temperature changes the text and is none of them."""
METRICS = {
    "mean_acceptance_length": "acceptance length",
    "tok_s": "tok/s",
    "ms_per_token": "ms per token",
    "draft_ms": "draft ms",
}
"""What a grid can show; the larger the better, but for milliseconds."""

Values = dict[str, Any]


def report(results: Results) -> Values:
    """Everything about a sweep's folder; see the functions here for each part."""
    rows, warnings = _current(results)
    done = [row for row in rows if "error" not in row]
    slices = _grouped(done, SLICE)
    found = {
        "folder": str(results.folder),
        "runs": [_run(run) for run in results.runs],
        "num_rows": len(done),
        "failed": [_cell(row) | {"error": row["error"]} for row in rows if "error" in row],
        "warnings": [*results.warnings, *warnings],
        "grids": [grid(own, rows, results.runs) for own in slices],
        "curves": [curves(own) for own in slices],
        "contrasts": list(contrasts(done)),
        "categories": [line for own in slices for line in categories(own)],
        "recommended": list(recommended(done)),
        "agreement": agreement(done, results.runs),
        "rows": [_flat(row) for row in done],
    }
    return {**found, "tables": tables(found)}


def _current(results: Results) -> tuple[list[Row], list[str]]:
    """The newest row of each visible cell: one of an older drafter under the same name is not shown beside it."""
    newest: dict[tuple, Row] = {}
    for row in results.rows:
        name = tuple(row[key] for key in (*SLICE, *GRID))
        newest.pop(name, None)
        newest[name] = row
    older = len(results.rows) - len(newest)
    return [*newest.values()], [f"{older} rows are of an older drafter, target or prompts: left out"] if older else []


def _cell(row: Row) -> Values:
    return {name: row[name] for name in ("key", *SLICE, *GRID)}


def _run(run: Mapping[str, Any]) -> Values:
    made = run.get("provenance", {})
    keys = ("command", "num_cells", "num_computed", "num_skipped", "num_failed", "interrupted", "wall_s")
    about = {name: made.get(name) for name in ("created", "revision", "dirty", "cpu", "cores", "threads", "device")}
    return {**{name: run.get(name) for name in keys}, "mode": run["sweep"]["mode"], **about}


def _flat(row: Row) -> Values:
    """A row without what is kept by prompt, position or step."""
    return {name: value for name, value in row.items() if not isinstance(value, list) or name in ("interval", "flags")}


def label(row: Row) -> str:
    """What a row's slice is, in words: the prompt set, and whatever is not as trained."""
    parts = [_short(row["dataset"])]
    if row["drafter"] != "bundled":
        parts.append(_short(row["drafter"]))
    parts += [f"no {name}" for name in ("selector", "conv") if not row[name]]
    parts += [f"layers {row['layers']}"] if row["layers"] != "all" else []
    parts += [f"window {row['window']}"] if row["window"] else []
    parts += [f"temperature {row['temperature']:g}"] if row["temperature"] else []
    return " · ".join(parts)


def _short(name: str) -> str:
    """The last part of a path or of a hub id."""
    return name.rstrip("/").rsplit("/", 1)[-1]


def _slice(rows: Sequence[Row]) -> Values:
    return {"label": label(rows[0]), **{name: rows[0][name] for name in SLICE}}


def grid(rows: Sequence[Row], every: Sequence[Row], runs: Iterable[Mapping[str, Any]]) -> Values:
    """Block size by candidates of one slice, as matrices `[block size][num_candidates]`; None where nothing ran.

    `status` is `done`, `failed` or `missing`; `best` names, for each metric, the place of the best value.
    """
    own = _slice(rows)
    failed = {
        (row["block_size"], row["num_candidates"])
        for row in every
        if "error" in row and all(row[name] == own[name] for name in SLICE)
    }
    asked = [run["sweep"] for run in runs if _asks(run["sweep"], own)]
    axes = []
    for axis in GRID:
        values = {row[axis] for row in rows} | {value for sweep in asked for value in sweep[axis]}
        axes.append(sorted(values | {place[len(axes)] for place in failed}))
    found = {(row["block_size"], row["num_candidates"]): row for row in rows}

    def matrix(name: str) -> list[list[Any]]:
        return [[found[b, c].get(name) if (b, c) in found else None for c in axes[1]] for b in axes[0]]

    metrics = {name: matrix(name) for name in METRICS}
    return {
        **own,
        "block_sizes": axes[0],
        "candidate_counts": axes[1],
        "status": [
            ["done" if (b, c) in found else "failed" if (b, c) in failed else "missing" for c in axes[1]]
            for b in axes[0]
        ],
        **metrics,
        "intervals": matrix("interval"),
        "n": matrix("num_prompts"),
        "keys": matrix("key"),
        "flags": matrix("flags"),
        "best": {name: _best(values, name.endswith("ms") or name.startswith("ms")) for name, values in metrics.items()},
    }


def _asks(sweep: Mapping[str, Any], own: Values) -> bool:
    """Whether a sweep asked for this slice's cells."""
    axes = all(own[name] in sweep[name] for name in ("dataset", "drafter", "layers", "window", "temperature"))
    open_axes = all(not sweep[name] or own[name] in sweep[name] for name in ("selector", "conv"))
    return axes and open_axes and all(sweep[name] == own[name] for name in ("mode", "num_prompts", "max_new_tokens"))


def _best(values: list[list[Any]], small: bool) -> list[int] | None:
    """Row and column of the best value."""
    places = [(value, [i, j]) for i, line in enumerate(values) for j, value in enumerate(line) if value is not None]
    return (min if small else max)(places, key=lambda place: place[0])[1] if places else None


def curves(rows: Sequence[Row]) -> Values:
    """By block size: acceptance by position, recall by candidates, the three lengths, costs.

    Lines by block size take the row with the most candidates. `recall` is over all positions of the steps.
    """
    sizes = sorted({row["block_size"] for row in rows})
    lines = {size: sorted((r for r in rows if r["block_size"] == size), key=_candidates) for size in sizes}
    widest = {size: own[-1] for size, own in lines.items()}
    names = ("survival", "conditional_rate", "conditional_n", "recall_at_1", "recall_at_c", "recall_n")
    lengths = ("argmax_acceptance_length", "mean_acceptance_length", "best_path_acceptance_length")
    times = ("draft_ms", "select_ms", "verify_ms", "commit_ms", "step_ms", "tok_s", "ms_per_token")
    return {
        **_slice(rows),
        "block_sizes": sizes,
        "positions": [
            {"block_size": size, "num_candidates": _candidates(row), **{name: row[name] for name in names}}
            for size, row in widest.items()
        ],
        "recall": [
            {
                "block_size": size,
                "candidate_counts": [_candidates(row) for row in own],
                "recall": [_mean_recall(row) for row in own],
            }
            for size, own in lines.items()
        ],
        "lengths": [
            {
                "block_size": size,
                "candidate_counts": [_candidates(row) for row in own],
                **{name: [row[name] for row in own] for name in lengths},
                "intervals": [row["interval"] for row in own],
            }
            for size, own in lines.items()
        ],
        "costs": {name: [widest[size][name] for size in sizes] for name in times},
    }


def _candidates(row: Row) -> int:
    return row["num_candidates"]


def _mean_recall(row: Row) -> float | None:
    """How often the wanted token is a candidate, over all positions."""
    if not row["recall_n"] or not sum(row["recall_n"]):
        return None
    hits = sum((hit or 0.0) * n for hit, n in zip(row["recall_at_c"], row["recall_n"], strict=True))
    return hits / sum(row["recall_n"])


def _totals(row: Row, prompts: Sequence[str] | None = None) -> np.ndarray:
    """`[n, (accepted, steps)]` of a row's prompts, or of some of them in this order."""
    by_id = {prompt["prompt"]: (prompt["num_accepted"], prompt["num_steps"]) for prompt in row["per_prompt"]}
    return np.array([by_id[name] for name in prompts or by_id], dtype=float).reshape(-1, 2)


def _draws(count: int) -> np.ndarray:
    return draw_prompts(count, np.random.default_rng(0))


def contrasts(rows: Sequence[Row]) -> Iterator[Values]:
    """Pairs of rows that differ in one axis: acceptance length of `value` less that of `baseline`, with interval.

    The selector's lift is the pair of its axis. The baseline is the drafter as it was trained, of drafters the first.
    Rows above temperature 0 are left out, for their texts are not the same; `same_text` is false where greedy texts
    are not either.
    """
    greedy = [row for row in rows if not row["temperature"]]
    for axis in CONTRASTS:
        for group in _grouped(greedy, [name for name in (*SLICE, *GRID) if name != axis]):
            of = {row[axis]: row for row in group}
            base = _baseline(axis, list(of))
            for value, row in of.items():
                if value != base:
                    yield _contrast(axis, row, of[base])


def _baseline(axis: str, values: list[Any]) -> Any:
    """What the other values of an axis are compared with: without the selector, else as trained, else the first."""
    if axis == "selector" and False in values:
        return False
    trained = TRAINED.get(axis)
    return trained if trained in values else values[0]


def _contrast(axis: str, row: Row, base: Row) -> Values:
    prompts = [prompt["prompt"] for prompt in row["per_prompt"]]
    ours, theirs = _totals(row), _totals(base, prompts)
    draws = _draws(len(prompts))
    return {
        "axis": axis,
        "value": row[axis],
        "baseline": base[axis],
        "label": label(row),
        **_cell(row),
        "n": len(prompts),
        "difference": float(pooled_length(ours.sum(0)) - pooled_length(theirs.sum(0))),
        "interval": list(interval(drawn_lengths(ours, draws) - drawn_lengths(theirs, draws)))
        if len(prompts) > 1
        else None,
        "same_text": row["output_hash"] == base["output_hash"],
    }


def categories(rows: Sequence[Row]) -> Iterator[Values]:
    """Each category's acceptance length at the slice's best cell, if there is more than one category."""
    row = max(rows, key=lambda row: row["tok_s"] or row["mean_acceptance_length"] or 0)
    names = list(dict.fromkeys(prompt["category"] for prompt in row["per_prompt"]))
    if len(names) < 2:
        return
    for name in names:
        prompts = [prompt["prompt"] for prompt in row["per_prompt"] if prompt["category"] == name]
        totals = _totals(row, prompts)
        yield {
            **_cell(row),
            "label": label(row),
            "category": name,
            "n": len(prompts),
            "mean_acceptance_length": float(pooled_length(totals.sum(0))),
            "interval": list(interval(drawn_lengths(totals, _draws(len(prompts))))) if len(prompts) > 1 else None,
        }


def recommended(rows: Sequence[Row]) -> Iterator[Values]:
    """For each content the block size with the most tokens a second, of the drafter as it was trained.

    Content is a prompt set, and each of its categories where there are several. `close` are the block sizes whose best
    cell cannot be told from it over the prompts; `share` is how many draws of prompts agree with the choice.
    """
    timed = [row for row in rows if row["step_ms"] and all(row[name] == value for name, value in TRAINED.items())]
    for own in _grouped(timed, [name for name in SLICE if name != "selector"]):
        contents: dict[str, list[str]] = {}
        for prompt in own[0]["per_prompt"]:
            contents.setdefault(prompt["category"], []).append(prompt["prompt"])
        whole = [prompt for prompts in contents.values() for prompt in prompts]
        parts = contents if len(contents) > 1 else {}
        for category, prompts in itertools.chain([(None, whole)], parts.items()):
            if len({row["block_size"] for row in own}) > 1 and _totals(own[0], prompts)[:, 1].any():
                yield _recommendation(own, category, prompts)


def _grouped(rows: Sequence[Row], names: Sequence[str]) -> list[list[Row]]:
    groups: dict[tuple, list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in names), []).append(row)
    return list(groups.values())


def _recommendation(rows: Sequence[Row], category: str | None, prompts: Sequence[str]) -> Values:
    """The fastest cell over some prompts, against the fastest of every other block size."""
    draws = _draws(len(prompts))
    speeds = {row["key"]: 1e3 * pooled_length(_totals(row, prompts).sum(0)) / row["step_ms"] for row in rows}
    best_of = {}
    for row in rows:
        size = row["block_size"]
        if size not in best_of or speeds[row["key"]] > speeds[best_of[size]["key"]]:
            best_of[size] = row
    drawn = {size: 1e3 * drawn_lengths(_totals(row, prompts), draws) / row["step_ms"] for size, row in best_of.items()}
    best = max(best_of, key=lambda size: speeds[best_of[size]["key"]])
    row = best_of[best]
    behind = {size: interval(drawn[best] - values) for size, values in drawn.items() if size != best}
    several = len(prompts) > 1
    return {
        **_cell(row),
        "label": label(row),
        "category": category,
        "n": len(prompts),
        "tok_s": float(speeds[row["key"]]),
        "interval": list(interval(drawn[best])) if several else None,
        "mean_acceptance_length": float(pooled_length(_totals(row, prompts).sum(0))),
        "close": sorted(size for size, (low, _) in behind.items() if low <= 0) if several else None,
        "share": float(np.mean(np.argmax(np.stack(list(drawn.values())), axis=0) == list(drawn).index(best))),
    }
