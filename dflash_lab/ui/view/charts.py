"""Curves by block position: their numbers, the look of our Plotly figures, and the same curves as a picture."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dflash_lab.core.acceptance import from_counts
from dflash_lab.core.trace.schema import Trace

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
"""Okabe and Ito's, told apart by colour-blind eyes; each curve has a dash of its own too."""
DASHES = ("solid", "dash", "dot", "dashdot")
STROKES = {"solid": "", "dash": "8 4", "dot": "2 3", "dashdot": "8 3 2 3"}
INK = {"light": "#1f2328", "dark": "#d5dae1"}
LINE = {"light": "rgba(31,35,40,.15)", "dark": "rgba(213,218,225,.2)"}


@dataclass(frozen=True)
class Curve:
    """One curve: a value for each position of the block."""

    name: str
    """What it is of."""
    values: tuple[float, ...]
    """Survival by position, from 1: the share of steps that accepted at least so many proposals."""
    acceptance_length: float
    """1 + the sum of `values`."""


def survival_curves(traces: Trace | Mapping[str, Trace | Sequence[Trace]]) -> tuple[Curve, ...]:
    """A curve for a trace, or for each name; the steps of several traces under one name are pooled."""
    named = {traces.name: traces} if isinstance(traces, Trace) else traces
    curves = []
    for name, group in named.items():
        steps = [step for trace in ([group] if isinstance(group, Trace) else group) for step in trace.steps]
        pooled = from_counts((len(step.draft_ids), step.num_accepted) for step in steps)
        curves.append(Curve(name, pooled.survival, pooled.mean_acceptance_length or 1.0))
    return tuple(curves)


def plotly_template(theme: str) -> dict[str, Any]:
    """The look of our figures for theme `light` or `dark`: no paper of its own, no button that uploads."""
    axis = {"gridcolor": LINE[theme], "linecolor": LINE[theme], "zerolinecolor": LINE[theme]}
    return {
        "layout": {
            "colorway": list(COLOURS),
            "font": {"color": INK[theme]},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "xaxis": axis,
            "yaxis": axis,
            "modebar": {"remove": ["sendChartToCloud"]},
        }
    }


def curves_svg(curves: Sequence[Curve], width: int = 640, height: int = 320) -> str:
    """The curves as one SVG picture, legible on light and on dark paper."""
    left, right, top, bottom = 44, 12, 12 + 20 * len(curves), 40
    deepest = max((len(curve.values) for curve in curves), default=1)

    def x(position: float) -> float:
        return round(left + (width - left - right) * (position - 1) / max(1, deepest - 1), 1)

    def y(share: float) -> float:
        return round(top + (height - top - bottom) * (1 - share), 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="12" fill="#767676">'
    ]
    for share in (0, 0.25, 0.5, 0.75, 1):
        parts.append(f'<path d="M{left} {y(share)}H{width - right}" stroke="#767676" stroke-opacity=".3"/>')
        parts.append(f'<text x="{left - 6}" y="{y(share) + 4}" text-anchor="end">{share:.0%}</text>')
    for position in range(1, deepest + 1):
        parts.append(f'<text x="{x(position)}" y="{height - bottom + 18}" text-anchor="middle">{position}</text>')
    parts.append(f'<text x="{left}" y="{height - 6}">position in the block; share of steps accepted so far</text>')
    for i, curve in enumerate(curves):
        colour, stroke = COLOURS[i % len(COLOURS)], STROKES[DASHES[i % len(DASHES)]]
        style = f'fill="none" stroke="{colour}" stroke-width="2.5" stroke-dasharray="{stroke}"'
        points = " ".join(f"{x(j + 1)},{y(share)}" for j, share in enumerate(curve.values))
        parts.append(f'<polyline points="{points}" {style}/>')
        parts.append(f'<path d="M{left} {12 + 20 * i}h32" {style}/>')
        parts.append(f'<text x="{left + 40}" y="{16 + 20 * i}">{html.escape(label(curve))}</text>')
    return "".join((*parts, "</svg>"))


def label(curve: Curve) -> str:
    """Name and acceptance length."""
    return f"{curve.name} · acceptance length {curve.acceptance_length:.2f}"
