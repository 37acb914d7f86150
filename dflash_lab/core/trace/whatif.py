"""What if the walk had taken another candidate: where it would have gone on to, and what would have been accepted.

One definition for every view: the path up to the picked position stays as recorded; from the picked candidate on the
walk is greedy over the recorded edge scores (without a selector: the best candidate at every position). A position is
accepted while its token is the target's own, which the committed text tells as far as it goes. Beyond that nobody
knows: the target never read that continuation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dflash_lab.core.errors import RequestError
from dflash_lab.core.trace.metrics import step_analysis
from dflash_lab.core.trace.schema import Trace


@dataclass(frozen=True)
class WhatIf:
    """Another path through the candidates of one step. Positions count from 0."""

    path: tuple[int, ...]
    """Index of the candidate at every position, K of them."""
    num_accepted: int
    """Leading positions at which the path has the target's own token, as far as that is known."""
    known: int
    """Leading positions at which the target's token is known, 0..K."""
    exact: bool
    """Whether `num_accepted` is final; if not, every known position agrees and more might have been accepted."""


def successors(trace: Trace, i: int) -> np.ndarray | None:
    """int [K, C]: the candidate that a greedy walk takes at a position after candidate e of the one before.

    Row 0 has the anchor as its only predecessor. None if the candidates of step number `i` were not recorded.
    """
    record = trace.steps[i]
    candidates = trace.tensor("candidate_ids", record.index)
    if candidates is None:
        return None
    edges = trace.tensor("edges", record.index)
    return np.zeros(candidates.shape, int) if edges is None else edges.argmax(axis=2)


def what_if(trace: Trace, i: int, position: int, candidate: int) -> WhatIf | None:
    """The walk of step number `i` with `candidate` at `position`, both from 0; None if it was not recorded.

    Of a sampled run the accepted positions are judged against the tokens that were drawn. Raises RequestError if there
    is no such position or candidate.
    """
    record = trace.steps[i]
    candidates, path = (trace.tensor(name, record.index) for name in ("candidate_ids", "path"))
    after = successors(trace, i)
    if candidates is None or path is None or after is None:
        return None
    depth, width = candidates.shape
    if not (0 <= position < depth and 0 <= candidate < width):
        raise RequestError(
            f"expected a position in 0..{depth - 1} and a candidate in 0..{width - 1}, got {position} and {candidate}"
        )
    taken = [int(e) for e in path[:position]] + [candidate]
    for j in range(position + 1, depth):
        taken.append(int(after[j, taken[-1]]))
    wanted = step_analysis(trace, i).wanted_ids
    agrees = [int(candidates[j, taken[j]]) == token for j, token in enumerate(wanted)]
    accepted = agrees.index(False) if False in agrees else len(agrees)
    return WhatIf(tuple(taken), accepted, len(wanted), accepted < len(wanted) or len(wanted) == depth)
