"""Did the servers write the same text? Four arms tell a drafter that changes it from batching and from the target.

Only greedy runs are compared. An arm is speculation on or off, one request at a time or several; several runs of an arm
are its repetitions. Speculation is never blamed without a run that did not speculate.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dflash_lab.core.serve.runfile import Run

VERDICTS = {
    "same": "the same text in all arms",
    "target": "the target itself writes other texts from run to run, with speculation off",
    "batching": "texts change with concurrency, with speculation off: batching, not the drafter",
    "speculation": "texts change with speculation and not without it",
    "cannot tell": "texts differ, and no run without speculation says what the target alone writes",
    "not compared": "fewer than two greedy runs over the same prompts",
}
"""What may come of it."""


@dataclass(frozen=True)
class ArmPair:
    """Two arms, or the repetitions of one, prompt by prompt."""

    a: str
    """One arm: `off, serial`, `on, concurrent`, ..."""
    b: str
    """The other, or the same."""
    num_compared: int
    """Pairs of answers to the same prompt."""
    num_different: int
    """Those whose texts differ."""

    @property
    def share(self) -> float:
        """Of different pairs."""
        return self.num_different / self.num_compared if self.num_compared else 0.0


@dataclass(frozen=True)
class TextVerdict:
    """What the texts of several runs say together."""

    verdict: str
    """A key of `VERDICTS`."""
    pairs: tuple[ArmPair, ...]
    """The counts behind it."""
    unrepeated: tuple[str, ...]
    """Arms with one run only: noise from run to run cannot be told there."""


def compare_texts(runs: Sequence[Run]) -> TextVerdict:
    """The verdict over the greedy ones among runs of the same prompts."""
    arms: dict[str, list[Run]] = {}
    for run in runs:
        if run.header.plan.temperature == 0:
            arms.setdefault(_arm(run), []).append(run)
    if sum(map(len, arms.values())) < 2:
        return TextVerdict("not compared", (), ())
    repeats = [_pair(name, name, itertools.combinations(group, 2)) for name, group in arms.items() if len(group) > 1]
    across = [_pair(a, b, itertools.product(arms[a], arms[b])) for a, b in itertools.combinations(sorted(arms), 2)]
    pairs = {(pair.a, pair.b): pair for pair in (*repeats, *across)}
    unrepeated = tuple(name for name, group in arms.items() if len(group) == 1)
    return TextVerdict(_verdict(pairs), tuple(pairs.values()), unrepeated)


def _verdict(pairs: dict[tuple[str, str], ArmPair]) -> str:
    if not any(pair.num_different for pair in pairs.values()):
        return "same"
    names = {name for pair in pairs for name in pair}
    if not any(name.startswith("off") for name in names):
        return "cannot tell"

    def share(a: str, b: str) -> float:
        pair = pairs.get((a, b)) or pairs.get((b, a))
        return pair.share if pair else 0.0

    noise = max(share("off, serial", "off, serial"), share("off, concurrent", "off, concurrent"))
    speculation = max(share(f"off, {load}", f"on, {load}") for load in ("serial", "concurrent"))
    batching = share("off, concurrent", "off, serial")
    if speculation > max(noise, batching):
        return "speculation"
    if batching > noise:
        return "batching"
    if noise:
        return "target"
    # What is left differs only between arms that have no counterpart.
    return "cannot tell"


def _arm(run: Run) -> str:
    serial = run.header.plan.concurrency == 1
    return f"{'off' if run.header.server.speculation is False else 'on'}, {'serial' if serial else 'concurrent'}"


def _pair(a: str, b: str, couples: Iterable[tuple[Run, Run]]) -> ArmPair:
    compared = different = 0
    for one, other in couples:
        texts = {record.prompt_id: record.output_hash for record in one.requests if record.ok}
        for record in other.requests:
            if record.ok and record.prompt_id in texts:
                compared += 1
                different += texts[record.prompt_id] != record.output_hash
    return ArmPair(a, b, compared, different)
