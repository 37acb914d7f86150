"""A server's own counters: Prometheus text and SGLang's JSON into one `Snapshot`, two snapshots into an `Interval`.

Counters, not gauges, make the numbers of an interval: SGLang's gauges hold the last interval of its log and are stale
when it idles. A counter that runs backwards means that the server was started anew: nothing is said of that interval.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dflash_lab.core.serve.records import ServerStats, Snapshot

_LINE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+\S+)?\s*")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')

_RANKS = ("tp_rank", "pp_rank", "moe_ep_rank")
"""Ranks within one copy of the model: each may report the same requests, so they are not added up."""


@dataclass(frozen=True)
class Sample:
    """One line of Prometheus text."""

    name: str
    """Name of the series, as on the wire."""
    labels: Mapping[str, str]
    """Its labels."""
    value: float
    """Its value."""


@dataclass(frozen=True)
class Interval:
    """What a server did between two snapshots."""

    begin_at_s: float
    """First snapshot, Unix seconds."""
    end_at_s: float
    """Second snapshot."""
    tok_s: float | None
    """Tokens written per second, by the counter that goes on while requests run where there is one."""
    output_tokens: int | None
    """Tokens written, by the counter that a run is measured with: SGLang's adds a request's tokens at its end."""
    prompt_tokens: int | None
    """Prompt tokens taken in."""
    cached_prompt_tokens: int | None
    """Those of them that were found in the prefix cache."""
    stats: ServerStats | None
    """Verification statistics; None if the server counts none, or is not speculating."""
    restarted: bool
    """Whether a counter ran backwards; then nothing else is told."""


def parse(text: str) -> list[Sample]:
    """The samples of a page in Prometheus' text format; lines that are none are passed over."""
    samples = []
    for line in text.splitlines():
        if line.startswith("#") or not (match := _LINE.fullmatch(line)):
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        samples.append(Sample(match[1], dict(_LABEL.findall(match[2] or "")), value))
    return samples


def snapshot_of(text: str, at_s: float, model: str) -> Snapshot | None:
    """The state in a page of Prometheus text of vLLM or SGLang (or our own server); None if it is of neither."""
    samples = [item for item in parse(text) if item.labels.get("model_name", model) == model]
    if any(item.name.startswith("vllm:") for item in samples):
        return _vllm(samples, at_s)
    if any(item.name.startswith("sglang:") for item in samples):
        return _sglang(samples, at_s)
    return None


def snapshot_of_loads(loads: Mapping[str, Any], at_s: float) -> Snapshot:
    """The state in SGLang's /v1/loads, for a server without metrics."""
    ranks = [rank for rank in loads.get("loads") or () if isinstance(rank, Mapping)]
    lengths = _numbers((rank.get("speculative") or {}).get("accept_length") for rank in ranks)
    known = [length for length in lengths if length > 0]
    return Snapshot(
        at_s,
        "loads",
        running=int(sum(_numbers(rank.get("num_running_reqs") for rank in ranks))) if ranks else None,
        waiting=int(sum(_numbers(rank.get("num_waiting_reqs") for rank in ranks))) if ranks else None,
        kv_cache_usage=max(_numbers(rank.get("token_usage") for rank in ranks), default=None),
        gauge_tok_s=sum(_numbers(rank.get("gen_throughput") for rank in ranks)) or None,
        gauge_length=sum(known) / len(known) if known else None,
    )


def between(before: Snapshot, after: Snapshot) -> Interval:
    """What happened from one snapshot to a later one of the same server."""
    names = ("output_tokens", "decoded_tokens", "prompt_tokens", "cached_prompt_tokens", "num_steps", "num_accepted")
    grown = {name: _grown(before, after, name) for name in (*names, "num_proposed")}
    positions = _positions(before.accepted_by_position, after.accepted_by_position)
    changes = [change for change in (*grown.values(), *(positions or ())) if change is not None]
    if any(change < 0 for change in changes):
        return Interval(before.at_s, after.at_s, None, None, None, None, None, restarted=True)
    elapsed = after.at_s - before.at_s
    written = grown["output_tokens"] if grown["decoded_tokens"] is None else grown["decoded_tokens"]
    return Interval(
        begin_at_s=before.at_s,
        end_at_s=after.at_s,
        tok_s=written / elapsed if written is not None and elapsed > 0 else None,
        output_tokens=grown["output_tokens"],
        prompt_tokens=grown["prompt_tokens"],
        cached_prompt_tokens=grown["cached_prompt_tokens"],
        stats=_stats(grown, positions),
        restarted=False,
    )


