"""Live servers as plain data for charts: series over time, acceptance by position, published numbers beside them.

Every function gives dicts and lists that go to JSON as they are. Times are seconds after the first moment shown; what
the server does not report is None, never 0, and an empty list is an honest empty state.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dflash_lab.core.acceptance import Acceptance, from_histograms
from dflash_lab.core.serve.metrics import Interval, between
from dflash_lab.core.serve.published import DATASET_LABELS, differences, same_hardware, tables_of
from dflash_lab.core.serve.records import CONVENTIONS, LoadPlan, RequestRecord, ServerInfo, Snapshot
from dflash_lab.core.serve.report import RunReport
from dflash_lab.core.serve.runfile import Run
from dflash_lab.core.serve.stats import SOURCES, pooled

POSITIONS = "position 1 is the first draft; the anchor is not counted"
"""What every axis of positions must say."""

LATE_WINDOW_S = 10.0
"""Seconds over which rates of counters are taken that take a request's tokens only when it ends."""

MAX_BINS = 240
"""Most points of a throughput series of our own load."""


def server_series(snapshots: Sequence[Snapshot], start_s: float | None = None, window_s: float = 0.0) -> dict[str, Any]:
    """The server's own counters over time, from `start_s` (Unix seconds) or from the first snapshot.

    `t_s` belongs to `running`, `waiting`, `in_flight` and `kv_cache_usage`; `interval_t_s`, the ends of intervals that
    began `window_s` or more before, to `tok_s` and `acceptance_length`. `convention` says what the latter is.
    """
    start = start_s if start_s is not None else snapshots[0].at_s if snapshots else 0.0
    intervals = [between(_before(snapshots, i, window_s), snapshots[i]) for i in range(1, len(snapshots))]
    ends = list(zip(intervals, snapshots[1:], strict=True))
    lengths = [_length_now(interval, snapshot) for interval, snapshot in ends]
    return {
        "window_s": window_s,
        "t_s": [snapshot.at_s - start for snapshot in snapshots],
        "running": [snapshot.running for snapshot in snapshots],
        "waiting": [snapshot.waiting for snapshot in snapshots],
        "in_flight": [snapshot.in_flight for snapshot in snapshots],
        "kv_cache_usage": [snapshot.kv_cache_usage for snapshot in snapshots],
        "interval_t_s": [interval.end_at_s - start for interval in intervals],
        "tok_s": [_tok_s_now(interval, snapshot) for interval, snapshot in ends],
        "acceptance_length": [length for length, _ in lengths],
        "convention": next((CONVENTIONS[name] for _, name in reversed(lengths) if name), None),
        "restarts": [interval.end_at_s - start for interval in intervals if interval.restarted],
    }


def late_window_s(info: ServerInfo | None, snapshots: Sequence[Snapshot]) -> float:
    """`LATE_WINDOW_S` for a server whose counters take a request's tokens when it ends, else 0."""
    late = info is not None and info.backend != "vllm" and bool(snapshots) and snapshots[-1].decoded_tokens is None
    return LATE_WINDOW_S if late else 0.0


def _before(snapshots: Sequence[Snapshot], index: int, window_s: float) -> Snapshot:
    """The last snapshot at least `window_s` before the one at `index`, else the first."""
    end = snapshots[index].at_s
    earlier = (snapshots[i] for i in range(index - 1, -1, -1))
    return next((snapshot for snapshot in earlier if end - snapshot.at_s >= window_s), snapshots[0])


def interval_length(interval: Interval) -> tuple[float | None, str | None]:
    """Acceptance length of an interval with the key of its convention: 1 + accepted / steps where it can be had."""
    if interval.stats is None:
        return None, None
    if interval.stats.acceptance_length is not None:
        return interval.stats.acceptance_length, "accepted_per_step"
    return interval.stats.reported_length, interval.stats.convention


def _length_now(interval: Interval, end: Snapshot) -> tuple[float | None, str | None]:
    """As `interval_length`. SGLang counts steps when a request ends; while one runs, its gauge is the better word."""
    if (interval.stats is None or interval.stats.acceptance_length is None) and end.gauge_length and end.running:
        return end.gauge_length, "committed_per_step"
    return interval_length(interval)


