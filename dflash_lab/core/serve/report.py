"""A run in numbers, each under the name of its definition; what cannot be told is None, what is odd is a warning.

    throughput_tok_s          completion tokens of good answers / wall time from the first request to the last answer
    mean_acceptance_length    1 + accepted / steps over all steps of the run             (vLLM's definition)
    zlab_acceptance_length    mean over requests of completion tokens / steps  (z-lab's, and of the published tables)

Statistics that break an identity are not averaged away: then no acceptance is given at all, only what was broken.
"""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dflash_lab.core.acceptance import Acceptance
from dflash_lab.core.serve.metrics import Interval, between
from dflash_lab.core.serve.records import RequestRecord, ServerStats
from dflash_lab.core.serve.runfile import Run
from dflash_lab.core.serve.stats import pooled
from dflash_lab.core.serve.verdicts import run_warnings, speculation_verdict

LENGTH_EDGES = (64, 256, 1024)
"""Prompt tokens at which buckets of prompt length begin."""


@dataclass(frozen=True)
class Spread:
    """One value per request or per chunk, summed up."""

    mean: float
    """Arithmetic mean."""
    p50: float
    """Median."""
    p90: float
    """90th percentile."""
    p99: float
    """99th percentile."""
    n: int
    """Values."""

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """None of no values."""
        if not values:
            return None
        ordered = sorted(values)
        quantiles = (percentile(ordered, share) for share in (0.5, 0.9, 0.99))
        return cls(statistics.fmean(values), *quantiles, len(values))


@dataclass(frozen=True)
class Group:
    """The good answers of one category or bucket."""

    name: str
    """Which."""
    num_requests: int
    """How many."""
    output_tokens: int | None
    """Their completion tokens; None if not all are known."""
    mean_acceptance_length: float | None
    """1 + accepted / steps over their steps."""
    zlab_acceptance_length: float | None
    """Mean over them of completion tokens / steps."""
    request_tok_s: float | None
    """Median of completion tokens / time to the last byte: prefill and queue included."""
    decode_tok_s: float | None
    """Median of tokens per second after the first; None unless streamed."""


@dataclass(frozen=True)
class RunReport:
    """What `live bench` reports of a run."""

    label: str
    """Method, or the name the run was given."""
    name: str
    """Data set and concurrency or rate."""
    status: str
    """`complete`, `interrupted`, `server lost` or `running`."""
    num_prompts: int
    """Requests planned."""
    num_requests: int
    """Requests that ended, well or not; one that was sent again counts once."""
    num_failed: int
    """Those of them that failed."""
    failures: Mapping[str, int]
    """Kind of failure to how often it happened, requests sent again included."""
    finish_reasons: Mapping[str, int]
    """Why the good answers ended."""
    throughput_tok_s: float | None
    """Completion tokens of good answers by wall time."""
    output_tokens: int | None
    """Completion tokens of good answers."""
    wall_s: float
    """Seconds from the first request to the last answer, summed over the parts of a resumed run."""
    tokens_from: str | None
    """`usage`, or `estimated` if the server's tokenizer had to count for one or more answers."""
    speculation: str
    """A key of `verdicts.SPECULATION`."""
    mean_acceptance_length: float | None
    """1 + accepted / steps, over all steps."""
    mean_request_acceptance_length: float | None
    """Mean over requests of 1 + accepted / steps."""
    zlab_acceptance_length: float | None
    """Mean over requests of completion tokens / steps."""
    acceptance_rate: float | None
    """Accepted / proposed: falls as the block grows even while the acceptance length rises."""
    drafts_per_step: int | None
    """Tokens proposed per step, the rate's denominator."""
    acceptance_from: str | None
    """Where these numbers come from: a key of `stats.SOURCES`."""
    acceptance: Acceptance | None
    """Histogram, survival and conditional rates by position."""
    broken: tuple[str, ...]
    """Identities that the server's statistics break; then no acceptance is given."""
    counters: ServerStats | None
    """The server's own counters over the run, for comparison."""
    ttft_ms: Spread | None
    """Time to the first token."""
    ttft_from: str | None
    """`client` (streamed), or `server`, whose clock leaves out network and queueing before it."""
    tpot_ms: Spread | None
    """Time per token after the first; None unless streamed."""
    chunk_gap_ms: Spread | None
    """Time between chunks. With speculation a chunk holds several tokens: this is not the time per token."""
    latency_ms: Spread | None
    """Time to the last byte."""
    decode_tok_s: float | None
    """Median over requests of tokens per second after the first."""
    cached_share: float | None
    """Prompt tokens found in the prefix cache, of all prompt tokens."""
    categories: tuple[Group, ...]
    """By the prompts' categories."""
    by_cached_share: tuple[Group, ...]
    """By the share of the prompt that came from the cache; empty if all are alike."""
    by_prompt_tokens: tuple[Group, ...]
    """By the prompt's length; empty if all are alike."""
    warnings: tuple[str, ...]
    """What these numbers should not be read without."""


