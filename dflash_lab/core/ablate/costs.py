"""What a step costs at each block size, measured in the real loop: acceptance alone does not say what is fastest."""

from __future__ import annotations

import dataclasses
import statistics
import time
from dataclasses import dataclass

from dflash_lab.core.generate import Pair, generate
from dflash_lab.core.trace.recorder import MAX_CANDIDATES
from dflash_lab.core.types import GenerateRequest, SamplingParams, StepTimings

WARMUPS = 1
"""Steps before those that count."""
LEAST_STEPS, MOST_STEPS, ENOUGH_S = 4, 32, 0.1
"""Steps that count: at least so many, and more until so many or so many seconds."""


@dataclass(frozen=True)
class StepCost:
    """Milliseconds of a verification step, the median of several."""

    draft_ms: float
    """Drafter backbone."""
    select_ms: float
    """Head, candidates, edge scores and walk."""
    verify_ms: float
    """The target's pass and the accept decision."""
    commit_ms: float
    """Book-keeping."""
    cost_steps: int
    """Steps measured."""

    @property
    def step_ms(self) -> float:
        """The whole step."""
        return self.draft_ms + self.select_ms + self.verify_ms + self.commit_ms


def measure_cost(pair: Pair, prompt: str, block_size: int, num_candidates: int) -> StepCost | None:
    """Time whole steps of `block_size` after `prompt`; None if the text ends before there is one.

    A captured step reads the device's clock only where it records its scores: so it does here, and that is counted.
    """
    steps = WARMUPS + MOST_STEPS
    request = GenerateRequest(
        prompt,
        # Room for every step to be accepted whole, and for one more block: none is cut.
        SamplingParams(max_new_tokens=(steps + 1) * block_size + 1),
        block_size=block_size,
        num_candidates=num_candidates,
        record="scores" if pair.engine and num_candidates <= MAX_CANDIDATES else "none",
    )
    generation = generate(pair, request)
    timings: list[StepTimings] = []
    started = time.perf_counter()
    for step in generation:
        timings.append(step.record.timings)
        if len(timings) == WARMUPS:
            started = time.perf_counter()
        counted = len(timings) - WARMUPS
        if counted >= MOST_STEPS or (counted >= LEAST_STEPS and time.perf_counter() - started > ENOUGH_S):
            generation.cancel()
    measured = timings[WARMUPS:] or timings
    if not measured:
        return None
    phases = {
        f"{name}_ms": statistics.median(getattr(timing, f"{name}_ms") for timing in measured)
        for name in ("draft", "select", "verify", "commit")
    }
    return StepCost(**phases, cost_steps=len(measured))


def speed(mean_acceptance_length: float | None, cost: StepCost | None) -> dict[str, float | int | None]:
    """A row's times: those of `cost`, and what they come to with this acceptance length.

    `tok_s` is acceptance length / step time, `ms_per_token` its inverse: the cost of each token that is kept.
    """
    if cost is None or not cost.step_ms or mean_acceptance_length is None:
        return dict.fromkeys(TIMES)
    return {
        **dataclasses.asdict(cost),
        "step_ms": cost.step_ms,
        "tok_s": 1e3 * mean_acceptance_length / cost.step_ms,
        "ms_per_token": cost.step_ms / mean_acceptance_length,
    }


TIMES = (*(field.name for field in dataclasses.fields(StepCost)), "step_ms", "tok_s", "ms_per_token")
"""Names of a row's times."""
