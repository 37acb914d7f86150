"""How many proposals were accepted, from counts alone, and the identities that keep such a report honest.

Everything follows from one histogram by draft length, h[K][a] = steps that proposed K tokens and had a accepted:

    steps m = sum h      accepted = sum a h      proposed = sum K h      tokens = m + accepted
    acceptance length = tokens / m = 1 + accepted / m       (vLLM's mean acceptance length; bonus counted, not clipped)
    acceptance rate = accepted / proposed
    survival[i] = P(accepted >= i), over all m steps        so that 1 + sum(survival) = acceptance length
    conditional_rate[i] = P(accepted >= i | accepted >= i - 1 and position i was proposed)

Positions count from 1, the anchor excluded. Steps may propose different numbers of tokens: no count is divided by a
configured block size.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dflash_lab.core.errors import TraceError


@dataclass(frozen=True)
class Acceptance:
    """Acceptance over a set of verification steps. Lists by position start at position 1."""

    histogram_by_draft_length: Mapping[int, tuple[int, ...]]
    """K to K + 1 counts: steps that proposed K tokens and had 0, 1, .. K of them accepted."""
    num_steps: int
    """Verification steps, m."""
    num_proposed: int
    """Tokens proposed in all steps: the acceptance rate's denominator."""
    num_accepted: int
    """Proposals accepted in all steps, without bonus tokens."""
    num_tokens: int
    """Accepted and bonus tokens of all steps, before anything is cut off at stop or length."""
    mean_acceptance_length: float | None
    """1 + accepted / steps; None without steps."""
    acceptance_rate: float | None
    """Accepted / proposed; None if nothing was proposed."""
    acceptance_histogram: tuple[int, ...]
    """Steps with 0, 1, .. accepted proposals, whatever their K."""
    survival: tuple[float, ...]
    """Share of all steps whose accepted prefix reaches the position."""
    conditional_rate: tuple[float | None, ...]
    """Of the steps that proposed the position and accepted all before it, the share that accepted it; None of none."""
    conditional_n: tuple[int, ...]
    """Steps behind each conditional rate."""
    drafted_n: tuple[int, ...]
    """Steps that proposed the position."""


def from_counts(pairs: Iterable[tuple[int, int]]) -> Acceptance:
    """Acceptance of steps given as (tokens proposed, tokens accepted)."""
    table: dict[int, list[int]] = {}
    for num_drafted, num_accepted in pairs:
        assert 0 <= num_accepted <= num_drafted, (num_drafted, num_accepted)
        table.setdefault(num_drafted, [0] * (num_drafted + 1))[num_accepted] += 1
    return from_histograms({length: tuple(table[length]) for length in sorted(table)})


def from_histograms(table: Mapping[int, tuple[int, ...]]) -> Acceptance:
    """Acceptance of steps counted by draft length: K to the K + 1 counts of steps that had 0, 1, .. K accepted."""
    return Acceptance(histogram_by_draft_length=table, **_derive(table))


def from_histogram(histogram: Sequence[int], num_draft: int, num_tokens: int) -> Acceptance:
    """Acceptance of steps that all proposed `num_draft` tokens, `histogram[a]` of which had `a` accepted.

    `num_tokens` is what the reporter counted for these steps, accepted and bonus tokens: a number of its own, so that a
    wrong histogram shows. Trailing zeros of the histogram may be left out. Raises TraceError naming a broken identity.
    """
    if len(histogram) > num_draft + 1:
        raise TraceError(
            f"{num_draft} drafts per step: expected at most {num_draft + 1} histogram entries, got {len(histogram)}; "
            "drafts per step do not count the anchor"
        )
    padded = tuple(histogram) + (0,) * (num_draft + 1 - len(histogram))
    acceptance = dataclasses.replace(from_histograms({num_draft: padded}), num_tokens=num_tokens)
    check_identities(acceptance)
    return acceptance


def check_identities(acceptance: Acceptance) -> None:
    """Recompute every number from the histogram by draft length; raises TraceError naming each broken identity."""
    broken = [
        f"{_IDENTITIES[name]} gives {_short(expected)}, reported {_short(getattr(acceptance, name))}"
        for name, expected in _derive(acceptance.histogram_by_draft_length).items()
        if not _equal(getattr(acceptance, name), expected)
    ]
    length = acceptance.mean_acceptance_length
    if length is not None and not _equal(1 + math.fsum(acceptance.survival), length):
        broken.append(f"1 + sum(survival) = acceptance length gives {1 + math.fsum(acceptance.survival):.5f}")
    if broken:
        raise TraceError(f"broken identity: {'; '.join(broken)}; one of these numbers is not of this run")


_IDENTITIES = {
    "num_steps": "steps = sum(histogram)",
    "num_proposed": "proposed = sum(K * steps that drafted K)",
    "num_accepted": "accepted = sum(i * histogram[i])",
    "num_tokens": "tokens = steps + accepted",
    "mean_acceptance_length": "acceptance length = 1 + accepted / steps",
    "acceptance_rate": "acceptance rate = accepted / proposed",
    "acceptance_histogram": "histogram = sum of the histograms by draft length",
    "survival": "survival[i] = steps with i or more accepted / steps",
    "conditional_rate": "conditional_rate[i] = survivors at i / survivors at i - 1 that drafted i",
    "conditional_n": "conditional n[i] = survivors at i - 1 that drafted i",
    "drafted_n": "drafted n[i] = steps that drafted i or more",
}


def _derive(table: Mapping[int, tuple[int, ...]]) -> dict[str, object]:
    """Every other field of Acceptance from the histogram by draft length."""
    longest = max(table, default=0)
    positions = range(1, longest + 1)
    histogram = [0] * (longest + 1)
    for counts in table.values():
        for accepted, steps in enumerate(counts):
            histogram[accepted] += steps
    num_steps = sum(histogram)
    num_accepted = sum(accepted * steps for accepted, steps in enumerate(histogram))
    num_proposed = sum(length * sum(counts) for length, counts in table.items())
    survivors = [sum(histogram[i:]) for i in positions]
    conditional_n = tuple(sum(sum(counts[i - 1 :]) for counts in table.values() if len(counts) > i) for i in positions)
    return {
        "num_steps": num_steps,
        "num_proposed": num_proposed,
        "num_accepted": num_accepted,
        "num_tokens": num_steps + num_accepted,
        "mean_acceptance_length": 1 + num_accepted / num_steps if num_steps else None,
        "acceptance_rate": num_accepted / num_proposed if num_proposed else None,
        "acceptance_histogram": tuple(histogram) if num_steps else (),
        "survival": tuple(count / num_steps for count in survivors),
        "conditional_rate": tuple(s / n if n else None for s, n in zip(survivors, conditional_n, strict=True)),
        "conditional_n": conditional_n,
        "drafted_n": tuple(sum(sum(counts) for counts in table.values() if len(counts) > i) for i in positions),
    }


def _equal(a: object, b: object) -> bool:
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(_equal(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-9)
    return a == b


def _short(value: object) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(_short(item) for item in value) + "]"
    return f"{value:.5f}" if isinstance(value, float) else str(value)