def report(run: Run) -> RunReport:
    """The numbers of a run, also of one that goes on or broke off."""
    requests = run.requests
    good = [record for record in requests if record.ok]
    counters = counters_of(run)
    broken = tuple(f"request {record.index}: {text}" for record in good if record.stats for text in record.stats.broken)
    told = [record for record in good if record.stats is not None and record.stats.num_steps]
    tokens = _tokens(good)
    wall = wall_s(run)
    acceptance = None if broken else pooled(record.stats for record in told if record.stats)
    lengths = _Lengths() if broken else _lengths(told, acceptance, counters)
    firsts = [record.first_token_s for record in good if record.first_token_s is not None]
    by_server = [record.server_first_token_s for record in good if record.server_first_token_s is not None]
    per_token = [record.per_token_s for record in good if record.per_token_s is not None]
    gaps = [b - a for record in good for a, b in itertools.pairwise(record.chunk_s)]
    verdict = speculation_verdict(run.header.server, lengths.mean, told, counters)
    return RunReport(
        label=run.header.label,
        name=run.header.plan.name,
        status=run.status,
        num_prompts=run.header.plan.num_prompts,
        num_requests=len(requests),
        num_failed=len(requests) - len(good),
        failures=dict(Counter(record.failure for record in run.attempts if record.failure)),
        finish_reasons=dict(Counter(record.finish_reason or "not told" for record in good)),
        throughput_tok_s=tokens / wall if tokens is not None and wall > 0 else None,
        output_tokens=tokens,
        wall_s=wall,
        tokens_from="estimated" if any(r.tokens_from == "estimated" for r in good) else "usage" if tokens else None,
        speculation=verdict,
        mean_acceptance_length=lengths.mean,
        mean_request_acceptance_length=lengths.per_request,
        zlab_acceptance_length=lengths.zlab,
        acceptance_rate=lengths.rate,
        drafts_per_step=lengths.drafts or run.header.server.drafts_per_step,
        acceptance_from=lengths.source,
        acceptance=acceptance,
        broken=broken,
        counters=counters,
        ttft_ms=Spread.of([1000 * s for s in firsts or by_server]),
        ttft_from="client" if firsts else "server" if by_server else None,
        tpot_ms=Spread.of([1000 * s for s in per_token]),
        chunk_gap_ms=Spread.of([1000 * s for s in gaps]),
        latency_ms=Spread.of([1000 * record.duration_s for record in good]),
        decode_tok_s=_median([1 / s for s in per_token if s > 0]),
        cached_share=_cached_share(good),
        categories=_groups(good, lambda record: record.category or "none"),
        by_cached_share=_if_several(_groups(good, _cached_bucket)),
        by_prompt_tokens=_if_several(_groups(good, _length_bucket)),
        warnings=(*run.header.warnings, *run_warnings(run, verdict, tokens, whole_interval(run))),
    )


def wall_s(run: Run) -> float:
    """Seconds from the first request to the last end, summed over segments."""
    total = 0.0
    for segment in run.segments:
        records = [record for record in run.attempts if record.segment == segment.number]
        if records:
            total += max(r.end_at_s for r in records) - min(r.sent_at_s for r in records)
    return total


def whole_interval(run: Run) -> Interval | None:
    """What the server counted over the run; None without two snapshots, or if it was not one go."""
    if len(run.snapshots) < 2 or len(run.segments) != 1:
        return None
    interval = between(run.snapshots[0], run.snapshots[-1])
    return None if interval.restarted else interval


def counters_of(run: Run) -> ServerStats | None:
    """Verification statistics by the server's counters over the run."""
    interval = whole_interval(run)
    return interval.stats if interval else None


def percentile(ordered: Sequence[float], share: float) -> float:
    """Value below which `share` of the ordered values lie, interpolated."""
    position = share * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (position - low) * (ordered[high] - ordered[low])


@dataclass(frozen=True)
class _Lengths:
    """Acceptance in a few numbers."""

    mean: float | None = None
    per_request: float | None = None
    zlab: float | None = None
    rate: float | None = None
    drafts: int | None = None
    source: str | None = None


