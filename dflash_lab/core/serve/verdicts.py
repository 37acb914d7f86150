"""What is to be said of a run before its numbers are believed."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from dflash_lab.core.serve.metrics import Interval
from dflash_lab.core.serve.records import RequestRecord, ServerInfo, ServerStats
from dflash_lab.core.serve.runfile import Run

SPECULATION = {
    "off": "speculation is not active: the target decodes alone",
    "no effect": "speculation is active but the drafter contributes nothing",
    "working": "speculation is active",
    "not counted": "speculation is configured, but no verification step was counted",
    "not reported": "the server does not tell whether it speculates",
}
"""What a run says about speculation; off, dead and unknown must not look alike."""

NO_EFFECT = 1.01
"""Acceptance length up to which a drafter contributes nothing."""

COLD_REQUESTS, COLD_RATIO = 8, 0.8
"""A run has drifted if its first so many requests are slower than the rest by this ratio."""

SHORT_STEPS = 20
"""Verification steps a request below which tokens / steps is biased by the first token and the last block."""

CACHED_SHARE = 0.1
"""Share of prompt tokens from the prefix cache from which it is worth a warning."""

OTHERS = 1.02
"""Tokens the server wrote by ours, from which it must have answered others."""


def speculation_verdict(
    info: ServerInfo, length: float | None, told: Sequence[RequestRecord], counters: ServerStats | None
) -> str:
    """A key of `SPECULATION`."""
    if length is not None:
        return "no effect" if length < NO_EFFECT else "working"
    if told or counters is not None:
        return "working"
    if info.speculation is None:
        return "not reported"
    return ("not counted" if info.statistics else "not reported") if info.speculation else "off"


def run_warnings(run: Run, verdict: str, tokens: int | None, interval: Interval | None) -> list[str]:
    """Each in one line."""
    good = [record for record in run.requests if record.ok]
    found = []
    if verdict in ("no effect", "not counted"):
        found.append(SPECULATION[verdict])
    failed = len(run.requests) - len(good)
    if failed:
        found.append(f"{failed} of {len(run.requests)} requests failed; their tokens are not counted, their time is")
    if len(run.segments) > 1:
        found.append(f"measured in {len(run.segments)} goes: every go has its own beginning and end")
    found += _about_tokens(run, good, tokens, interval)
    found += _about_statistics(run, good)
    if (ratio := cold_ratio(good)) is not None and ratio < COLD_RATIO:
        found.append(
            f"the first {COLD_REQUESTS} requests ran at {ratio:.0%} of the speed of the rest: warm up for longer"
        )
    return found


def cold_ratio(good: Sequence[RequestRecord]) -> float | None:
    """Median tokens per second of the first requests by that of the rest; None for fewer than twice as many."""
    ordered = sorted(good, key=lambda record: record.sent_at_s)
    speeds = [r.completion_tokens / r.duration_s for r in ordered if r.completion_tokens and r.duration_s > 0]
    if len(speeds) < 2 * COLD_REQUESTS:
        return None
    return statistics.median(speeds[:COLD_REQUESTS]) / statistics.median(speeds[COLD_REQUESTS:])


def _about_tokens(run: Run, good: Sequence[RequestRecord], tokens: int | None, interval: Interval | None) -> list[str]:
    found = []
    estimated = sum(record.tokens_from == "estimated" for record in good)
    if estimated:
        found.append(f"{estimated} answers had no usage: their tokens are estimated with the server's tokenizer")
    unknown = sum(record.completion_tokens is None for record in good)
    if unknown:
        found.append(f"{unknown} answers had no usage, and nothing could count their tokens: no throughput is given")
    if tokens and interval is not None and (interval.output_tokens or 0) > OTHERS * tokens:
        found.append(f"the server wrote {interval.output_tokens} tokens, ours were {tokens}: it answered others too")
    prompts = sum(record.prompt_tokens or 0 for record in good if record.cached_tokens is not None)
    cached = sum(record.cached_tokens or 0 for record in good)
    if prompts and cached / prompts > CACHED_SHARE:
        found.append(f"{cached / prompts:.0%} of the prompt tokens came from the prefix cache; --salt keeps it out")
    return found


def _about_statistics(run: Run, good: Sequence[RequestRecord]) -> list[str]:
    stats = [record.stats for record in good if record.stats is not None]
    found = list(dict.fromkeys(warning for item in stats for warning in item.warnings))
    steps = [item.num_steps for item in stats if item.num_steps]
    if steps and statistics.median(steps) < SHORT_STEPS:
        found.append(
            f"short answers, a median of {statistics.median(steps):g} steps: tokens / steps counts the first token too "
            "and reads up to 1 / steps high"
        )
    if undrafted := sum(record.undrafted_tokens for record in good):
        found.append(
            f"{undrafted} tokens came from steps without a draft, which the server does not count: its acceptance "
            "length is that of the other steps, and tokens / steps is not given"
        )
    longer = [record for record in good if (record.completion_tokens or 0) > 1]
    if stats and len(stats) < len(longer):
        found.append(f"{len(longer) - len(stats)} of {len(longer)} answers carried no verification statistics")
    drafts = {item.drafts_per_step for item in stats if item.drafts_per_step is not None}
    told = run.header.server.drafts_per_step
    if told is not None and drafts - {told}:
        found.append(f"the server says {told} drafts per step, its answers {', '.join(map(str, sorted(drafts)))}")
    return found
