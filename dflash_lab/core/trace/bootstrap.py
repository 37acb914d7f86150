"""Intervals by drawing prompts again: how far a number would move with other prompts of the same kind.

A prompt is drawn as a whole, with all of its steps, because steps of one text are not independent. Two arms are
compared with the same draws, prompt by prompt (paired).
"""

from __future__ import annotations

import numpy as np

RESAMPLES = 2000
"""Draws behind an interval."""
COVERAGE = 0.95
"""Share of the draws that an interval holds."""


def draw_prompts(num_prompts: int, random: np.random.Generator) -> np.ndarray:
    """`[RESAMPLES, n]` indices: prompts drawn with replacement."""
    return random.integers(num_prompts, size=(RESAMPLES, num_prompts))


def pooled_length(totals: np.ndarray) -> np.ndarray:
    """Acceptance length from `[..., (accepted, steps)]`: 1 + accepted / steps."""
    return 1 + totals[..., 0] / np.maximum(totals[..., 1], 1)


def drawn_lengths(totals: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """Acceptance length `[RESAMPLES]` of each draw, pooled over its prompts; `totals [n, (accepted, steps)]`."""
    return pooled_length(totals[draws].sum(1))


def interval(drawn: np.ndarray) -> tuple[float, float]:
    """The middle `COVERAGE` of `drawn`."""
    outside = 50 * (1 - COVERAGE)
    low, high = np.percentile(drawn, (outside, 100 - outside))
    return float(low), float(high)