def _stats(grown: Mapping[str, int | None], positions: Sequence[int] | None) -> ServerStats | None:
    steps, accepted = grown["num_steps"], grown["num_accepted"]
    if not steps:
        return None
    if accepted is None:  # SGLang counts no accepted proposals, only tokens and steps
        tokens = grown["output_tokens"]
        length = tokens / steps if tokens else None
        return ServerStats("metrics", "sglang", steps, reported_length=length, convention="tokens_per_step")
    histogram = None
    if positions:
        survivors = (steps, *positions, 0)
        histogram = tuple(a - b for a, b in itertools.pairwise(survivors))
    return ServerStats(
        "metrics",
        "vllm",
        num_steps=steps,
        num_accepted=accepted,
        num_proposed=grown["num_proposed"],
        # The counters are not read at one instant: steps of a running request may be counted in one and not the other.
        histogram=histogram if histogram and min(histogram) >= 0 else None,
        drafts_per_step=len(positions) if positions else None,
        reported_length=1 + accepted / steps,
        convention="accepted_per_step",
    )


def _vllm(samples: Sequence[Sample], at_s: float) -> Snapshot:
    by_position: dict[int, float] = {}
    for item in samples:
        if item.name == "vllm:spec_decode_num_accepted_tokens_per_pos_total":
            position = int(item.labels["position"])
            by_position[position] = by_position.get(position, 0) + item.value
    finished = [item for item in samples if item.name == "vllm:request_success_total"]
    ended_badly = [item for item in finished if item.labels.get("finished_reason") in ("abort", "error")]
    return Snapshot(
        at_s,
        "metrics",
        running=_total(samples, "vllm:num_requests_running"),
        waiting=_total(samples, "vllm:num_requests_waiting"),
        output_tokens=_total(samples, "vllm:generation_tokens_total"),
        prompt_tokens=_total(samples, "vllm:prompt_tokens_total"),
        cached_prompt_tokens=_total(samples, "vllm:prefix_cache_hits_total"),
        num_steps=_total(samples, "vllm:spec_decode_num_drafts_total"),
        num_accepted=_total(samples, "vllm:spec_decode_num_accepted_tokens_total"),
        num_proposed=_total(samples, "vllm:spec_decode_num_draft_tokens_total"),
        accepted_by_position=tuple(int(by_position[key]) for key in sorted(by_position)) or None,
        finished=int(sum(item.value for item in finished) - sum(item.value for item in ended_badly)),
        aborted=int(sum(item.value for item in ended_badly)),
        kv_cache_usage=_gauge(samples, "vllm:kv_cache_usage_perc"),
    )


def _sglang(samples: Sequence[Sample], at_s: float) -> Snapshot:
    decoding = [item for item in samples if item.labels.get("mode") == "decode"]
    speculative = any(item.name.startswith("sglang:spec_") for item in samples)
    return Snapshot(
        at_s,
        "metrics",
        running=_total(samples, "sglang:num_running_reqs"),
        waiting=_total(samples, "sglang:num_queue_reqs"),
        # SGLang leaves a counter out until it is first used.
        output_tokens=_total(samples, "sglang:generation_tokens_total") or 0,
        decoded_tokens=_total(decoding, "sglang:realtime_tokens_total"),
        prompt_tokens=_total(samples, "sglang:prompt_tokens_total") or 0,
        cached_prompt_tokens=_total(samples, "sglang:cached_tokens_total"),
        num_steps=_total(samples, "sglang:spec_verify_calls_total") or (0 if speculative else None),
        finished=_total(samples, "sglang:num_requests_total") or 0,
        aborted=_total(samples, "sglang:num_aborted_requests_total"),
        kv_cache_usage=_gauge(samples, "sglang:token_usage"),
        gauge_tok_s=_sum(samples, "sglang:gen_throughput"),
        gauge_length=_gauge(samples, "sglang:spec_accept_length") or None,
    )


def _total(samples: Iterable[Sample], name: str) -> int | None:
    total = _sum(samples, name)
    return None if total is None else int(total)


def _sum(samples: Iterable[Sample], name: str) -> float | None:
    """The sum over copies of the model, each counted once; None if the series is not there."""
    copies: dict[tuple, float] = {}
    for item in samples:
        if item.name == name:
            copy = tuple(sorted((key, value) for key, value in item.labels.items() if key not in _RANKS))
            copies[copy] = max(copies.get(copy, item.value), item.value)
    return sum(copies.values()) if copies else None


def _gauge(samples: Iterable[Sample], name: str) -> float | None:
    """The largest value of a gauge that is not additive; None if it is not there."""
    return max((item.value for item in samples if item.name == name), default=None)


def _grown(before: Snapshot, after: Snapshot, name: str) -> int | None:
    later = getattr(after, name)
    return None if later is None else later - (getattr(before, name) or 0)


def _positions(before: Sequence[int] | None, after: Sequence[int] | None) -> tuple[int, ...] | None:
    if after is None:
        return None
    return tuple(b - a for a, b in zip(before or (0,) * len(after), after, strict=True))


def _numbers(values: Iterable[Any]) -> list[float]:
    return [value for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)]
