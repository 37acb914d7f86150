"""Two traces side by side: what was configured differently, where the texts part, and whether rounding explains it.

A lossless method gives the target's own text, so two greedy runs of one prompt should not part. Where they do, the
margin between the target's two largest logits tells why: block and single-token passes round differently, which flips
near ties only. In reported cases rounding stayed within 0 to 0.25; tokens that leaked into the state gave 0.6 to 2.4.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dflash_lab.core.trace.codec import to_json
from dflash_lab.core.trace.metrics import is_greedy, trace_metrics
from dflash_lab.core.trace.schema import Trace

ROUNDING_MARGIN = 0.25
"""A top-2 margin below this is a near tie that rounding may flip; logits."""

VERDICTS: dict[str, str] = {
    "identical": "the texts are equal as far as both go",
    "rounding": "a near tie that rounding may flip",
    "clear": "a clear difference, not explained by rounding",
    "unknown": "the margin was not recorded, or tokens were drawn at random",
}
"""What is said about the first divergence."""

_CONFIGURATION = ("request", "target", "drafter", "block_size", "num_candidates", "level", "backends", "provenance")
_ALWAYS_DIFFERENT = ("provenance.created", "provenance.argv")
_METRICS = (
    "num_steps",
    "num_output_tokens",
    "mean_acceptance_length",
    "zlab_list_mean",
    "zlab_acceptance_length",
    "sglang_accept_length",
    "acceptance_rate",
    "argmax_acceptance_length",
    "best_path_acceptance_length",
    "decode_tok_s",
    "steps_per_s",
)


@dataclass(frozen=True)
class Difference:
    """One value under the same name in both traces; None where it is absent."""

    name: str
    """Dotted name, e.g. `request.sampling.temperature`, or a metric's."""
    a: Any
    """Value in the first trace."""
    b: Any
    """Value in the second trace."""


@dataclass(frozen=True)
class Divergence:
    """The first output token in which two traces differ."""

    index: int
    """Index into the output tokens, from 0."""
    a_id: int
    """The first trace's token."""
    b_id: int
    """The second trace's token."""
    margin_a: float | None
    """The target's top-2 margin there in the first trace, logits; None if not recorded."""
    margin_b: float | None
    """The same in the second trace."""


@dataclass(frozen=True)
class Comparison:
    """What is the same and what is not in two traces."""

    comparable: bool
    """Whether both answer the same question: prompt, target and sampling are equal."""
    reasons: tuple[str, ...]
    """Why they are not comparable."""
    notes: tuple[str, ...]
    """What to mind when comparing their numbers."""
    differences: tuple[Difference, ...]
    """Configuration values that differ."""
    verdict: str
    """A key of `VERDICTS`."""
    divergence: Divergence | None
    """Where the texts part; None if one is the beginning of the other."""
    num_compared: int
    """Output tokens that both have, before the divergence."""
    metrics: tuple[Difference, ...]
    """Metrics of both, whether they differ or not."""


def compare(a: Trace, b: Trace) -> Comparison:
    """Compare two traces."""
    reasons = tuple(_reasons(a, b))
    divergence = first_divergence(a, b)
    shorter = min(len(a.header.output_ids), len(b.header.output_ids))
    metrics_a, metrics_b = trace_metrics(a), trace_metrics(b)
    return Comparison(
        comparable=not reasons,
        reasons=reasons,
        notes=tuple(_notes(a, b)),
        differences=tuple(_differences(a, b)),
        verdict=_verdict(divergence, greedy=is_greedy(a) and is_greedy(b)),
        divergence=divergence,
        num_compared=shorter if divergence is None else divergence.index,
        metrics=tuple(Difference(name, getattr(metrics_a, name), getattr(metrics_b, name)) for name in _METRICS),
    )


def first_divergence(a: Trace, b: Trace) -> Divergence | None:
    """The first output token that differs; None if one text is the beginning of the other."""
    for index, (a_id, b_id) in enumerate(zip(a.header.output_ids, b.header.output_ids, strict=False)):
        if a_id != b_id:
            return Divergence(index, a_id, b_id, margin_at(a, index), margin_at(b, index))
    return None


def margin_at(trace: Trace, index: int) -> float | None:
    """The target's top-2 margin where it chose output token `index`; None for the first token or if not recorded."""
    position = len(trace.header.prompt_ids) + index
    for record in trace.steps:
        if record.start < position <= record.start + record.commit_length:
            top2 = trace.tensor("target_top2", record.index)
            slot = position - record.start - 1
            return None if top2 is None else float(top2[slot, 0] - top2[slot, 1])
    return None


def _verdict(divergence: Divergence | None, greedy: bool) -> str:
    if divergence is None:
        return "identical"
    margins = [margin for margin in (divergence.margin_a, divergence.margin_b) if margin is not None]
    if not margins or not greedy:
        return "unknown"
    return "rounding" if min(margins) < ROUNDING_MARGIN else "clear"


def _reasons(a: Trace, b: Trace) -> Iterator[str]:
    first, second = a.header, b.header
    if first.prompt_ids != second.prompt_ids:
        pairs = enumerate(zip(first.prompt_ids, second.prompt_ids, strict=False))
        shorter = min(len(first.prompt_ids), len(second.prompt_ids))
        place = next((i for i, (x, y) in pairs if x != y), shorter)
        yield (
            f"prompts differ from token {place} on ({len(first.prompt_ids)} and {len(second.prompt_ids)} tokens): "
            "another text or another rendering by the chat template"
        )
    if first.target.get("name") != second.target.get("name"):
        yield f"targets differ: {first.target.get('name')} and {second.target.get('name')}"
    settings = [trace.header.request.get("sampling", {}) for trace in (a, b)]
    for name in ("temperature", "top_p", "top_k"):
        values = [setting.get(name) for setting in settings]
        if values[0] != values[1]:
            yield f"sampling differs: {name} {values[0]} and {values[1]}"


def _notes(a: Trace, b: Trace) -> Iterator[str]:
    drafts = [max((len(record.draft_ids) for record in trace.steps), default=0) for trace in (a, b)]
    if drafts[0] != drafts[1] and 0 not in drafts:
        yield f"{drafts[0]} and {drafts[1]} drafts per step: compare acceptance lengths, not acceptance rates"
    for trace in (a, b):
        if trace.header.status != "complete":
            yield f"{trace.name} is {trace.header.status}: its text ends early"


def _differences(a: Trace, b: Trace) -> Iterator[Difference]:
    values_a, values_b = _configuration(a), _configuration(b)
    for name in dict.fromkeys((*values_a, *values_b)):
        if name not in _ALWAYS_DIFFERENT and values_a.get(name) != values_b.get(name):
            yield Difference(name, values_a.get(name), values_b.get(name))


def _configuration(trace: Trace) -> dict[str, Any]:
    """Every configuration value by its dotted name."""
    header = to_json(trace.header)  # so that a trace in memory equals the same one from a file
    return dict(_flat({name: header[name] for name in _CONFIGURATION}))


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value
