"""A sweep's report as pictures: figures as Plotly's JSON, without Plotly, and the grid as an SVG.

A figure is {title, note, data, layout}; the look (`plotly_template`) is put on by who draws it.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from dflash_lab.ui.view.charts import COLOURS, DASHES

Values = Mapping[str, Any]
Figure = dict[str, Any]

METRIC_WORDS = {
    "mean_acceptance_length": "acceptance length",
    "tok_s": "tok/s",
    "ms_per_token": "ms per token",
    "draft_ms": "draft, ms",
}
"""What a grid can show, and how it is called."""
LOW, HIGH = (0, 32, 77), (253, 234, 69)
"""Ends of the scale of colours, Cividis'."""
_STOPS = (LOW, (49, 68, 107), (102, 105, 112), (149, 143, 120), (203, 186, 105), HIGH)


def slice_figures(report: Values, index: int) -> list[Figure]:
    """Pictures of slice number `index`: grids, curves, the three lengths, lift, costs."""
    grid, curve = report["grids"][index], report["curves"][index]
    figures = [grid_figure(grid, "mean_acceptance_length")]
    if grid["best"]["tok_s"]:
        figures += [grid_figure(grid, "tok_s"), _costs(curve)]
    figures += [_lengths_by_size(curve), _three_lengths(curve)]
    figures += [_positions(curve, "survival"), _positions(curve, "conditional_rate")]
    figures += [figure for figure in (_recall(curve), _lift(report, grid)) if figure]
    return figures


def grid_cells(grid: Values, metric: str) -> list[dict[str, Any]]:
    """Every cell of a grid as it is drawn: place, value, text, hover, whether it is the best, what became of it."""
    cells = []
    for i, size in enumerate(grid["block_sizes"]):
        for j, count in enumerate(grid["candidate_counts"]):
            value, status = grid[metric][i][j], grid["status"][i][j]
            cells.append(
                {
                    "row": i,
                    "column": j,
                    "block_size": size,
                    "num_candidates": count,
                    "key": grid["keys"][i][j],
                    "value": value,
                    "status": status,
                    "best": grid["best"][metric] == [i, j],
                    "text": shown(value) if status == "done" else "",
                    "hover": _hover(grid, metric, i, j),
                }
            )
    return cells


def shown(value: float | None) -> str:
    """A number with three significant digits."""
    if value is None:
        return "–"
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}" if abs(value) < 100 else f"{value:.0f}"


def _hover(grid: Values, metric: str, i: int, j: int) -> str:
    """A cell in words: n, interval, times, flags."""
    status, interval = grid["status"][i][j], grid["intervals"][i][j]
    parts = [f"block {grid['block_sizes'][i]}, {grid['candidate_counts'][j]} candidates"]
    if status != "done":
        return f"{parts[0]}: {'failed' if status == 'failed' else 'not run'}"
    length = grid["mean_acceptance_length"][i][j]
    between = f" ({interval[0]:.2f} to {interval[1]:.2f})" if interval else ""
    parts.append(f"acceptance length {shown(length)}{between}, n = {grid['n'][i][j]}")
    if grid["tok_s"][i][j] is not None:
        parts.append(f"{shown(grid['tok_s'][i][j])} tok/s, {shown(grid['ms_per_token'][i][j])} ms per token")
    return " · ".join([*parts, *(grid["flags"][i][j] or [])])


