"""Five figures of a live server as Plotly takes them, from the data of `live.py`. Nothing here imports Plotly.

A colour is the name of a custom property (`--dfl-…`, see static/live.css): the page puts in what it is in its theme.
A figure without data has a text in place of the chart that says why.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from dflash_lab.ui.view.live import POSITIONS

OURS, SERVER, PUBLISHED = "--dfl-live-ours", "--dfl-live-server", "--dfl-live-published"
BAD, MUTED = "--dfl-rejected", "--dfl-muted"

MOST_POINTS = 500
"""Points of a curve that are sent; of more, every second, third, .. one."""

HEIGHT_PX = 236

Figure = dict[str, Any]
Published = Sequence[Mapping[str, Any]]
"""Entries of `live.published_beside`."""


def throughput(
    load: Mapping[str, Any] | None, server: Mapping[str, Any] | None, published: Published, note: str = ""
) -> Figure:
    """Tokens per second over time: of our own load (`live.load_series`), by the server's counters, and published."""
    data = []
    if load and load["t_s"]:
        data.append(_line("our load", load["t_s"], load["tok_s"], OURS, fill=True))
    if server and _any(server["tok_s"]):
        data.append(_line(_counted(server), server["interval_t_s"], server["tok_s"], SERVER, dash="dash"))
    data += _levels(published, "throughput_tok_s", _end(data), "tok/s")
    return _over_time("throughput", "Throughput, tok/s", data, note, "No tokens yet.")


def acceptance(
    load: Mapping[str, Any] | None, server: Mapping[str, Any] | None, published: Published, note: str, empty: str
) -> Figure:
    """Acceptance length over time: of each request of ours and on average, by the server's counters, and published."""
    data = []
    if load and _any(load["request_acceptance_length"]):
        times, lengths = load["request_t_s"], load["request_acceptance_length"]
        points = _line("each request", times, lengths, OURS)
        data.append(points | {"mode": "markers", "marker": {"color": OURS, "size": 6, "opacity": 0.45}})
        data.append(_line("mean so far", times, _means(lengths), OURS))
    if server and _any(server["acceptance_length"]):
        series = (server["interval_t_s"], server["acceptance_length"])
        data.append(_line(_counted(server), *series, SERVER, dash="dash"))
    data += _levels(published, "acceptance_length", _end(data), "tokens / step") if data else []
    return _over_time("acceptance", "Acceptance length", data, note, empty, floor=1)


def requests(server: Mapping[str, Any], failures: Sequence[Mapping[str, Any]] = ()) -> Figure:
    """Requests that run, wait, and are under way from here; failures of ours as crosses."""
    kinds = (("running", "running", OURS, "solid"), ("waiting", "waiting", SERVER, "dash"),
             ("in_flight", "under way, ours", MUTED, "dot"))  # fmt: skip
    data = [
        _line(name, server["t_s"], server[key], colour, dash=dash, step=True)
        for key, name, colour, dash in kinds
        if _any(server[key])
    ]
    if failures:
        data.append(
            {
                "name": "failed",
                "x": [_round(item["t_s"]) for item in failures],
                "y": [0] * len(failures),
                "mode": "markers",
                "marker": {"symbol": "x", "color": BAD, "size": 9},
                "text": [html.escape(f"{item['kind']}: {item['message'] or ''}"[:160]) for item in failures],
                "hovertemplate": "%{x:.1f} s: %{text}<extra></extra>",
                "cliponaxis": False,
            }
        )
    empty = "The server does not tell how many requests it runs."
    return _over_time("requests", "Requests", data, "", empty)


