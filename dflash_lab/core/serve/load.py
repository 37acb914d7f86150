"""Sends a plan's requests, a fixed number at a time or as they would arrive, and writes down each as it ends.

A failure is a record like any other. When the server has gone, nothing more is sent; when the run is interrupted,
what is under way is given up and recorded as such. Either way what was measured stays and can be continued.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any

from dflash_lab.core.errors import ServerError
from dflash_lab.core.serve.endpoint import Answer, Endpoint, RequestFailure
from dflash_lab.core.serve.plan import WARMUP_TOKENS, PromptLike, Selection, messages, prompt_hash, short_hash
from dflash_lab.core.serve.probe import read_snapshot
from dflash_lab.core.serve.records import RequestRecord, RunEnd, RunHeader
from dflash_lab.core.serve.runfile import RunWriter, Segment
from dflash_lab.core.serve.stats import stats_of

SNAPSHOT_S = 2.0
"""Time between two looks at the server's counters."""

_GONE = ("connection", "cut", "timeout")
"""Failures after which the server is looked for."""

_LOOKS, _LOOK_S = 3, 0.5
"""How often, and at what distance, before it counts as lost."""


class Load:
    """One go at a run: its warm-up, then the requests asked for."""

    def __init__(
        self,
        endpoint: Endpoint,
        header: RunHeader,
        selection: Selection,
        writer: RunWriter,
        segment: int = 0,
        observe: Callable[[RequestRecord], None] = lambda record: None,
    ) -> None:
        """`observe` is called with each measured record; `segment` counts the goes that the run already had."""
        self._endpoint = endpoint
        self._header = header
        self._plan = header.plan
        self._selection = selection
        self._writer = writer
        self._segment = segment
        self._observe = observe
        self._in_flight = 0
        self._lost: str | None = None
        self._began = time.time() - time.perf_counter()

    async def run(self, indices: Iterable[int]) -> RunEnd:
        """Warm up, send the prompts with these numbers, and write the end down. A cancellation ends it early.

        Raises ServerError if no warm-up request is answered: then nothing is measured.
        """
        await self._warm_up()
        self._writer.write("segment", Segment(self._segment, self._now()))
        polling = asyncio.create_task(self._poll())
        status, message = "complete", None
        try:
            await asyncio.sleep(0)  # the first snapshot is asked for before the first request
            await (self._closed_loop if self._plan.rate is None else self._open_loop)(list(indices))
        except asyncio.CancelledError:
            status, message = "interrupted", "interrupted by us"
            task = asyncio.current_task()
            if task is not None:
                task.uncancel()
        if self._lost is not None:
            status, message = "server lost", self._lost
        polling.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await polling
        if status == "complete":
            await self._snapshot()
        end = RunEnd(status, self._now(), message)
        self._writer.write("end", end)
        return end

    async def _warm_up(self) -> None:
        """Send the warm-up, as many at a time as later; recorded, not measured."""
        texts = iter(enumerate(self._selection.warmup))
        body = {**self._header.body, "max_tokens": min(WARMUP_TOKENS, self._plan.max_new_tokens)}
        records: list[RequestRecord] = []

        async def worker() -> None:
            for index, text in texts:
                record = await self._ask(index, _Warmup(f"warm-up/{index}", text), body, None)
                self._writer.write("warmup", record)
                records.append(record)
                _raise_if_cancelled(record)

        async with _task_group() as group:
            for _ in range(self._plan.concurrency or len(self._selection.warmup)):
                group.create_task(worker())
        if records and all(not record.ok for record in records):
            first = records[0]
            raise ServerError(
                f"no warm-up request was answered ({first.failure}: {first.message}); nothing was measured, mend the "
                "server or the request and run again"
            )

    async def _closed_loop(self, indices: list[int]) -> None:
        waiting = iter(indices)

        async def worker() -> None:
            for index in waiting:
                await self._measure(index, None)
                if self._lost is not None:
                    return

        async with _task_group() as group:
            for _ in range(min(self._plan.concurrency or 1, len(indices))):
                group.create_task(worker())

    async def _open_loop(self, indices: list[int]) -> None:
        assert self._plan.rate is not None
        random_arrivals = random.Random(self._plan.seed)
        due = self._now()
        async with _task_group() as group:
            for index in indices:
                await asyncio.sleep(max(0.0, due - self._now()))
                if self._lost is not None:
                    return
                group.create_task(self._measure(index, due))
                due += random_arrivals.expovariate(self._plan.rate)

    async def _measure(self, index: int, due_at_s: float | None) -> None:
        """Send one prompt and keep its record; after a failure of the connection, see whether the server is there."""
        body = dict(self._header.body)
        if self._plan.salt:
            body["cache_salt"] = f"{self._began:.6f}-{self._segment}-{index}"
        record = await self._ask(index, self._selection.measured[index], body, due_at_s)
        self._writer.write("request", record)
        self._observe(record)
        _raise_if_cancelled(record)
        if record.failure in _GONE and not await self._is_there():
            self._lost = self._lost or f"the server no longer answers ({record.message})"

    async def _ask(
        self, index: int, prompt: PromptLike, body: Mapping[str, Any], due_at_s: float | None
    ) -> RequestRecord:
        """One request to its end, whatever it is; cancelled, it must be raised again once the record is written."""
        sent, began = self._now(), time.perf_counter()
        common = {
            "index": index,
            "prompt_id": prompt.id,
            "category": prompt.category,
            "prompt_hash": prompt_hash(prompt.text, body),
            "sent_at_s": sent,
            "segment": self._segment,
            "due_at_s": due_at_s,
        }
        self._in_flight += 1
        try:
            answer = await self._endpoint.complete({**body, "messages": messages(prompt.text)})
        except RequestFailure as failure:
            elapsed = time.perf_counter() - began
            return RequestRecord(**common, duration_s=elapsed, failure=failure.kind, message=str(failure))
        except asyncio.CancelledError:
            elapsed = time.perf_counter() - began
            return RequestRecord(**common, duration_s=elapsed, failure="cancelled", message="interrupted")
        finally:
            self._in_flight -= 1
        estimate = None
        if _count(_usage(answer).get("completion_tokens")) is None:
            estimate = await self._endpoint.count_tokens(str(body["model"]), answer.reasoning + answer.text)
        return RequestRecord(**common, **_outcome(answer, estimate))

    async def _is_there(self) -> bool:
        for look in range(_LOOKS):
            if await self._endpoint.alive():
                return True
            if look + 1 < _LOOKS:
                await asyncio.sleep(_LOOK_S)
        return False

    async def _poll(self) -> None:
        while True:
            await self._snapshot()
            await asyncio.sleep(SNAPSHOT_S)

    async def _snapshot(self) -> None:
        with contextlib.suppress(ServerError):  # a server that does not answer shows in the requests
            snapshot = await read_snapshot(self._endpoint, self._header.server, self._in_flight)
            if snapshot is not None:
                self._writer.write("snapshot", snapshot)

    def _now(self) -> float:
        """Unix time that never jumps."""
        return self._began + time.perf_counter()


