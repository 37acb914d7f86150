"""What the server counts, under SGLang's metric names. Written by the decoder's thread, read by any."""

from __future__ import annotations

import bisect
import threading
import time
from typing import TYPE_CHECKING, Any

from dflash_lab.core.serve.sglang_bodies import Family, histogram_samples
from dflash_lab.core.types import StepRecord, StopReason

if TYPE_CHECKING:
    from dflash_lab.ui.server.engine import Finished

INTERVAL = 10
"""Verification steps between updates of the gauges; SGLang's default `--decode-log-interval` is 40."""

_EDGES_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 120.0, 300.0)
_RANK = {"tp_rank": "0", "pp_rank": "0", "moe_ep_rank": "0"}
"""Labels of what SGLang's scheduler counts, beside those that all have."""


class _Times:
    """Durations in buckets."""

    def __init__(self) -> None:
        self.counts = [0] * (len(_EDGES_S) + 1)
        self.total_s = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect.bisect_left(_EDGES_S, seconds)] += 1
        self.total_s += seconds


class Counters:
    """Requests, tokens, verification steps and times since the server's start."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size  # 1 without a drafter
        self._lock = threading.Lock()
        self.running = self.waiting = 0
        self._aborted = self._prefilled_tokens = self._decoded_tokens = self._verified = 0
        self._requests, self._prompt_tokens, self._tokens = ({True: 0, False: 0} for _ in range(3))
        names = ("time_to_first_token", "e2e_request_latency", "request_time_per_output_token")
        self._times = {name: {True: _Times(), False: _Times()} for name in names}
        self._recent: list[tuple[StepRecord, float]] = []
        self._gauges = {"gen_throughput": 0.0, "spec_accept_length": 0.0, "spec_accept_rate": 0.0}
        self._last_step = 0.0
        self._steps = self._produced = 0

    def queue(self) -> None:
        """A request has come."""
        with self._lock:
            self.waiting += 1

    def drop(self) -> None:
        """A request has left the queue undecoded."""
        with self._lock:
            self.waiting -= 1
            self._aborted += 1

    def start(self) -> None:
        """A request's turn has come."""
        with self._lock:
            self.waiting -= 1
            self.running += 1

    def prefilled(self, num_prompt_tokens: int) -> None:
        """A prompt was read and its first token committed."""
        with self._lock:
            self._prefilled_tokens += num_prompt_tokens
            self._decoded_tokens += 1
            self._last_step = time.perf_counter()

    def step(self, record: StepRecord) -> None:
        """A verification step has ended."""
        now = time.perf_counter()
        with self._lock:
            self._decoded_tokens += record.commit_length
            self._steps += 1
            self._produced += record.num_accepted + 1
            self._recent.append((record, now - self._last_step))
            self._last_step = now
            if len(self._recent) == INTERVAL:
                self._close_interval()

    def _close_interval(self) -> None:
        records, seconds = zip(*self._recent, strict=True)
        accepted = sum(record.num_accepted for record in records)
        proposed = sum(len(record.draft_ids) for record in records)
        self._gauges = {
            "gen_throughput": sum(record.commit_length for record in records) / sum(seconds),
            "spec_accept_length": 1 + accepted / len(records),
            "spec_accept_rate": accepted / proposed if proposed else 0.0,
        }
        self._recent = []

    def end(self, finished: Finished | None, streamed: bool) -> None:
        """A request is over; None if it failed."""
        with self._lock:
            self.running -= 1
            if finished is None:
                self._aborted += 1
                return
            self._aborted += finished.stop_reason is StopReason.CANCELLED
            self._requests[streamed] += 1
            self._prompt_tokens[streamed] += finished.num_prompt_tokens
            self._tokens[streamed] += finished.num_tokens
            self._verified += sum(finished.histogram)
            self._times["time_to_first_token"][streamed].add(finished.first_token_s)
            self._times["e2e_request_latency"][streamed].add(finished.duration_s)
            if finished.num_tokens > 1:
                per_token = (finished.duration_s - finished.first_token_s) / (finished.num_tokens - 1)
                self._times["request_time_per_output_token"][streamed].add(per_token)

    def flush(self) -> bool:
        """Forget the average acceptance length, as SGLang does with its cache; False while a request is there."""
        with self._lock:
            idle = not self.running and not self.waiting
            if idle:
                self._steps = self._produced = 0
            return idle

    @property
    def state(self) -> dict[str, Any]:
        """What SGLang keeps in `internal_states`: the acceptance length is left out until there is one."""
        with self._lock:
            state = {"last_gen_throughput": self._gauges["gen_throughput"]}
            if self._block_size > 1 and self._steps:
                state["avg_spec_accept_length"] = self._produced / self._steps
            return state

    @property
    def totals(self) -> dict[str, int]:
        """Requests and tokens of all that has ended, for the end of the day."""
        with self._lock:
            return {
                "num_requests": sum(self._requests.values()),
                "num_aborted": self._aborted,
                "prompt_tokens": sum(self._prompt_tokens.values()),
                "completion_tokens": sum(self._tokens.values()),
                "verification_steps": self._verified,
            }

    def families(self) -> list[Family]:
        """Everything for `/metrics`. What has never happened is left out, as SGLang does."""
        with self._lock:
            drafting = {"spec_num_draft_tokens": self._block_size, "spec_num_steps": 1} if self._block_size > 1 else {}
            gauges = {
                "num_running_reqs": self.running,
                "num_queue_reqs": self.waiting,
                **{key: value for key, value in self._gauges.items() if drafting or not key.startswith("spec_")},
                **drafting,
            }
            families = [_gauge(name, value) for name, value in gauges.items()]
            if self._verified:
                families.append(_counter("spec_verify_calls", [({}, self._verified)]))
            if self._aborted:
                families.append(_counter("num_aborted_requests", [({}, self._aborted)]))
            live = {"prefill_compute": self._prefilled_tokens, "decode": self._decoded_tokens}
            families.append(_counter("realtime_tokens", [({**_RANK, "mode": key}, n) for key, n in live.items() if n]))
            by_stream = {
                "num_requests": self._requests,
                "prompt_tokens": self._prompt_tokens,
                "generation_tokens": self._tokens,
            }
            for name, counts in by_stream.items():
                families.append(_counter(name, [(_stream(key), n) for key, n in counts.items() if n]))
            for name, times in self._times.items():
                samples = [
                    sample
                    for key, kept in times.items()
                    if sum(kept.counts)
                    for sample in histogram_samples(_EDGES_S, kept.counts, kept.total_s, _stream(key))
                ]
                families.append(Family(f"sglang:{name}_seconds", "histogram", tuple(samples)))
            return families


def _gauge(name: str, value: float) -> Family:
    return Family(f"sglang:{name}", "gauge", (("", _RANK, float(value)),))


def _counter(name: str, values: list[tuple[dict[str, str], int]]) -> Family:
    return Family(f"sglang:{name}_total", "counter", tuple(("", labels, float(value)) for labels, value in values))


def _stream(streamed: bool) -> dict[str, str]:
    return {"is_streaming": str(streamed).lower()}
