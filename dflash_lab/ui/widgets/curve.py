"""How far into the block proposals are accepted, as a figure."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from typing import Any

from dflash_lab.core.errors import BackendError, RequestError
from dflash_lab.core.trace.schema import Trace
from dflash_lab.ui.view.charts import DASHES, INK, curves_svg, label, plotly_template, survival_curves

try:
    import plotly.graph_objects as go
    import plotly.io as pio
except ImportError as error:
    raise BackendError(f"figures need {error.name}, which is not there: pip install 'dflash-lab[notebook]'") from error

for _theme in INK:
    pio.templates[f"dflash_{_theme}"] = plotly_template(_theme)

PLOTLY_MIME = "application/vnd.plotly.v1+json"
CONFIG = {"displaylogo": False, "modeBarButtonsToRemove": ["sendChartToCloud"]}


class AcceptanceCurve:
    """Survival by position: the share of steps that accepted at least so many proposals.

    `figure` is a plain Plotly figure. A saved notebook keeps a picture of it, which a code host can show.
    """

    def __init__(self, traces: Trace | Mapping[str, Trace | Sequence[Trace]], theme: str = "light") -> None:
        """`traces`: one, or several by name; under one name the steps of a list of traces are pooled."""
        if theme not in INK:
            raise RequestError(f"theme must be light or dark, got {theme!r}")
        self.curves = survival_curves(traces)
        self.figure = go.Figure(
            data=[
                go.Scatter(
                    x=list(range(1, len(curve.values) + 1)),
                    y=curve.values,
                    name=html.escape(label(curve)),  # Plotly reads names as markup
                    mode="lines+markers",
                    line={"dash": DASHES[i % len(DASHES)]},
                    hovertemplate="position %{x}: %{y:.1%}<extra></extra>",
                )
                for i, curve in enumerate(self.curves)
            ],
            layout={
                "template": f"dflash_{theme}",
                "height": 360,
                "margin": {"l": 60, "r": 20, "t": 20, "b": 50},
                "showlegend": True,
                "legend": {"x": 1, "y": 1, "xanchor": "right"},
                "xaxis": {"title": "position in the block", "dtick": 1},
                "yaxis": {"title": "share of steps accepted so far", "range": [0, 1], "tickformat": ".0%"},
            },
        )

    def __repr__(self) -> str:
        lines = [f"{label(curve)}: {' '.join(f'{share:.3f}' for share in curve.values)}" for curve in self.curves]
        return "\n".join(lines)

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        figure = json.loads(self.figure.to_json()) | {"config": CONFIG}
        return {PLOTLY_MIME: figure, "image/svg+xml": curves_svg(self.curves), "text/plain": repr(self)}