def histogram(positions: Mapping[str, Any], empty: str) -> Figure:
    """Share of the verification steps that had 0, 1, .. proposals accepted."""
    counts, total = positions["histogram"], positions["num_steps"]
    last = len(counts) - 1
    marker = {
        "color": [BAD] + [OURS] * last,
        "pattern": {"shape": ["/"] + [""] * last, "fgcolor": "--dfl-surface", "size": 6, "solidity": 0.25},
    }
    bars = {
        "type": "bar",
        "x": list(range(len(counts))),
        "y": [_round(count / total) for count in counts],
        "customdata": list(counts),
        "marker": marker,
        "texttemplate": "%{y:.0%}",
        "textposition": "outside",
        "textfont": {"size": 11 if last < 8 else 9},
        "constraintext": "none",
        "cliponaxis": False,
        "showlegend": False,
        "hovertemplate": "%{x} accepted: %{customdata} steps, %{y:.1%}<extra></extra>",
    }
    layout = _layout("proposals accepted in a step", "closest")
    layout["xaxis"] |= {"dtick": 1, "showgrid": False}
    layout["yaxis"] |= {"tickformat": ".0%", "range": [0, 1.15 * max(counts, default=0) / total if total else 1]}
    note = f"{total:,} verification steps; the bonus token is not counted" if counts else ""
    return _figure("histogram", "Steps by accepted", [bars] if counts else [], layout, note, empty)


def survival(positions: Mapping[str, Any], empty: str) -> Figure:
    """Share of the steps accepted up to a position, and of those that got there the share that accepted it."""
    places = positions["positions"]
    data = []
    if places:
        reached = _line("accepted up to here", places, positions["survival"], OURS)
        reached["hovertemplate"] = "position %{x}: %{y:.1%} of steps<extra></extra>"
        data.append(reached | {"mode": "lines+markers", "marker": {"color": OURS, "size": 7}})
        if _any(positions["conditional_rate"]):
            rate = _line("accepted if reached", places, positions["conditional_rate"], SERVER, dash="dash")
            rate["customdata"] = positions["conditional_n"]
            rate["hovertemplate"] = "position %{x}: %{y:.1%} of %{customdata} steps<extra></extra>"
            data.append(
                rate | {"mode": "lines+markers", "marker": {"color": SERVER, "size": 7, "symbol": "square-open"}}
            )
    layout = _layout("position in the block", "closest")
    layout["xaxis"] |= {"dtick": 1, "range": [0.7, len(places) + 0.3]}
    layout["yaxis"] |= {"range": [0, 1.02], "tickformat": ".0%"}
    return _figure("survival", "Survival by position", data, layout, POSITIONS if places else "", empty)


def _counted(server: Mapping[str, Any]) -> str:
    window = server["window_s"]
    return f"server's counters, last {window:g} s" if window else "server's counters"


def _levels(published: Published, key: str, end: float, unit: str) -> list[dict[str, Any]]:
    """Published values as thin lines across the time shown, each with its name: dotted where settings differ.

    A table made on other hardware is in the legend and drawn when asked for: it would press the measured curve flat.
    """
    lines = []
    for table in published:
        values = table[key]
        unlike = "" if not table["differs"] else ", other settings" if table["same_hardware"] else ", other hardware"
        group = f"◇ published, {table['hardware']}{unlike}"
        for i, (method, value) in enumerate(values.items()):
            # Each name at a place of its own: values may lie close together.
            at = end * (1 - (i + 0.5) / len(values))
            told = [
                f"{method} {value:,} {unit}",
                f"published on {table['hardware']}",
                table["source"],
                *table["differs"],
            ]
            lines.append(
                {
                    "name": html.escape(group),
                    "legendgroup": table["id"],
                    "showlegend": i == 0,
                    "visible": True if table["same_hardware"] else "legendonly",
                    "x": [0, _round(at), _round(end)],
                    "y": [value] * 3,
                    "mode": "lines+text",
                    "line": {"color": PUBLISHED, "width": 1, "dash": "dot" if table["differs"] else "solid"},
                    "text": ["", html.escape(f"◇ {method} {value:,}"), ""],
                    "textposition": "top center",
                    "textfont": {"size": 11, "color": PUBLISHED},
                    "hovertemplate": html.escape("\n".join(told)).replace("\n", "<br>") + "<extra></extra>",
                }
            )
    return lines


