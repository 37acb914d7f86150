"""A live server as one picture in the terminal: sparklines over time, bars by position."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from dflash_lab.ui.view.text import printable

BLOCKS = "▁▂▃▄▅▆▇█"
BAR_WIDTH = 30
"""Terminal cells of a full bar."""


def spark(values: Sequence[float | None], width: int) -> str:
    """The last `width` values as blocks, from zero to their largest; a gap where a value is missing."""
    shown = list(values)[-width:]
    top = max((value for value in shown if value is not None), default=0.0)
    return "".join(" " if value is None else _block(value, top) for value in shown)


def frame(
    title: str, series: Mapping[str, Any], positions: Mapping[str, Any], notes: Sequence[str], width: int = 100
) -> str:
    """A picture of `view.live.server_series` (and of a run's `load_series` merged in) with `position_chart`."""
    lines = [title, ""]
    rows = (
        ("tok/s", series.get("tok_s") or []),
        ("acceptance length", series.get("acceptance_length") or []),
        ("running", series.get("running") or []),
        ("waiting", series.get("waiting") or []),
        ("in flight (ours)", series.get("in_flight") or []),
    )
    for name, values in rows:
        if any(value is not None for value in values):
            lines.append(f"{name:<17} {_last(values):>10}  {spark(values, max(10, width - 31))}")
    if series.get("convention"):
        indent = " " * 30
        text = f"acceptance length is {series['convention']}"
        lines += textwrap.wrap(text, max(40, width), initial_indent=indent, subsequent_indent=indent)
    lines += ["", *_bars(positions)]
    return printable("\n".join([*lines, *notes]))


def _bars(positions: Mapping[str, Any]) -> list[str]:
    if not positions["positions"]:
        return ["acceptance by position: not reported by this server's counters; a run of live bench shows it"]
    total = positions["num_steps"]
    lines = [f"steps by accepted drafts, {total} steps"]
    lines += [f"{count:>4}  {_bar(n / total)} {n / total:6.1%}" for count, n in enumerate(positions["histogram"])]
    lines += ["", f"survival: share of steps accepted so far ({positions['note']})"]
    lines += [
        f"{position:>4}  {_bar(share)} {share:6.1%}"
        for position, share in zip(positions["positions"], positions["survival"], strict=True)
    ]
    return lines


def _bar(share: float) -> str:
    return ("█" * round(share * BAR_WIDTH)).ljust(BAR_WIDTH, "·")


def _block(value: float, top: float) -> str:
    return BLOCKS[min(len(BLOCKS) - 1, int(len(BLOCKS) * value / top))] if top > 0 else BLOCKS[0]


def _last(values: Sequence[float | None]) -> str:
    value = next((value for value in reversed(values) if value is not None), None)
    return "–" if value is None else f"{value:,.2f}" if isinstance(value, float) else str(value)