@contextlib.asynccontextmanager
async def _task_group() -> AsyncIterator[asyncio.TaskGroup]:
    """A task group that raises the first error of its tasks, not a group of them."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


def _raise_if_cancelled(record: RequestRecord) -> None:
    if record.failure == "cancelled":
        raise asyncio.CancelledError


class _Warmup:
    """A warm-up text as a prompt."""

    category = "warm-up"
    dataset = "warm-up"

    def __init__(self, id: str, text: str) -> None:
        self.id = id
        self.text = text


def _outcome(answer: Answer, estimate: int | None) -> dict[str, Any]:
    """What an answer says, as fields of a record; one without a token, or given up by the server, has failed."""
    usage, meta = _usage(answer), _meta(answer)
    counted = _count(usage.get("completion_tokens"))
    tokens = estimate if counted is None else counted
    failure = "aborted" if answer.finish_reason == "abort" else "empty" if tokens == 0 else None
    metrics = answer.body.get("metrics")
    first_ms = metrics.get("time_to_first_token_ms") if isinstance(metrics, Mapping) else None
    first_s = first_ms / 1000 if isinstance(first_ms, (int, float)) else meta.get("first_token_latency")
    reasoning = usage.get("reasoning_tokens", _details(usage, "completion").get("reasoning_tokens"))
    cached = _details(usage, "prompt").get("cached_tokens", meta.get("cached_tokens"))
    return {
        "duration_s": answer.duration_s,
        "chunk_s": tuple(round(seconds, 6) for seconds in answer.chunk_s),
        "failure": failure,
        "message": None if failure is None else f"finish reason {answer.finish_reason}, {tokens} tokens",
        "prompt_tokens": _count(usage.get("prompt_tokens")),
        "completion_tokens": tokens,
        "tokens_from": None if tokens is None else "estimated" if counted is None else "usage",
        "reasoning_tokens": _count(reasoning),
        "cached_tokens": _count(cached),
        "finish_reason": answer.finish_reason,
        "output_hash": short_hash(f"{answer.reasoning}\0{answer.text}"),
        "server_first_token_s": float(first_s) if isinstance(first_s, (int, float)) else None,
        "stats": stats_of(answer.body, counted),
    }


def _count(value: Any) -> int | None:
    """A count, or None for whatever else stands in its place."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _usage(answer: Answer) -> Mapping[str, Any]:
    usage = answer.body.get("usage")
    return usage if isinstance(usage, Mapping) else {}


def _details(usage: Mapping[str, Any], side: str) -> Mapping[str, Any]:
    details = usage.get(f"{side}_tokens_details")
    return details if isinstance(details, Mapping) else {}


def _meta(answer: Answer) -> Mapping[str, Any]:
    choices = answer.body.get("choices") or ({},)
    meta = choices[0].get("meta_info")
    return meta if isinstance(meta, Mapping) else {}
