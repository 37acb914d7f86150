"""One verification step drawn for a terminal: candidates by position, the path through them, what the target wanted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dflash_lab.core.trace.metrics import StepAnalysis, step_analysis
from dflash_lab.ui.view.text import clip, visible

if TYPE_CHECKING:
    from dflash_lab.core.trace.schema import Trace
    from dflash_lab.core.types import StepRecord

MAX_ROWS = 16
"""Most candidates drawn; the rest is counted in a last line."""
CELL = 13
"""Terminal cells of one position with its gap."""
LABEL = 7
"""Terminal cells of the row label."""
GLYPHS = {"accepted": "✓", "mismatch": "✗", "unchecked": "–"}
FRAMES = {"accepted": "[]", "mismatch": "<>", "unchecked": "()"}
COLOURS = {"accepted": "1;34", "mismatch": "1;31", "unchecked": "2", "target": "30;43", "bonus": "1;35", "head": "1"}
CAUSE_WORDS = {
    "selector": "selector miss", "drafter": "drafter miss", "full": "all accepted", "stop": "cut by stop or length",
    "sampled": "rejected by sampling", "unknown": "cause not recorded",
}  # fmt: skip


@dataclass(frozen=True)
class Ink:
    """Writes text in a colour, or plainly where colours are not wanted."""

    on: bool
    """Whether to write ANSI colours."""

    def __call__(self, name: str, text: str) -> str:
        return f"\x1b[{COLOURS[name]}m{text}\x1b[0m" if self.on else text


NO_INK = Ink(on=False)


def draw_step(trace: Trace, i: int, width: int = 100, color: bool = False) -> str:
    """Step number `i` of `trace` as text of at most `width` terminal cells a line; wide blocks go on below.

    Raises IndexError if there is no such step.
    """
    if not 0 <= i < len(trace):
        raise IndexError(f"step must be in 0..{len(trace) - 1}, got {i}")
    record, ink = trace.steps[i], Ink(color)
    lines = headlines(trace, i, ink)
    depth, fit = len(record.draft_ids), max(1, (width - LABEL) // CELL)
    for first in range(0, depth, fit):
        lines += ["", *_band(trace, record, range(first, min(depth, first + fit)), ink)]
    if depth == record.num_accepted:
        sign = "★ bonus" if depth else "token"
        lines += ["", ink("bonus", f"{sign}: {clip(visible(trace.token(record.bonus_id).text), 20).rstrip()}")]
    if depth:
        lines += ["", "[path, accepted]  <path, first mismatch>  (path, not checked)  ◆ what the target wanted"]
    return "\n".join(line.rstrip() for line in lines)


def headlines(trace: Trace, i: int, ink: Ink = NO_INK) -> list[str]:
    """Step number `i` in four lines or fewer: its result, its anchor, the three lengths, its timings."""
    record, analysis = trace.steps[i], step_analysis(trace, i)
    depth, times = len(record.draft_ids), record.timings
    anchor = clip(visible(trace.token(record.anchor_id).text), 16).rstrip()
    result = f"{record.num_accepted} of {depth} accepted · {_cause(analysis)}" if depth else "no drafter"
    lines = [ink("head", f"step {i} (of {len(trace)}, from 0) · {result}") + f" · commits {record.commit_length}"]
    lines.append(f"anchor {anchor} at {record.start}")
    lengths = {"rank-1": analysis.argmax_length, "selected": analysis.selected_length, "best": analysis.best_length}
    if depth:
        shown = " · ".join(f"{name} {'·' if value is None else value}" for name, value in lengths.items())
        lines.append(f"acceptance length by path: {shown} (text known for {analysis.known} of {depth} positions)")
    phases = {"draft": times.draft_ms, "select": times.select_ms, "verify": times.verify_ms, "commit": times.commit_ms}
    spent = " · ".join(f"{name} {ms:.1f}" for name, ms in phases.items())
    lines.append(f"{spent} · together {times.total_ms:.1f} ms")
    return lines


def _cause(analysis: StepAnalysis) -> str:
    words = CAUSE_WORDS[analysis.cause]
    at_mismatch = analysis.cause in ("selector", "drafter", "sampled", "unknown")
    return f"{words} at {analysis.num_accepted + 1}" if at_mismatch else words


def _band(trace: Trace, record: StepRecord, positions: range, ink: Ink) -> list[str]:
    """The columns of `positions`, one under another what does not fit beside."""
    heads = [
        ink(position_state(record, j), clip(f" {j + 1} {GLYPHS[position_state(record, j)]}", CELL)) for j in positions
    ]
    lines = [" " * LABEL + "".join(heads)]
    candidates, path = trace.tensor("candidate_ids", record.index), trace.tensor("path", record.index)
    if candidates is None:
        cells = [_cell(trace, record, j, record.draft_ids[j], None, True, ink) for j in positions]
        return [*lines, clip("path", LABEL) + "".join(cells), *_target_rows(trace, record, positions, None, ink)]
    p = probabilities(trace, record)
    for r in range(min(candidates.shape[1], MAX_ROWS)):
        cells = []
        for j in positions:
            on_path = path is not None and path[j] == r
            probability = None if p is None else p[j, r]
            cells.append(_cell(trace, record, j, int(candidates[j, r]), probability, on_path, ink))
        lines.append(clip(f"{r + 1:4d}", LABEL) + "".join(cells))
    if candidates.shape[1] > MAX_ROWS:
        lines.append(" " * LABEL + f"… {candidates.shape[1] - MAX_ROWS} more candidates")
    return [*lines, *_target_rows(trace, record, positions, candidates, ink)]


def _cell(trace: Trace, record: StepRecord, j: int, token_id: int, p: float | None, on_path: bool, ink: Ink) -> str:
    state = position_state(record, j)
    number = "" if p is None else percent(p)
    inner = clip(visible(trace.token(token_id).text), CELL - 4 - len(number)) + " " * bool(number) + number
    inner = clip(inner, CELL - 3)
    if on_path:
        return ink(state, FRAMES[state][0] + inner + FRAMES[state][1]) + " "
    if j == record.num_accepted and token_id == record.bonus_id:
        return ink("target", "◆" + inner + " ") + " "
    return f" {inner}  "


def _target_rows(
    trace: Trace, record: StepRecord, positions: range, candidates: np.ndarray | None, ink: Ink
) -> list[str]:
    """What the target said at `positions`; at the mismatch its token, and below it the token's rank."""
    mismatch = record.num_accepted
    cells = [clip(" = path" if j < mismatch else "", CELL) for j in positions]
    if mismatch not in positions:
        return [clip("target", LABEL) + "".join(cells)]
    token = visible(trace.token(record.bonus_id).text)
    cells[mismatch - positions.start] = ink("target", clip(f"◆{token}", CELL - 1)) + " "
    row = clip("target", LABEL) + "".join(cells)
    if candidates is None:
        return [row]
    found = np.flatnonzero(candidates[mismatch] == record.bonus_id)
    note = f"rank {found[0] + 1}" if found.size else "not in list"
    return [row, " " * (LABEL + 1 + CELL * (mismatch - positions.start)) + note]


def position_state(record: StepRecord, j: int) -> str:
    """What became of the proposal at position `j` (from 0): a key of GLYPHS."""
    if j < record.num_accepted:
        return "accepted"
    return "mismatch" if j == record.num_accepted else "unchecked"


def probabilities(trace: Trace, record: StepRecord) -> np.ndarray | None:
    """Draft probabilities `[K, C]` of the candidates, of the full vocabulary; None if not recorded."""
    unary, log_norm = trace.tensor("unary", record.index), trace.tensor("log_norm", record.index)
    return None if unary is None or log_norm is None else np.exp(unary - log_norm[:, None])


def percent(p: float) -> str:
    """A probability in per cent, at most three characters."""
    value = 100 * float(p)
    if value < 0.1:
        return "<.1"
    return f"{value:.1f}".removeprefix("0") if value < 9.95 else f"{value:.0f}"
