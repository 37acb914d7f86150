"""What the target found of each output token: its probability and how near the runner-up was."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from dflash_lab.core.trace.schema import Trace
    from dflash_lab.core.types import StepRecord


def token_layers(trace: Trace) -> tuple[np.ndarray, np.ndarray] | None:
    """(probability, top-2 margin) of every output token, float32, not-a-number where it is not known.

    The probability is the target's, of the full vocabulary at temperature 1; the margin is in logits. The first token
    comes from prefill and is not known. None if no step has the target's scores.
    """
    num_tokens, first = len(trace.header.output_ids), len(trace.header.prompt_ids)
    p, margin = np.full((2, num_tokens), np.nan, np.float32)
    found = False
    for record in trace.steps:
        top2, norm = (trace.tensor(name, record.index) for name in ("target_top2", "target_log_norm"))
        if top2 is None or norm is None:
            continue
        found = True
        at = record.start + 1 - first
        count = min(record.commit_length, num_tokens - at)
        p[at : at + count] = np.exp(_logits(trace, record, top2)[:count] - norm[:count])
        margin[at : at + count] = (top2[:, 0] - top2[:, 1])[:count]
    return (p, margin) if found else None


def _logits(trace: Trace, record: StepRecord, top2: np.ndarray) -> np.ndarray:
    """The target's logits of the committed tokens, by slot; not-a-number for a drawn token that is no candidate."""
    committed = np.array(record.committed_ids)
    count = len(committed)
    ids, listed, logits = (trace.tensor(name, record.index) for name in ("target_ids", "candidate_ids", "target_logit"))
    found = np.full(count, np.nan, np.float32)
    if listed is not None and logits is not None:
        rows = min(count, len(listed))
        slots, places = np.nonzero(listed[:rows] == committed[:rows, None])
        found[slots] = logits[slots, places]
    if ids is not None:
        best = ids[:count] == committed
        found[best] = top2[:count, 0][best]
    return found
