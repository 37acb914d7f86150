"""A run on disk: begun, or gone on with where its file is there already.

go = next_go(task, info, path, label)      what is missing of the run at `path`: all of it, some, or nothing
run = await send(endpoint, task, go)       sends that, written down request by request
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dflash_lab.core.serve.endpoint import Endpoint
from dflash_lab.core.serve.load import Load
from dflash_lab.core.serve.plan import PromptLike, Selection, check_same, make_header, select
from dflash_lab.core.serve.records import LoadPlan, RequestRecord, RunHeader, ServerInfo
from dflash_lab.core.serve.runfile import Run, RunWriter, read_run


class PromptSetLike(Protocol):
    """A whole prompt set, such as `core.data.prompts` gives."""

    name: str
    prompts: Sequence[PromptLike]
    source: str
    available: int


@dataclass(frozen=True)
class Task:
    """One run to be made."""

    prompts: PromptSetLike
    """The whole set, in the order in which it is used."""
    plan: LoadPlan
    """The load."""
    selection: Selection
    """The prompts of the plan."""


@dataclass(frozen=True)
class Go:
    """One go at a run."""

    path: Path
    """Its file."""
    header: RunHeader
    """What is the same for all of it."""
    segment: int
    """Goes that it had already."""
    missing: tuple[int, ...]
    """Prompts to send, by their number in the plan."""
    complete: bool = False
    """Whether nothing is to be done: the run is there and has its end. One whose process died may lack just that."""


def make_task(prompts: PromptSetLike, plan: LoadPlan) -> Task:
    """The task of `plan` over `prompts`. Raises DataError if there are too few."""
    return Task(prompts, plan, select(prompts.prompts, plan))


def next_go(task: Task, info: ServerInfo, path: Path, label: str | None = None) -> Go:
    """What is to be sent of a task to the server `info`.

    Raises ServerError if the server cannot do what is planned, RunError if another run is at `path`.
    """
    prompts = task.prompts
    header = make_header(task.plan, info, task.selection, prompts.source, prompts.available, label)
    if not path.exists():
        return Go(path, header, 0, tuple(range(task.plan.num_prompts)))
    before = read_run(path)
    check_same(before.header, header)
    complete = before.status == "complete" and not before.missing
    return Go(path, header, len(before.segments), tuple(before.missing), complete)


async def send(
    endpoint: Endpoint, task: Task, go: Go, observe: Callable[[RequestRecord], None] = lambda record: None
) -> Run:
    """Send what is missing; the run may end interrupted, or without its server. `observe` hears of each request.

    Raises ServerError if the server answers no request of the warm-up, RunError if the file cannot be written.
    """
    with RunWriter(go.path, None if go.path.exists() else go.header) as writer:
        await Load(endpoint, go.header, task.selection, writer, go.segment, observe).run(go.missing)
    return read_run(go.path)
