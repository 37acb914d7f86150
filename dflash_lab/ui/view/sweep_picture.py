"""A whole sweep as one picture: a grid for each content, on one scale of colours, and what is recommended for each."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from dflash_lab.ui.view.sweep import METRIC_WORDS, colour, grid_cells, shown
from dflash_lab.ui.view.sweep_grid import BEST, SMALLER_IS_BETTER, about, ink

Values = Mapping[str, Any]

COLUMNS = 3
WIDE, HIGH = 46, 26
"""Pixels of a cell."""
LEFT, TOP, GAP = 34, 44, 26
"""Pixels for the block sizes beside a grid, its title and counts above it, and between two grids."""
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#1f2328}.d{fill:#595959}.t{font-weight:600;font-size:13px}"
    ".m{text-anchor:middle}.e{text-anchor:end}.n{fill:none;stroke:#767676;stroke-opacity:.5}"
    "@media(prefers-color-scheme:dark){text{fill:#e4e8ee}.d{fill:#a8b0bd}}"
)


def sweep_svg(report: Values, metric: str = "mean_acceptance_length") -> str:
    """Every grid of a report with the drafter as it was trained, as one SVG that reads on light and on dark paper.

    `report` needs `grids` and `recommended` only. Colours are on one scale, so that contents can be compared.
    """
    grids = [grid for grid in report["grids"] if grid["selector"] and grid["conv"] and grid["best"][metric]]
    values = [cell["value"] for grid in grids for cell in grid_cells(grid, metric) if cell["value"] is not None]
    bounds = (min(values, default=0.0), max(values, default=1.0))
    width = LEFT + WIDE * max((len(grid["candidate_counts"]) for grid in grids), default=0)
    height = TOP + HIGH * max((len(grid["block_sizes"]) for grid in grids), default=0)
    columns = min(COLUMNS, len(grids) + 1)
    panels = [_panel(grid, metric, bounds) for grid in grids] + [_recommended(report["recommended"], grids)]
    lines = -(-len(panels) // columns)
    whole = (columns * (width + GAP), 52 + lines * (height + GAP))
    drawn = "".join(
        f'<g transform="translate({i % columns * (width + GAP)},{52 + i // columns * (height + GAP)})">{panel}</g>'
        for i, panel in enumerate(panels)
    )
    told = html.escape(about(grids[0])) if grids else "nothing was measured"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {whole[0]} {whole[1]}" width="{whole[0]}" '
        f'height="{whole[1]}" role="img"><style>{STYLE}</style><title>{html.escape(in_words(report, metric))}</title>'
        f'<text x="4" y="18" class="t">{METRIC_WORDS[metric]} by block size (rows) and candidates (columns)</text>'
        f'<text x="4" y="36" class="d">{told}</text>{drawn}</svg>'
    )


def in_words(report: Values, metric: str) -> str:
    """What the picture says, for who cannot see it."""
    parts = []
    for grid in report["grids"]:
        best = grid["best"][metric]
        if grid["selector"] and grid["conv"] and best:
            i, j = best
            cell = f"block {grid['block_sizes'][i]} with {grid['candidate_counts'][j]} candidates"
            parts.append(f"{grid['label']}: best {shown(grid[metric][i][j])} at {cell}")
    return f"{METRIC_WORDS[metric]}. {'; '.join(parts)}."


def _panel(grid: Values, metric: str, bounds: tuple[float, float]) -> str:
    """One grid, its first block size on top."""
    parts = [f'<text x="{LEFT}" y="14" class="t">{html.escape(grid["label"])}</text>']
    for j, count in enumerate(grid["candidate_counts"]):
        parts.append(f'<text x="{LEFT + (j + 0.5) * WIDE}" y="{TOP - 8}" class="d m">{count}</text>')
    for i, size in enumerate(grid["block_sizes"]):
        parts.append(f'<text x="{LEFT - 8}" y="{TOP + (i + 0.5) * HIGH + 4}" class="d e">{size}</text>')
    rings = []
    for cell in grid_cells(grid, metric):
        x, y = LEFT + cell["column"] * WIDE, TOP + cell["row"] * HIGH
        box = f'x="{x + 1}" y="{y + 1}" width="{WIDE - 2}" height="{HIGH - 2}" rx="2"'
        if cell["status"] != "done" or cell["value"] is None:
            parts.append(f'<rect {box} class="n"/><path d="M{x + 1} {y + HIGH - 1}L{x + WIDE - 1} {y + 1}" class="n"/>')
            continue
        share = (cell["value"] - bounds[0]) / (bounds[1] - bounds[0]) if bounds[1] > bounds[0] else 0.5
        share = 1 - share if metric in SMALLER_IS_BETTER else share
        place = f'x="{x + WIDE / 2}" y="{y + HIGH / 2 + 4}" class="m" style="fill:{ink(share)}"'
        parts.append(f'<rect {box} fill="{colour(share)}"/><text {place}>{cell["text"]}</text>')
        if cell["best"]:
            rings.append(f'<rect {box} fill="none" stroke="{BEST}" stroke-width="3"/>')
    return "".join((*parts, *rings))


def _recommended(items: Sequence[Values], grids: Sequence[Values]) -> str:
    """Block size and speed that are recommended for each content of the grids."""
    drawn = {grid["label"] for grid in grids}
    lines = [item for item in items if item["category"] is None and item["label"] in drawn]
    parts = [f'<text x="{LEFT}" y="14" class="t">{"fastest, 95 % over prompts" if lines else ""}</text>']
    for i, item in enumerate(lines):
        interval = item["interval"]
        between = f" ({shown(interval[0])} to {shown(interval[1])})" if interval else ""
        speed = f"{shown(item['tok_s'])} tok/s{between}"
        cell = f"block {item['block_size']}, {item['num_candidates']} candidates"
        y = TOP + i * 34
        parts.append(f'<text x="{LEFT}" y="{y}">{html.escape(item["label"])}: {cell}</text>')
        parts.append(f'<text x="{LEFT}" y="{y + 15}" class="d">{speed}</text>')
    return "".join(parts)
