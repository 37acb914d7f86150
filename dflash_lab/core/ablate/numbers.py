"""A row's numbers from walks, whether they were decoded or replayed: the definitions of trace.metrics, once more.

A trace holds one run; here are arrays of many prompts' steps. Every number is pooled over steps, as an acceptance
length is, and per-prompt sums are kept so that prompts can be drawn again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dflash_lab.core.ablate.replay import Walks
from dflash_lab.core.acceptance import from_counts
from dflash_lab.core.trace.bootstrap import draw_prompts, drawn_lengths, interval
from dflash_lab.core.trace.metrics import step_analysis
from dflash_lab.core.trace.schema import Trace


@dataclass(frozen=True)
class PromptWalk:
    """One prompt's verification steps, m of them."""

    drafted: np.ndarray
    """`[m]` tokens proposed."""
    accepted: np.ndarray
    """`[m]` leading proposals kept, not clipped."""
    known: np.ndarray
    """`[m]` leading positions whose continuation is known from the accepted proposals, the bonus token and the text."""
    ranks: np.ndarray | None
    """`[m, K]` rank of the wanted token among the candidates, 0 if it is none; None if candidates were not kept."""
    output_ids: tuple[int, ...]
    """The text."""
    timings_ms: tuple[float, ...] = ()
    """Draft, select, verify, commit: milliseconds of all steps; empty if not measured."""


def walk_of_trace(trace: Trace) -> PromptWalk:
    """The steps of a recorded run."""
    analyses = [step_analysis(trace, i) for i in range(len(trace))]
    depth = max((step.num_drafted for step in analyses), default=0)
    ranks = np.zeros((len(analyses), depth), dtype=np.int32)
    for row, step in zip(ranks, analyses, strict=True):
        if step.wanted_ranks is not None:
            row[: step.known] = [rank or 0 for rank in step.wanted_ranks]
    timings = [step.timings for step in trace.steps]
    phases = ("draft_ms", "select_ms", "verify_ms", "commit_ms")
    return PromptWalk(
        np.array([step.num_drafted for step in analyses], dtype=int),
        np.array([step.num_accepted for step in analyses], dtype=int),
        np.array([step.known for step in analyses], dtype=int),
        ranks if all(step.wanted_ranks is not None for step in analyses) else None,
        trace.header.output_ids,
        tuple(sum(getattr(timing, phase) for timing in timings) for phase in phases),
    )


def walk_of_replay(walks: Walks, choice: int, text: int, output_ids: tuple[int, ...]) -> PromptWalk:
    """The steps that one choice takes along one replayed text."""
    at = np.flatnonzero(walks.visited[choice, text])
    drafted, accepted = walks.drafted[text, at], walks.accepted[choice, text, at]
    # What a trace would know: the accepted tokens and the bonus token, and the text as far as it goes.
    known = np.minimum(np.maximum(accepted + 1, len(output_ids) - 1 - at), drafted)
    return PromptWalk(drafted, accepted, known, walks.ranks[text, at], output_ids)


@dataclass(frozen=True)
class PromptNumbers:
    """One prompt in a row's `per_prompt`. Sums are over its steps."""

    prompt: str
    """Id of the prompt."""
    category: str
    """Its category."""
    num_steps: int
    """Verification steps, m."""
    num_proposed: int
    """Tokens proposed."""
    num_accepted: int
    """Proposals kept, without bonus tokens, not clipped."""
    num_output_tokens: int
    """Tokens of the text, n, the one from prefill included."""
    mean_acceptance_length: float | None
    """1 + accepted / steps; None without steps."""
    argmax_acceptance_length: float | None
    """The same had the best candidate of each position been proposed at these steps."""
    best_path_acceptance_length: float | None
    """The same with the best path through the candidates."""
    acceptance_histogram: tuple[int, ...]
    """Steps with 0, 1, .. accepted proposals."""
    output_hash: str
    """Of the text: equal hashes are equal texts."""
    decode_ms: float | None
    """Milliseconds of its steps where they were decoded."""
    num_near_ties: int | None = None
    """Choices in a replay that rounding may turn; None where it was decoded."""