def _line(
    name: str,
    x: Sequence[float],
    y: Sequence[float | None],
    colour: str,
    dash: str = "solid",
    fill: bool = False,
    step: bool = False,
) -> dict[str, Any]:
    stride = max(1, -(-len(x) // MOST_POINTS))
    first = (len(x) - 1) % stride  # the newest point is always there
    trace: dict[str, Any] = {
        "name": name,
        "x": [_round(value) for value in x[first::stride]],
        "y": [_round(value) for value in y[first::stride]],
        "mode": "lines" if len(x) > 1 else "markers",  # a line needs two points
        "line": {"color": colour, "width": 2, "dash": dash, "shape": "hv" if step else "linear"},
        "marker": {"color": colour},
        "hovertemplate": f"{name} %{{y:,.4~g}}<extra></extra>",
    }
    return trace | {"fill": "tozeroy", "fillcolor": f"{colour}-fill"} if fill else trace


def _over_time(
    name: str, title: str, data: list[dict[str, Any]], note: str, empty: str, floor: float | None = None
) -> Figure:
    layout = _layout("seconds", "x unified")
    layout["xaxis"] |= {"hoverformat": ",.1f", "ticksuffix": " s", "title": None}
    layout["margin"] = {**layout["margin"], "b": 24}
    layout["yaxis"] |= {"autorangeoptions": {"include": _headroom(data, floor)}}
    if floor is not None:
        layout["yaxis"] |= {"rangemode": "normal"}
    # Crosses alone are no curve, and neither are published values alone.
    measured = any("line" in trace and "legendgroup" not in trace for trace in data)
    return _figure(name, title, data if measured else [], layout, note, empty)


def _headroom(data: Sequence[Mapping[str, Any]], floor: float | None) -> float:
    """A value that keeps the name over the topmost line in the chart."""
    values = [
        value for trace in data if trace.get("visible", True) is True for value in trace["y"] if value is not None
    ]
    top = max(values, default=1.0)
    bottom = 0.0 if floor is None else min(values, default=floor)
    return float(f"{top + 0.1 * (top - bottom):.6g}")


def _figure(name: str, title: str, data: list[dict[str, Any]], layout: dict[str, Any], note: str, empty: str) -> Figure:
    for trace in data:
        trace.setdefault("type", "scatter")
    shown = None if data else empty
    return {"id": name, "title": title, "note": note, "empty": shown, "data": data, "layout": layout}


def _layout(x_title: str, hover: str) -> dict[str, Any]:
    small = {"size": 11, "color": MUTED}
    axis = {"gridcolor": "--dfl-line", "linecolor": "--dfl-line", "zerolinecolor": "--dfl-line", "tickfont": small}
    return {
        "height": HEIGHT_PX,
        "margin": {"l": 46, "r": 12, "t": 10, "b": 40},
        "hovermode": hover,
        "showlegend": True,
        # Entries as wide as their text: else all are as wide as the longest, and every one has a line of its own.
        "legend": {
            "orientation": "h",
            "x": 0,
            "y": 1.0,
            "yanchor": "bottom",
            "font": small,
            "entrywidth": 0,
            "tracegroupgap": 0,
        },
        "xaxis": {**axis, "title": {"text": x_title, "font": small, "standoff": 6}},
        "yaxis": {**axis, "rangemode": "tozero", "automargin": True},
    }


def _means(values: Sequence[float | None]) -> list[float | None]:
    """The mean of the values so far at each of them."""
    means: list[float | None] = []
    total, count = 0.0, 0
    for value in values:
        if value is not None:
            total, count = total + value, count + 1
        means.append(total / count if count else None)
    return means


def _end(data: Sequence[Mapping[str, Any]]) -> float:
    """The latest moment shown."""
    return max((trace["x"][-1] for trace in data if trace["x"]), default=1.0)


def _any(values: Sequence[Any] | None) -> bool:
    return any(value is not None for value in values or ())


def _round(value: float | None) -> float | None:
    """Six digits are more than a pixel, and half of what JSON would hold."""
    return None if value is None else float(f"{value:.6g}")