def _lengths(told: Sequence[RequestRecord], acceptance: Acceptance | None, counters: ServerStats | None) -> _Lengths:
    """From the requests' own statistics; without any, from the server's counters."""
    stats = [record.stats for record in told if record.stats is not None]
    if not stats:
        if counters is None or counters.num_accepted is None:
            return _Lengths()
        proposed = counters.num_proposed
        rate = counters.num_accepted / proposed if proposed else None
        return _Lengths(counters.acceptance_length, None, None, rate, counters.drafts_per_step, counters.source)
    drafts = {item.drafts_per_step for item in stats}
    per_request = [item.acceptance_length for item in stats if item.acceptance_length is not None]
    return _Lengths(
        mean=acceptance.mean_acceptance_length if acceptance else _pooled_length(stats),
        per_request=statistics.fmean(per_request) if per_request else None,
        zlab=zlab_length(told),
        rate=_rate(stats),
        drafts=drafts.pop() if len(drafts) == 1 else None,
        source=stats[0].source,
    )


def zlab_length(records: Sequence[RequestRecord]) -> float | None:
    """Mean over requests of completion tokens / steps; None if there are steps that the server has not counted."""
    if any(record.undrafted_tokens for record in records):
        return None
    values = [length for record in records if (length := tokens_per_step(record)) is not None]
    return statistics.fmean(values) if values else None


def tokens_per_step(record: RequestRecord) -> float | None:
    """Completion tokens / steps of one request, as z-lab's client reads them."""
    if record.stats is None or not record.stats.num_steps or record.completion_tokens is None:
        return None
    return record.completion_tokens / record.stats.num_steps


def _pooled_length(stats: Sequence[ServerStats]) -> float | None:
    pairs = [(item.num_accepted, item.num_steps) for item in stats if item.num_accepted is not None and item.num_steps]
    steps = sum(count for _, count in pairs)
    return 1 + sum(accepted for accepted, _ in pairs) / steps if steps else None


def _rate(stats: Sequence[ServerStats]) -> float | None:
    known = [(item.num_accepted, item.num_proposed) for item in stats]
    if any(None in pair for pair in known):
        return None
    proposed = sum(count or 0 for _, count in known)
    return sum(count or 0 for count, _ in known) / proposed if proposed else None


def _tokens(records: Sequence[RequestRecord]) -> int | None:
    counts = [record.completion_tokens for record in records]
    return None if None in counts or not counts else sum(count for count in counts if count)


def _cached_share(records: Sequence[RequestRecord]) -> float | None:
    known = [r for r in records if r.cached_tokens is not None and r.prompt_tokens]
    prompts = sum(record.prompt_tokens or 0 for record in known)
    return sum(record.cached_tokens or 0 for record in known) / prompts if prompts else None


def _groups(records: Sequence[RequestRecord], key: Callable[[RequestRecord], str]) -> tuple[Group, ...]:
    """The records by `key`, in the keys' order."""
    parts: dict[str, list[RequestRecord]] = {}
    for record in records:
        parts.setdefault(key(record), []).append(record)
    return tuple(_group(name, parts[name]) for name in sorted(parts))


def _group(name: str, records: Sequence[RequestRecord]) -> Group:
    stats = [record.stats for record in records if record.stats is not None and not record.stats.broken]
    speeds = [r.completion_tokens / r.duration_s for r in records if r.completion_tokens and r.duration_s > 0]
    decoding = [1 / r.per_token_s for r in records if r.per_token_s]
    return Group(
        name=name,
        num_requests=len(records),
        output_tokens=_tokens(records),
        mean_acceptance_length=_pooled_length(stats),
        zlab_acceptance_length=zlab_length(records),
        request_tok_s=_median(speeds),
        decode_tok_s=_median(decoding),
    )


def _if_several(groups: tuple[Group, ...]) -> tuple[Group, ...]:
    return groups if len(groups) > 1 else ()


def _cached_bucket(record: RequestRecord) -> str:
    if record.cached_tokens is None or not record.prompt_tokens:
        return "not reported"
    share = record.cached_tokens / record.prompt_tokens
    return "1: nothing cached" if share == 0 else "2: up to half" if share <= 0.5 else "3: more than half"


def _length_bucket(record: RequestRecord) -> str:
    if record.prompt_tokens is None:
        return "not reported"
    bucket = sum(record.prompt_tokens >= edge for edge in LENGTH_EDGES)
    names = ("below 64", "64 to 255", "256 to 1023", "1024 or more")
    return f"{bucket + 1}: {names[bucket]}"


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None