def prompt_numbers(walk: PromptWalk, num_candidates: int, prompt: str, category: str) -> PromptNumbers:
    """The numbers of one prompt."""
    count = len(walk.accepted)
    argmax = best = None
    if walk.ranks is not None and count:
        argmax = 1 + float(_leading(walk.ranks == 1, walk.known).mean())
        best = 1 + float(_leading((walk.ranks >= 1) & (walk.ranks <= num_candidates), walk.known).mean())
    return PromptNumbers(
        prompt,
        category,
        num_steps=count,
        num_proposed=int(walk.drafted.sum()),
        num_accepted=int(walk.accepted.sum()),
        num_output_tokens=len(walk.output_ids),
        mean_acceptance_length=1 + float(walk.accepted.mean()) if count else None,
        argmax_acceptance_length=argmax,
        best_path_acceptance_length=best,
        acceptance_histogram=tuple(np.bincount(walk.accepted).tolist()) if count else (),
        output_hash=text_hash([walk.output_ids]),
        decode_ms=float(sum(walk.timings_ms)) if walk.timings_ms else None,
    )


def pooled_numbers(
    walks: Sequence[PromptWalk], prompts: Sequence[PromptNumbers], num_candidates: int
) -> dict[str, Any]:
    """A row's numbers over all prompts, by the names of TraceMetrics; `prompts` are those of `walks`."""
    pairs = [pair for walk in walks for pair in zip(walk.drafted.tolist(), walk.accepted.tolist(), strict=True)]
    acceptance = from_counts(pairs)
    return {
        "num_steps": acceptance.num_steps,
        "num_accepted": acceptance.num_accepted,
        "num_output_tokens": sum(prompt.num_output_tokens for prompt in prompts),
        "mean_acceptance_length": acceptance.mean_acceptance_length,
        "interval": length_interval(prompts),
        "argmax_acceptance_length": _pooled(prompts, "argmax_acceptance_length"),
        "best_path_acceptance_length": _pooled(prompts, "best_path_acceptance_length"),
        "zlab_acceptance_length": _zlab(prompts),
        "acceptance_rate": acceptance.acceptance_rate,
        "survival": acceptance.survival,
        "conditional_rate": acceptance.conditional_rate,
        "conditional_n": acceptance.conditional_n,
        **_recall(walks, num_candidates, len(acceptance.survival)),
        "output_hash": text_hash([walk.output_ids for walk in walks]),
    }


def length_interval(prompts: Sequence[PromptNumbers]) -> tuple[float, float] | None:
    """95 % bootstrap interval of the acceptance length over prompts; None of fewer than two."""
    if len(prompts) < 2:
        return None
    totals = np.array([(prompt.num_accepted, prompt.num_steps) for prompt in prompts], dtype=float)
    return interval(drawn_lengths(totals, draw_prompts(len(prompts), np.random.default_rng(0))))


def text_hash(texts: Sequence[Sequence[int]]) -> str:
    """A short hash of token ids."""
    digest = hashlib.sha256()
    for ids in texts:
        digest.update(np.array([len(ids), *ids], dtype="<i8").tobytes())
    return digest.hexdigest()[:12]


def _leading(holds: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Leading true values of each row `[m, K]` within its `known` positions."""
    within = np.arange(holds.shape[1]) < known[:, None]
    return (holds & within).cumprod(axis=1).sum(axis=1)


def _pooled(prompts: Sequence[PromptNumbers], name: str) -> float | None:
    """Mean over all steps of a per-prompt mean; None where some prompt with steps lacks it."""
    stepped = [prompt for prompt in prompts if prompt.num_steps]
    values = [getattr(prompt, name) for prompt in stepped]
    if not stepped or None in values:
        return None
    return float(np.average(values, weights=[prompt.num_steps for prompt in stepped]))


def _zlab(prompts: Sequence[PromptNumbers]) -> float | None:
    """Mean over prompts of output tokens per verification step, as published tables have it."""
    ratios = [prompt.num_output_tokens / prompt.num_steps for prompt in prompts if prompt.num_steps]
    return float(np.mean(ratios)) if ratios else None


def _recall(walks: Sequence[PromptWalk], num_candidates: int, depth: int) -> dict[str, Any]:
    """By position: steps whose continuation is known there, and how often it is the first or any candidate."""
    counts = np.zeros((3, depth), dtype=int)
    for walk in walks:
        if walk.ranks is None:
            return {"recall_n": None, "recall_at_1": None, "recall_at_c": None}
        ranks = walk.ranks[:, :depth]
        known = np.arange(ranks.shape[1]) < walk.known[:, None]
        found = (known, known & (ranks == 1), known & (ranks >= 1) & (ranks <= num_candidates))
        counts[:, : ranks.shape[1]] += np.stack([each.sum(axis=0) for each in found])
    n, first, among = counts.tolist()
    return {
        "recall_n": n,
        "recall_at_1": [hit / of if of else None for hit, of in zip(first, n, strict=True)],
        "recall_at_c": [hit / of if of else None for hit, of in zip(among, n, strict=True)],
    }
