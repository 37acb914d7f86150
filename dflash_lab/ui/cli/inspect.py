"""`dflash-lab inspect`: one verification step in the terminal, or as data."""

from __future__ import annotations

import dataclasses
import math
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dflash_lab.ui.cli.options import check_step, step_option
from dflash_lab.ui.cli.output import Output, Result, story

if TYPE_CHECKING:
    from dflash_lab.core.trace.schema import Trace


@click.command()
@click.argument("trace", type=click.Path(path_type=Path))
@step_option
@story
def inspect(out: Output, trace: Path, step: int) -> Result:
    """Draw one step of TRACE, or give it as data.

    Candidates and path, what was accepted, what the target wanted instead and why it was not proposed.
    """
    from dflash_lab.core.trace import store
    from dflash_lab.ui.view.terminal import draw_step

    opened = store.load(trace)
    check_step(step, len(opened.steps), str(trace))
    width = shutil.get_terminal_size((120, 0)).columns
    return Result(step_document(opened, step), draw_step(opened, step, width, out.color))


def step_document(trace: Trace, step: int) -> dict[str, Any]:
    """Step number `step` of `trace` as JSON values; null for what was not recorded."""
    from dflash_lab.core.trace.metrics import step_analysis

    record, analysis = trace.steps[step], step_analysis(trace, step)

    def listed(name: str) -> Any:
        tensor = trace.tensor(name, record.index)
        return None if tensor is None else tensor.tolist()

    return {
        "trace": trace.name,
        "step": record.index,
        "num_steps": len(trace.steps),
        "start": record.start,
        "anchor": _token(trace, record.anchor_id),
        "candidates": _candidates(trace, record.index),
        "unary": listed("unary"),
        "edges": listed("edges"),
        "path": listed("path"),
        "proposal": _tokens(trace, record.draft_ids),
        "accepted": record.num_accepted,
        "bonus": _token(trace, record.bonus_id),
        "committed": _tokens(trace, record.committed_ids),
        "truncated": record.truncated,
        "target_ids": listed("target_ids"),
        "cause": analysis.cause,
        "wanted": None if analysis.wanted_id is None else _token(trace, analysis.wanted_id),
        "wanted_rank": analysis.target_rank,
        "argmax_length": analysis.argmax_length,
        "selected_length": analysis.selected_length,
        "best_path_length": analysis.best_length,
        "known": analysis.known,
        "timings_ms": {**dataclasses.asdict(record.timings), "total_ms": record.timings.total_ms},
    }


def _candidates(trace: Trace, index: int) -> list[list[dict[str, Any]]] | None:
    """By position, best first: id, token, unary score and the drafter's probability."""
    ids, unary, norm = (trace.tensor(name, index) for name in ("candidate_ids", "unary", "log_norm"))
    if ids is None or unary is None:
        return None
    norms = [None] * len(ids) if norm is None else norm.tolist()
    return [
        [
            {**_token(trace, token_id), "unary": score, "p": None if total is None else math.exp(score - total)}
            for token_id, score in zip(column.tolist(), scores.tolist(), strict=True)
        ]
        for column, scores, total in zip(ids, unary, norms, strict=True)
    ]


def _tokens(trace: Trace, ids: Iterable[int]) -> list[dict[str, Any]]:
    return [_token(trace, token_id) for token_id in ids]


def _token(trace: Trace, token_id: int) -> dict[str, Any]:
    return {"id": token_id, "token": trace.token(token_id).text}