def grid_figure(grid: Values, metric: str) -> Figure:
    """Block size by candidates: the value in each cell, the best one ringed, what did not run crossed out."""
    cells = grid_cells(grid, metric)
    rows, columns = len(grid["block_sizes"]), len(grid["candidate_counts"])

    def matrix(name: str) -> list[list[Any]]:
        return [[cells[i * columns + j][name] for j in range(columns)] for i in range(rows)]

    ring = [_box(cell, {"color": "#D55E00", "width": 4}) for cell in cells if cell["best"]]
    crossed = [line for cell in cells if cell["status"] != "done" for line in _crossed(cell)]
    return {
        "title": f"{METRIC_WORDS[metric]}, {_about(grid)}",
        "note": "Ringed: the best cell. Crossed out: not run, or failed. Interval: 95 % over prompts.",
        "data": [
            {
                "type": "heatmap",
                "x": [str(count) for count in grid["candidate_counts"]],
                "y": [str(size) for size in grid["block_sizes"]],
                "z": matrix("value"),
                "text": matrix("text"),
                "hovertext": [[html.escape(text) for text in line] for line in matrix("hover")],
                "texttemplate": "%{text}",
                "hoverinfo": "text",
                "colorscale": "Cividis",
                "xgap": 2,
                "ygap": 2,
            }
        ],
        "layout": {
            "shapes": [*crossed, *ring],
            "xaxis": {"title": {"text": "candidates"}, "type": "category"},
            "yaxis": {"title": {"text": "block size"}, "type": "category"},
        },
    }


def _about(item: Values) -> str:
    return html.escape(f"{item['label']} ({item['mode']}, n = {item['num_prompts']})")


def _box(cell: Values, line: Mapping[str, Any]) -> dict[str, Any]:
    x, y = cell["column"], cell["row"]
    return {"type": "rect", "x0": x - 0.47, "x1": x + 0.47, "y0": y - 0.47, "y1": y + 0.47, "line": dict(line)}


def _crossed(cell: Values) -> list[dict[str, Any]]:
    x, y, line = cell["column"], cell["row"], {"color": "#767676", "width": 1}
    lines = [_box(cell, line)]
    for end in (-0.47, 0.47):
        lines.append({"type": "line", "x0": x - 0.47, "x1": x + 0.47, "y0": y + end, "y1": y - end, "line": line})
    return lines


def _lines(traces: Sequence[Mapping[str, Any]], title: str, note: str, x: str, y: str, **layout: Any) -> Figure:
    """Lines with marks, each with a dash of its own."""
    data = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "line": {"dash": DASHES[i % len(DASHES)], "color": COLOURS[i % len(COLOURS)]},
            **trace,
        }
        for i, trace in enumerate(traces)
    ]
    axes = {
        "xaxis": {"title": {"text": x}, **layout.pop("xaxis", {})},
        "yaxis": {"title": {"text": y}, **layout.pop("yaxis", {})},
    }
    return {"title": title, "note": note, "data": data, "layout": {**axes, "showlegend": True, **layout}}


def _at(values: Sequence[int]) -> dict[str, Any]:
    """An axis with marks at these values only."""
    return {"tickvals": list(values)}


def _lengths_by_size(curve: Values) -> Figure:
    """Acceptance length against block size, a line for each number of candidates."""
    by_count: dict[int, list[tuple[int, float, Any]]] = {}
    for line in curve["lengths"]:
        values = zip(line["candidate_counts"], line["mean_acceptance_length"], line["intervals"], strict=True)
        for count, value, interval in values:
            if value is not None:
                by_count.setdefault(count, []).append((line["block_size"], value, interval))
    traces = [
        {
            "name": f"{count} candidates",
            "x": [size for size, _, _ in points],
            "y": [value for _, value, _ in points],
            "error_y": {
                "type": "data",
                "symmetric": False,
                "array": [interval[1] - value if interval else 0 for _, value, interval in points],
                "arrayminus": [value - interval[0] if interval else 0 for _, value, interval in points],
            },
        }
        for count, points in sorted(by_count.items())
    ]
    note = "Bars: 95 % over prompts. Acceptance may go on rising where speed has long begun to fall."
    axis = _at(curve["block_sizes"])
    return _lines(traces, f"Acceptance length, {_about(curve)}", note, "block size", "acceptance length", xaxis=axis)


