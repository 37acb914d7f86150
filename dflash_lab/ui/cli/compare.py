"""`dflash-lab compare`: two traces side by side."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dflash_lab.ui.cli.output import Output, Result, story

if TYPE_CHECKING:
    from dflash_lab.core.trace.compare import Comparison, Divergence
    from dflash_lab.core.trace.schema import Trace


@click.command()
@click.argument("trace_a", type=click.Path(path_type=Path))
@click.argument("trace_b", type=click.Path(path_type=Path))
@story
def compare(out: Output, trace_a: Path, trace_b: Path) -> Result:
    """Compare two traces: texts, configuration, numbers.

    Where the texts part, the margin between the target's two best tokens tells rounding from a fault.
    """
    from dflash_lab.core.trace import store
    from dflash_lab.core.trace.compare import compare as compare_traces

    a, b = store.load(trace_a), store.load(trace_b)
    found = compare_traces(a, b)
    for reason in found.reasons:
        out.warn(f"not comparable: {reason}")
    for note in found.notes:
        out.warn(note)
    return Result({"a": a.name, "b": b.name, **dataclasses.asdict(found)}, "\n".join(_report(found, a, b)))


def _report(found: Comparison, a: Trace, b: Trace) -> Iterator[str]:
    """The verdict first, then what differs, then the numbers of both."""
    from dflash_lab.core.trace.compare import VERDICTS

    yield f"{found.verdict}: {VERDICTS[found.verdict]} ({found.num_compared} tokens compared)"
    if found.divergence is not None:
        yield _divergence_line(found.divergence, a, b)
    rows = [(item.name, _shown(item.a), _shown(item.b)) for item in (*found.differences, *found.metrics)]
    rows.insert(len(found.differences), ("", "", ""))
    rows.insert(0, ("", a.name, b.name))
    name_width, a_width = (max(len(row[column]) for row in rows) for column in (0, 1))
    for name, left, right in rows:
        yield f"{name:<{name_width}}  {left:<{a_width}}  {right}".rstrip()


def _divergence_line(divergence: Divergence, a: Trace, b: Trace) -> str:
    def side(trace: Trace, token_id: int, margin: float | None) -> str:
        known = "margin not recorded" if margin is None else f"margin {margin:.3f}"
        return f"{token_id} {trace.token(token_id).text!r} ({known})"

    left = side(a, divergence.a_id, divergence.margin_a)
    right = side(b, divergence.b_id, divergence.margin_b)
    return f"output token {divergence.index}: {left} against {right}"


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