def _tok_s_now(interval: Interval, end: Snapshot) -> float | None:
    """By a counter; by a gauge, while something runs, where there is no counter."""
    if interval.tok_s is None and not interval.restarted and end.running:
        return end.gauge_tok_s
    return interval.tok_s


def load_series(run: Run) -> dict[str, Any]:
    """Our own load over time: tokens per second in bins, and the acceptance length of each request at its end.

    The tokens of a request are spread evenly over its chunks, or over its time if it was not streamed. While the run
    goes on, the bins end where requests that are still under way began: what those have got so far is not known.
    """
    good = [record for record in run.requests if record.ok]
    start = run.segments[0].begin_at_s if run.segments else 0.0
    end = _known_until(run, start)
    width = max(1.0, (end - start) / MAX_BINS)
    bins = [0.0] * max(1, math.ceil((end - start) / width)) if end > start else []
    for record in good:
        for moment, tokens in _arrivals(record):
            if moment <= end:
                bins[min(len(bins) - 1, max(0, int((moment - start) / width)))] += tokens
    seconds = [min(width, end - start - index * width) for index in range(len(bins))]
    ended = sorted(good, key=lambda record: record.end_at_s)
    return {
        "bin_s": width,
        "t_s": [index * width + elapsed / 2 for index, elapsed in enumerate(seconds)],
        "tok_s": [tokens / elapsed for tokens, elapsed in zip(bins, seconds, strict=True)],
        "request_t_s": [record.end_at_s - start for record in ended],
        "request_acceptance_length": [record.stats.acceptance_length if record.stats else None for record in ended],
        "failures": [
            {"t_s": record.end_at_s - start, "kind": record.failure, "message": record.message}
            for record in run.attempts
            if record.failure
        ],
    }


def _known_until(run: Run, start: float) -> float:
    """The moment before which every request has ended: with N at a time, the Nth last end began the oldest of them."""
    ends = sorted(record.end_at_s for record in run.attempts)
    if not ends:
        return start
    if run.status != "running" or run.header.plan.concurrency is None:
        return ends[-1]
    return ends[-run.header.plan.concurrency] if len(ends) >= run.header.plan.concurrency else start


def position_chart(acceptance: Acceptance | None) -> dict[str, Any]:
    """Histogram and survival by position; empty lists if nothing was reported."""
    if acceptance is None:
        return {"positions": [], "survival": [], "conditional_rate": [], "conditional_n": [], "histogram": [],
                "num_steps": 0, "note": POSITIONS}  # fmt: skip
    return {
        "positions": list(range(1, len(acceptance.survival) + 1)),
        "survival": list(acceptance.survival),
        "conditional_rate": list(acceptance.conditional_rate),
        "conditional_n": list(acceptance.conditional_n),
        "histogram": list(acceptance.acceptance_histogram),
        "num_steps": acceptance.num_steps,
        "note": POSITIONS,
    }


def run_acceptance(run: Run) -> Acceptance | None:
    """All steps of a run so far; None if its answers carry no histograms, or some that do not add up."""
    stats = [record.stats for record in run.requests if record.ok and record.stats is not None]
    return None if any(item.broken for item in stats) else pooled(stats)


def watched_acceptance(snapshots: Sequence[Snapshot]) -> Acceptance | None:
    """All steps between the first snapshot and the last by the server's counters; None if it counts no positions."""
    if len(snapshots) < 2:
        return None
    stats = between(snapshots[0], snapshots[-1]).stats
    if stats is None or stats.histogram is None or stats.drafts_per_step is None:
        return None
    padded = (*stats.histogram, *(0,) * (stats.drafts_per_step + 1 - len(stats.histogram)))
    return from_histograms({stats.drafts_per_step: padded})