def _three_lengths(curve: Values) -> Figure:
    """What was chosen between the arg-max of each position and the best path through the candidates."""
    names = {
        "best_path_acceptance_length": "best path",
        "mean_acceptance_length": "chosen",
        "argmax_acceptance_length": "arg-max",
    }
    traces = [
        {"name": word, "x": curve["block_sizes"], "y": [line[name][-1] for line in curve["lengths"]]}
        for name, word in names.items()
    ]
    counts = sorted({line["candidate_counts"][-1] for line in curve["lengths"]})
    widths = " or ".join(map(str, counts))
    note = f"At the same steps, with {widths} candidates. Best path: what a perfect selector would keep."
    axis = _at(curve["block_sizes"])
    return _lines(traces, f"Three lengths, {_about(curve)}", note, "block size", "acceptance length", xaxis=axis)


def _positions(curve: Values, name: str) -> Figure:
    """Acceptance by position, a line for each block size."""
    words = {
        "survival": ("Accepted so far", "Share of steps that accepted the position and all before it."),
        "conditional_rate": ("Accepted, given all before", "Of the steps that accepted every position before it."),
    }
    title, note = words[name]
    traces = [
        {
            "name": f"block {line['block_size']}",
            "x": list(range(1, len(line[name]) + 1)),
            "y": line[name],
            "hovertemplate": "position %{x}: %{y:.1%}<extra></extra>",
        }
        for line in curve["positions"]
    ]
    note += " Positions count from 1, the anchor excluded."
    axes = {"xaxis": {"dtick": 1}, "yaxis": {"range": [0, 1], "tickformat": ".0%"}}
    return _lines(traces, f"{title}, {_about(curve)}", note, "position in the block", "share", **axes)


def _recall(curve: Values) -> Figure | None:
    """How often the wanted token is among C candidates."""
    traces = [
        {
            "name": f"block {line['block_size']}",
            "x": line["candidate_counts"],
            "y": line["recall"],
            "hovertemplate": "%{x} candidates: %{y:.1%}<extra></extra>",
        }
        for line in curve["recall"]
        if None not in line["recall"]
    ]
    if not traces:
        return None
    note = "Over all positions of all steps, accepted or not: deep positions weigh on large blocks."
    counts = sorted({count for trace in traces for count in trace["x"]})
    axes = {"xaxis": {"type": "log", **_at(counts)}, "yaxis": {"range": [0, 1], "tickformat": ".0%"}}
    return _lines(traces, f"Recall, {_about(curve)}", note, "candidates", "wanted token among them", **axes)


def _lift(report: Values, grid: Values) -> Figure | None:
    """What the selector adds, against block size, a line for each number of candidates."""
    same = ("mode", "target", "dataset", "drafter", "conv", "layers", "window", "num_prompts", "max_new_tokens")
    own = [
        item
        for item in report["contrasts"]
        if item["axis"] == "selector" and all(item[name] == grid[name] for name in same)
    ]
    counts = sorted({item["num_candidates"] for item in own})
    traces = []
    for count in counts:
        points = sorted((item for item in own if item["num_candidates"] == count), key=lambda item: item["block_size"])
        values = [item["difference"] for item in points]
        bounds = [item["interval"] or [item["difference"]] * 2 for item in points]
        traces.append(
            {
                "name": f"{count} candidates",
                "x": [item["block_size"] for item in points],
                "y": values,
                "error_y": {
                    "type": "data",
                    "symmetric": False,
                    "array": [high - value for value, (_, high) in zip(values, bounds, strict=True)],
                    "arrayminus": [value - low for value, (low, _) in zip(values, bounds, strict=True)],
                },
            }
        )
    if not traces:
        return None
    note = "Acceptance length with the selector less that without, on the same prompts. Bars: 95 %."
    axis = _at(grid["block_sizes"])
    return _lines(traces, f"Selector's lift, {_about(grid)}", note, "block size", "tokens a step", xaxis=axis)


