"""A step as an HTML table that needs no script and no style sheet: what a saved notebook shows, and a code host.

Every mark is a character as well as a colour, since code hosts drop the colours.
"""

from __future__ import annotations

import html
import math
from typing import TYPE_CHECKING

from dflash_lab.core.trace.metrics import step_analysis
from dflash_lab.ui.view.terminal import GLYPHS, headlines, percent, position_state, probabilities
from dflash_lab.ui.view.text import clip, visible

if TYPE_CHECKING:
    import numpy as np

    from dflash_lab.core.trace.schema import Trace
    from dflash_lab.core.types import StepRecord

MIN_ROWS = 4
"""Candidates drawn at least, where there are as many; more where the path or the target's token lies deeper."""
WIDTH = 12
"""Most characters of a token."""
OUTLINES = {
    "accepted": "outline:2px solid #0072B2;outline-offset:-2px",
    "mismatch": "outline:2px dashed #B34700;outline-offset:-2px",
    "unchecked": "outline:1px dotted #767676;outline-offset:-1px",
}
CELL = "white-space:nowrap;text-align:left;"
WANTED = "background:#E69F00;color:#111"
LEGEND = "✓ path, accepted · ✗ first mismatch · – not checked · ◆ what the target wanted · draft probability in %"


def step_html(trace: Trace, i: int) -> str:
    """Step number `i` of `trace`: what happened in words, then the candidates by position. Raises IndexError."""
    if not 0 <= i < len(trace):
        raise IndexError(f"step must be in 0..{len(trace) - 1}, got {i}")
    record = trace.steps[i]
    first, *others = (html.escape(line) for line in headlines(trace, i))
    said = "<br>".join((f"<strong>{first}</strong>", *others))
    if not record.draft_ids:
        return f"<p>{said}<br>token {_token(trace, record.bonus_id)}</p>"
    table = f"<table>{_head(record)}{_rows(trace, i)}</table>"
    return f'<p>{said}</p><div style="overflow-x:auto">{table}</div><p><small>{LEGEND}</small></p>'


def _head(record: StepRecord) -> str:
    columns = "".join(f"<th>{j + 1} {GLYPHS[position_state(record, j)]}</th>" for j in range(len(record.draft_ids)))
    full = "<th>★</th>" if record.num_accepted == len(record.draft_ids) else ""
    return f"<thead><tr><th>rank</th>{columns}{full}</tr></thead>"


def _rows(trace: Trace, i: int) -> str:
    record = trace.steps[i]
    positions = range(len(record.draft_ids))
    candidates, path = (trace.tensor(name, record.index) for name in ("candidate_ids", "path"))
    if candidates is None or path is None:
        cells = "".join(_cell(trace, record, j, record.draft_ids[j], None, True) for j in positions)
        return f"<tbody><tr><th>path</th>{cells}{_bonus(trace, record)}</tr>{_target(trace, record, None)}</tbody>"
    p = probabilities(trace, record)
    rank = step_analysis(trace, i).target_rank
    deepest = max(MIN_ROWS, rank or 0, 1 + int(path[: record.num_accepted + 1].max()))
    rows = []
    for r in range(min(deepest, candidates.shape[1])):
        shares = [None if p is None else float(p[j, r]) for j in positions]
        cells = [_cell(trace, record, j, int(candidates[j, r]), shares[j], path[j] == r) for j in positions]
        rows.append(f"<tr><th>{r + 1}</th>{''.join(cells)}{'' if r else _bonus(trace, record)}</tr>")
    return f"<tbody>{''.join(rows)}{_target(trace, record, candidates)}</tbody>"


def _cell(trace: Trace, record: StepRecord, j: int, token_id: int, p: float | None, on_path: bool) -> str:
    marks, style = [], []
    if p is not None and p > 0:
        style.append(f"background:rgba(0,114,178,{0.4 * math.sqrt(min(p, 1)):.2f})")
    if on_path:
        marks.append(GLYPHS[position_state(record, j)])
        style.append(OUTLINES[position_state(record, j)])
    if j == record.num_accepted and token_id == record.bonus_id:
        marks.append("◆")
        style.append(WANTED)
    text = _token(trace, token_id)
    if marks:
        text = f"<b>{' '.join(marks)} {text}</b>"
    number = "" if p is None else f" <small>{percent(p)}</small>"
    return f'<td style="{CELL}{";".join(style)}">{text}{number}</td>'


def _bonus(trace: Trace, record: StepRecord) -> str:
    """After full acceptance a column more: the target's own token."""
    full = record.num_accepted == len(record.draft_ids)
    return f"<td><b>★ {_token(trace, record.bonus_id)}</b></td>" if full else ""


def _target(trace: Trace, record: StepRecord, candidates: np.ndarray | None) -> str:
    """What the target said: the path up to the mismatch, there its own token; nothing is known of it after that."""
    cells = [f'<td style="{CELL}">= path</td>'] * record.num_accepted
    if record.num_accepted < len(record.draft_ids):
        listed = candidates is None or record.bonus_id in candidates[record.num_accepted]
        note = "" if listed else " <small>not in list</small>"
        cells.append(f'<td style="{CELL}{WANTED}"><b>◆ {_token(trace, record.bonus_id)}</b>{note}</td>')
    return f"<tr><th>target</th>{''.join(cells)}</tr>"


def _token(trace: Trace, token_id: int) -> str:
    return f"<bdi>{html.escape(clip(visible(trace.token(token_id).text), WIDTH).rstrip())}</bdi>"