def watched_numbers(
    snapshots: Sequence[Snapshot], series: Mapping[str, Any], speculation: bool | None
) -> list[dict[str, Any]]:
    """The main numbers of a server that is watched, with its `server_series`; None where there is no counter."""
    last = snapshots[-1] if snapshots else None
    now = series["tok_s"][-1] if series["tok_s"] else None
    since = f"the last {series['window_s']:g} s" if series["window_s"] else "the last two looks"
    whole = between(snapshots[0], snapshots[-1]) if len(snapshots) > 1 else None
    length, convention = interval_length(whole) if whole else (None, None)
    meaning = f"{CONVENTIONS[convention]}; since the watch began" if convention else "no step was counted yet"
    stats = whole.stats if whole else None
    known = stats is not None and stats.num_accepted is not None and stats.num_proposed
    rate = stats.num_accepted / stats.num_proposed if known else None
    found = [
        _number("throughput now", now, "tok/s", f"by its counters, over {since}"),
        _number("throughput", whole and whole.tok_s, "tok/s", "by its counters, since the watch began"),
        _number("acceptance length", length, "", meaning),
        _number("acceptance rate", rate, "", "accepted / proposed; falls as the block grows"),
        _number("running", last and last.running, "", "requests that are being decoded"),
        _number("waiting", last and last.waiting, "", "requests in its queue"),
        _number("cache in use", last and last.kv_cache_usage, "", "share of its key-value cache"),
    ]
    return [item for item in found if speculation is not False or not item["name"].startswith("acceptance")]


def numbers(report: RunReport) -> list[dict[str, Any]]:
    """The main numbers of a run for a page or a terminal: name, value, unit, and what it means."""
    source = SOURCES.get(report.acceptance_from or "", "not reported by the server")
    rate = f"accepted / proposed, {report.drafts_per_step} drafts per step"
    clock = {"client": "until the first text arrives here", "server": "by the server's clock"}
    ttft = report.ttft_ms and report.ttft_ms.p50
    return [
        _number("throughput", report.throughput_tok_s, "tok/s", "completion tokens / time from first to last answer"),
        _number("acceptance length", report.mean_acceptance_length, "", f"1 + accepted / steps; {source}"),
        _number("tokens / step", report.zlab_acceptance_length, "", "mean of requests, as in the published tables"),
        _number("acceptance rate", report.acceptance_rate, "", rate),
        _number("decode speed", report.decode_tok_s, "tok/s", "of one request after its first token, median"),
        _number("first token", ttft, "ms", clock.get(report.ttft_from or "", "only streamed answers show it")),
        _number("per token", report.tpot_ms and report.tpot_ms.p50, "ms", "after the first token, median"),
        _number("latency", report.latency_ms and report.latency_ms.p50, "ms", "of a whole answer, median"),
    ]  # fmt: skip


def published_beside(info: ServerInfo, dataset: str, load: str, plan: LoadPlan | None = None) -> list[dict[str, Any]]:
    """What is published of this target: one entry for each table, with source and hardware; empty if nothing is.

    `acceptance_length` and `throughput_tok_s` map methods to the value of this data set and load, if there is one.
    `differs` says how what is measured was made unlike it; a load that is not ours (no `plan`) is not known.
    """
    name = DATASET_LABELS.get(dataset, dataset)
    found = []
    for table in tables_of(info.target or info.model):
        by_method = table.throughput_tok_s.get(load, {})
        found.append(
            {
                "id": table.id,
                "hardware": table.hardware,
                "same_hardware": same_hardware(table, info),
                "differs": list(differences(table, info, plan)) if plan else ["its load and sampling are not known"],
                "source": table.source,
                "confidence": table.confidence,
                "settings": settings_line(table.block_size, table.sampling),
                "acceptance_length": {m: row[name] for m, row in table.acceptance_length.items() if name in row},
                "throughput_tok_s": {m: row[name] for m, row in by_method.items() if name in row},
            }
        )
    return found


def settings_line(block_size: int, sampling: Any) -> str:
    """Block and sampling of a published table in one line."""
    words = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in sampling.items())
    return f"block {block_size} ({block_size - 1} drafts per step), {words}"


def _number(name: str, value: float | None, unit: str, meaning: str) -> dict[str, Any]:
    return {"name": name, "value": value, "unit": unit, "meaning": meaning}


def _arrivals(record: RequestRecord) -> list[tuple[float, float]]:
    """When tokens of a request came, and how many each time."""
    if not record.completion_tokens:
        return []
    pieces = record.chunk_s or tuple((i + 0.5) / 20 * record.duration_s for i in range(20))
    share = record.completion_tokens / len(pieces)
    return [(record.sent_at_s + piece, share) for piece in pieces]