def _costs(curve: Values) -> Figure:
    """Time of a step by phase, and what comes of it."""
    sizes, costs = [str(size) for size in curve["block_sizes"]], curve["costs"]
    phases = {"verify_ms": "verify", "draft_ms": "draft", "select_ms": "select", "commit_ms": "commit"}
    bars = [
        {"type": "bar", "name": word, "x": sizes, "y": costs[name], "marker": {"color": COLOURS[i]}}
        for i, (name, word) in enumerate(phases.items())
    ]
    token = {"type": "scatter", "mode": "lines+markers", "name": "ms per token", "x": sizes, "y": costs["ms_per_token"]}
    return {
        "title": f"Cost, {_about(curve)}",
        "note": "Bars: a step by phase. Line: step time / acceptance length, the cost of a token that is kept.",
        "data": [*bars, {**token, "line": {"color": COLOURS[5], "width": 3}}],
        "layout": {
            "barmode": "stack",
            "showlegend": True,
            "xaxis": {"title": {"text": "block size"}, "type": "category"},
            "yaxis": {"title": {"text": "milliseconds"}, "rangemode": "tozero"},
        },
    }


def colour(share: float) -> str:
    """Cividis at `share` of its length, 0 to 1."""
    place = min(max(share, 0.0), 1.0) * (len(_STOPS) - 1)
    low = min(int(place), len(_STOPS) - 2)
    mixed = (round(a + (b - a) * (place - low)) for a, b in zip(_STOPS[low], _STOPS[low + 1], strict=True))
    return f"rgb({','.join(map(str, mixed))})"


def grid_svg(grid: Values, metric: str = "mean_acceptance_length") -> str:
    """A grid as one SVG picture, legible on light and on dark paper."""
    cells = grid_cells(grid, metric)
    rows, columns = len(grid["block_sizes"]), len(grid["candidate_counts"])
    wide, high, left, top = 74, 34, 96, 46
    width, height = left + columns * wide + 12, top + rows * high + 40
    values = [cell["value"] for cell in cells if cell["value"] is not None]
    least, most = (min(values), max(values)) if values else (0.0, 1.0)
    title = html.escape(f"{METRIC_WORDS[metric]} · {grid['label']} · {grid['mode']}, {grid['num_prompts']} prompts")
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="13" fill="#767676">',
        f'<text x="{left}" y="18" font-size="14">{title}</text>',
        f'<text x="{left - 8}" y="{top - 8}" text-anchor="end">block size</text>',
        f'<text x="{left + columns * wide / 2}" y="{height - 8}" text-anchor="middle">candidates</text>',
    ]
    for i, size in enumerate(grid["block_sizes"]):
        y = top + (rows - 1 - i) * high + high / 2 + 4.5
        parts.append(f'<text x="{left - 10}" y="{y}" text-anchor="end">{size}</text>')
    for j, count in enumerate(grid["candidate_counts"]):
        x = left + j * wide + wide / 2
        parts.append(f'<text x="{x}" y="{top + rows * high + 17}" text-anchor="middle">{count}</text>')
    rings = []
    for cell in cells:
        x, y = left + cell["column"] * wide, top + (rows - 1 - cell["row"]) * high
        box = f'x="{x + 1}" y="{y + 1}" width="{wide - 2}" height="{high - 2}"'
        if cell["status"] != "done" or cell["value"] is None:
            parts.append(f'<rect {box} fill="none" stroke="#767676" stroke-opacity=".5"/>')
            parts.append(f'<path d="M{x + 1} {y + high - 1}L{x + wide - 1} {y + 1}" stroke="#767676"/>')
            continue
        share = (cell["value"] - least) / (most - least) if most > least else 0.5
        if metric.endswith("ms") or metric.startswith("ms"):
            share = 1 - share
        ink = "#ffffff" if share < 0.5 else "#111111"
        parts.append(f'<rect {box} fill="{colour(share)}"><title>{html.escape(cell["hover"])}</title></rect>')
        middle = f'x="{x + wide / 2}" y="{y + high / 2 + 4.5}" text-anchor="middle"'
        parts.append(f'<text {middle} fill="{ink}" pointer-events="none">{cell["text"]}</text>')
        if cell["best"]:
            rings.append(f'<rect {box} fill="none" stroke="#D55E00" stroke-width="3"/>')
    return "".join((*parts, *rings, "</svg>"))
