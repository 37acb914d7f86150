"""Runs without a server: records with known numbers, and a way to measure a fake one."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_lab.core.serve.endpoint import Endpoint
from dflash_lab.core.serve.measure import make_task, next_go, send
from dflash_lab.core.serve.probe import probe
from dflash_lab.core.serve.records import (
    LoadPlan,
    RequestRecord,
    RunEnd,
    RunHeader,
    ServerInfo,
    ServerStats,
    Snapshot,
)
from dflash_lab.core.serve.runfile import Run, Segment

INFO = ServerInfo(
    "http://127.0.0.1:1",
    "sglang",
    "Qwen/Qwen3.8-Flash-Next-FP8",
    version="0.5.23",
    target="Qwen/Qwen3.8-Flash-Next-FP8",
    speculation=True,
    algorithm="DFLASH",
    method="DFlash 2",
    drafter="incoai/Qwen3.8-Flash-Next-DFlash2",
    drafts_per_step=3,
    hardware="NVIDIA GB300",
    num_devices=1,
    statistics=("meta_info", "metrics"),
)
OFF = dataclasses.replace(
    INFO, speculation=False, algorithm=None, method="Autoregressive", drafter=None, drafts_per_step=None
)


@dataclass(frozen=True)
class Prompt:
    """A prompt of a set."""

    id: str
    text: str
    category: str = "math"
    dataset: str = "toy"


def prompts(count: int) -> list[Prompt]:
    """Different prompts."""
    return [Prompt(f"toy/{i}", f"question number {i}", "math" if i % 2 else "code") for i in range(count)]


def stats(histogram: Sequence[int], drafts: int = 3, **more: Any) -> ServerStats:
    """Statistics that add up."""
    steps, accepted = sum(histogram), sum(i * n for i, n in enumerate(histogram))
    return ServerStats(
        "meta_info", "sglang >= 0.5.12", steps, accepted, steps * drafts, tuple(histogram), drafts, **more
    )


def record(index: int, **more: Any) -> RequestRecord:
    """A good answer of 100 tokens in a second, one after another."""
    usual = {
        "prompt_id": f"gsm8k/{index}",
        "category": "math",
        "prompt_hash": "ab",
        "sent_at_s": 1000.0 + index,
        "duration_s": 1.0,
        "completion_tokens": 100,
        "prompt_tokens": 50,
        "tokens_from": "usage",
        "finish_reason": "stop",
        "output_hash": f"text {index}",
    }
    return RequestRecord(index=index, **(usual | more))


def run(
    records: Sequence[RequestRecord],
    info: ServerInfo = INFO,
    name: str = "run.jsonl",
    snapshots: Sequence[Snapshot] = (),
    status: str | None = "complete",
    **plan: Any,
) -> Run:
    """A run of these records."""
    plan = {"dataset": "gsm8k", "num_prompts": len(records)} | plan
    header = RunHeader(
        label=info.method,
        server=info,
        plan=LoadPlan(**plan),
        body={},
        source="gsm8k.jsonl",
        available=1319,
        prompt_ids=tuple(item.prompt_id for item in records),
    )
    numbers = sorted({item.segment for item in records}) or [0]
    ends = [] if status is None else [RunEnd(status, 2000.0)] * len(numbers)
    segments = [Segment(number, 1000.0) for number in numbers]
    return Run(Path(name), header, segments, [], list(records), list(snapshots), ends)


@dataclass(frozen=True)
class PromptSet:
    """A whole set."""

    name: str
    prompts: Sequence[Prompt]
    source: str = "toy.jsonl"

    @property
    def available(self) -> int:
        """How many."""
        return len(self.prompts)


def measure(
    url: str,
    plan: LoadPlan,
    path: Path,
    texts: Sequence[Prompt] | None = None,
    observe: Callable[[RequestRecord], None] = lambda record: None,
) -> Run:
    """Measure what answers at `url`, or what is missing of the run at `path`."""

    async def go() -> Run:
        async with Endpoint(url, timeout_s=plan.timeout_s) as endpoint:
            task = make_task(PromptSet(plan.dataset, texts or prompts(64)), plan)
            return await send(endpoint, task, next_go(task, await probe(endpoint), path), observe)

    return asyncio.run(go())
