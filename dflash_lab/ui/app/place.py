"""Where a link points: `?trace=<id>&step=12&pos=5&tab=inspect&v=1`, and `&with=<id>` where two are compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

VERSION = "1"
"""The `v` of links that this page writes; static/page.js has the same."""


@dataclass(frozen=True)
class Place:
    """What a link names; whatever it does not name, or not well, is None."""

    trace: str | None = None
    """Id of a trace in the store, never a path."""
    step: int | None = None
    """Number of the step, from 0."""
    pos: int | None = None
    """Position in the block, from 1; 0 is the anchor."""
    tab: str | None = None
    """Id of the tab."""
    other: str | None = None
    """Id of the trace to compare with."""
    problem: str | None = None
    """What of the link was not understood, for the reader."""


def parse_place(query: Mapping[str, str]) -> Place:
    """The place that a link's query parameters name."""

    def number(key: str) -> int | None:
        text = query.get(key, "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None

    version = query.get("v", VERSION)
    problem = None
    if version != VERSION:
        problem = f"This link has version {version[:20]!r} and this page reads {VERSION!r}: it may show another place."
    return Place(query.get("trace"), number("step"), number("pos"), query.get("tab"), query.get("with"), problem)
