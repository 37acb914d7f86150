"""Runs of fake servers for everything under tests/ui: measured in a moment, of a GPU that nobody has here."""

from __future__ import annotations

import asyncio
import itertools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_lab.core.serve.endpoint import Endpoint
from dflash_lab.core.serve.fake_model import FakeModel
from dflash_lab.core.serve.fake_server import FakeServer
from dflash_lab.core.serve.measure import make_task, next_go, send
from dflash_lab.core.serve.probe import probe
from dflash_lab.core.serve.records import LoadPlan
from dflash_lab.core.serve.runfile import Run

_count = itertools.count()

CARD: dict[str, Any] = {"temperature": 1.0, "top_p": 0.95, "top_k": 20, "reasoning": "xhigh", "max_new_tokens": 4096}
"""The settings of the published GB300 table of Qwen3.8-Flash-Next."""


@dataclass(frozen=True)
class ToyPrompt:
    """A prompt."""

    id: str
    text: str
    category: str = "math"
    dataset: str = "gsm8k"


class ToySet:
    """A prompt set of 200 questions, called by the name of a published one."""

    source = "gsm8k.jsonl"
    available = 200

    def __init__(self, name: str = "gsm8k") -> None:
        self.name = name
        self.prompts = tuple(ToyPrompt(f"{name}/{i}", f"{name}: what is {i} and {i}?") for i in range(self.available))


def measure_fake(url: str, path: Path, dataset: str = "gsm8k", label: str | None = None, **plan: Any) -> Run:
    """Measure what answers at `url`, without a warm-up."""
    task = make_task(ToySet(dataset), LoadPlan(dataset, **{"num_prompts": 8, "num_warmup": 0} | plan))

    async def go() -> Run:
        async with Endpoint(url) as endpoint:
            return await send(endpoint, task, next_go(task, await probe(endpoint), path, label))

    with ThreadPoolExecutor(1) as aside:  # a test with a browser has an event loop of its own
        return aside.submit(lambda: asyncio.run(go())).result()


def fake_run(folder: Path, model: FakeModel | None = None, **plan: Any) -> Run:
    """A run on a fake server, in a file of its own in `folder`."""
    with FakeServer(model) as server:
        return measure_fake(server.url, folder / f"{next(_count)}.jsonl", **plan)


def gb300_runs(folder: Path, loads: tuple[int, ...] = (1, 8), **plan: Any) -> list[Path]:
    """Runs on a server that says it is a GB300, with the card's settings: autoregressive, MTP and DFlash 2."""
    paths = []
    for name, algorithm, acceptance in (
        ("autoregressive", "", None),
        ("mtp", "NEXTN", (0.88, 0.78, 0.7)),
        ("dflash2", "DFLASH", (0.91, 0.83, 0.76)),
    ):
        drafter = "incoai/Qwen3.8-Flash-Next-DFlash2" if name == "dflash2" else None
        model = FakeModel(acceptance=acceptance, algorithm=algorithm, drafter=drafter, output_tokens=60)
        with FakeServer(model) as server:
            for load in loads:
                path = folder / f"{name}-c{load}.jsonl"
                measure_fake(server.url, path, concurrency=load, num_prompts=max(8, 2 * load), **{**CARD, **plan})
                paths.append(path)
    return paths
