"""Rows of a sweep: replayed a block size at a time, or decoded cell by cell. A cell that fails gives a row too."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dflash_lab.core.ablate.costs import StepCost, speed
from dflash_lab.core.ablate.numbers import PromptWalk, pooled_numbers, prompt_numbers, walk_of_replay, walk_of_trace
from dflash_lab.core.ablate.replay import Choice, Walks, read_context, replay
from dflash_lab.core.ablate.results import SCHEMA_VERSION
from dflash_lab.core.ablate.sweep import Cell, Sweep
from dflash_lab.core.ablate.texts import NEAR_TIE, GreedyText, Reader
from dflash_lab.core.ablate.work import Workbench
from dflash_lab.core.errors import DFlashLabError
from dflash_lab.core.generate import generate
from dflash_lab.core.model.drafter import Drafter, check_sizes
from dflash_lab.core.trace.recorder import MAX_CANDIDATES
from dflash_lab.core.types import GenerateRequest, SamplingParams

GROUP = 64
"""Texts replayed side by side."""
LISTED = 20
"""Near ties named in a row; all are counted."""
PHASES = ("draft_ms", "select_ms", "verify_ms", "commit_ms")

Row = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """Cells that one worker computes, with their keys: all that differ in block size, candidates and selector only
    when they are replayed, a single one when they are decoded."""

    cells: tuple[Cell, ...]
    """What to compute."""
    keys: tuple[str, ...]
    """Key of each."""


def job_rows(bench: Workbench, job: Job) -> Iterator[Row]:
    """A row for every cell of a job, as they come."""
    keys = dict(zip(job.cells, job.keys, strict=True))
    if bench.sweep.mode == "decode":
        for cell in job.cells:
            try:
                yield _row(bench, cell, keys[cell], _decoded(bench, cell))
            except Exception as error:
                yield failed_row(bench.sweep, cell, keys[cell], error)
        return
    for block_size in dict.fromkeys(cell.block_size for cell in job.cells):
        cells = [cell for cell in job.cells if cell.block_size == block_size]
        try:
            found = _replayed(bench, cells)
        except Exception as error:
            yield from (failed_row(bench.sweep, cell, keys[cell], error) for cell in cells)
            continue
        yield from (_row(bench, cell, keys[cell], numbers) for cell, numbers in zip(cells, found, strict=True))


def failed_row(sweep: Sweep, cell: Cell, key: str, error: Exception) -> Row:
    """The row of a cell that could not be computed."""
    text = " ".join(str(error).split()) or "no message"
    if not isinstance(error, DFlashLabError):
        text = f"{type(error).__name__}: {text}"
    return {**_identity(sweep, cell, key), "error": text}


def _identity(sweep: Sweep, cell: Cell, key: str) -> Row:
    """What a row says of its cell."""
    shared = ("mode", "target", "num_prompts", "max_new_tokens", "device", "dtype")
    return {
        "schema_version": SCHEMA_VERSION,
        "key": key,
        **dataclasses.asdict(cell),
        **{name: getattr(sweep, name) for name in shared},
    }


def _row(bench: Workbench, cell: Cell, key: str, numbers: Row) -> Row:
    flags = check_sizes(bench.config(cell.drafter), cell.block_size, cell.num_candidates)
    return {**_identity(bench.sweep, cell, key), "flags": flags, **numbers}


def _numbers(
    bench: Workbench, cell: Cell, walks: Sequence[PromptWalk], cost: StepCost | None, ties: Sequence[Row] | None = None
) -> Row:
    """A cell's numbers; `ties` are what a replay found to be close."""
    prompts = [
        prompt_numbers(walk, cell.num_candidates, prompt.id, prompt.category)
        for walk, prompt in zip(walks, bench.prompts(cell.dataset).prompts, strict=True)
    ]
    numbers: Row = {}
    if ties is not None:
        counts = Counter(tie["prompt"] for tie in ties)
        prompts = [dataclasses.replace(prompt, num_near_ties=counts[prompt.prompt]) for prompt in prompts]
        numbers["num_near_ties"] = len(ties)
        numbers["near_ties"] = sorted(ties, key=lambda tie: tie["margin"])[:LISTED]
    pooled = pooled_numbers(walks, prompts, cell.num_candidates)
    return {
        **pooled,
        **speed(pooled["mean_acceptance_length"], cost),
        **numbers,
        "per_prompt": [dataclasses.asdict(prompt) for prompt in prompts],
    }


def _decoded(bench: Workbench, cell: Cell) -> Row:
    """A cell's numbers from the real loop."""
    pair, sweep = bench.variant(cell.drafter, cell.knobs), bench.sweep
    walks = []
    for prompt in bench.prompts(cell.dataset).prompts:
        request = GenerateRequest(
            prompt.text,
            SamplingParams(temperature=cell.temperature, max_new_tokens=sweep.max_new_tokens),
            target=sweep.target,
            drafter=cell.drafter,
            block_size=cell.block_size,
            num_candidates=cell.num_candidates,
            seed=sweep.seed,
            record="scores" if cell.num_candidates <= MAX_CANDIDATES else "steps",
        )
        generation = generate(pair, request)
        for _ in generation:
            pass
        walks.append(walk_of_trace(generation.trace()))
    return _numbers(bench, cell, walks, _mean_cost(walks))


def _mean_cost(walks: Sequence[PromptWalk]) -> StepCost | None:
    """What a step took on average."""
    steps = sum(len(walk.accepted) for walk in walks)
    if not steps:
        return None
    totals = np.array([walk.timings_ms for walk in walks]).sum(axis=0) / steps
    return StepCost(**dict(zip(PHASES, totals.tolist(), strict=True)), cost_steps=steps)


def _replayed(bench: Workbench, cells: Sequence[Cell]) -> list[Row]:
    """Numbers of cells that share all but candidates and selector."""
    first = cells[0]
    choices = [Choice(cell.num_candidates, cell.selector) for cell in cells]
    # A walk without the selector is a choice; the drafter keeps its selector while some walk needs it.
    knobs = dataclasses.replace(first.knobs, selector=any(choice.selector for choice in choices))
    drafter = bench.variant(first.drafter, knobs).drafter
    reader = bench.reader(first.dataset, drafter, beyond=max(bench.sweep.block_size or (first.block_size,)) - 1)
    walks: list[list[PromptWalk]] = [[] for _ in cells]
    ties: list[list[Row]] = [[] for _ in cells]
    ids = [prompt.id for prompt in bench.prompts(first.dataset).prompts]
    # Texts of like length side by side: little of the padding is read.
    order = sorted(range(len(reader)), key=lambda index: len(reader.read(index).text.ids))
    for start in range(0, len(order), GROUP):
        group = order[start : start + GROUP]
        for i, (own, close) in enumerate(_group_walks(reader, drafter, group, first.block_size, choices, ids)):
            walks[i] += own
            ties[i] += close
    back = np.argsort(order)
    widest = max(choice.num_candidates for choice in choices)
    return [
        _numbers(
            bench,
            cell,
            [own[index] for index in back],
            bench.cost(cell.drafter, cell.knobs, cell.block_size, widest),
            close,
        )
        for cell, own, close in zip(cells, walks, ties, strict=True)
    ]


def _group_walks(
    reader: Reader, drafter: Drafter, group: Sequence[int], block_size: int, choices: Sequence[Choice], ids: list[str]
) -> Iterator[tuple[list[PromptWalk], list[Row]]]:
    """For each choice, the walks of some texts, and what nearly went another way in them."""
    padded, features = reader.group(group)
    walks = replay(drafter, padded, read_context(drafter, features), block_size, choices)
    texts = [reader.read(index).text for index in group]
    for i in range(len(choices)):
        own = [walk_of_replay(walks, i, j, text.output_ids) for j, text in enumerate(texts)]
        close = [
            tie
            for j, (text, index) in enumerate(zip(texts, group, strict=True))
            for tie in _ties(walks, i, j, text, ids[index])
        ]
        yield own, close


def _ties(walks: Walks, choice: int, row: int, text: GreedyText, prompt: str) -> Iterator[Row]:
    """Choices of the drafter at this walk's anchors, and of the target, that rounding may turn.

    `index` counts output tokens: the anchor of a drafter's block, the token that the target chose. `turned` marks a
    token that this reading of the text would have chosen otherwise.
    """
    margins = np.where(walks.visited[choice, row], walks.margins[choice, row], np.inf)
    for anchor in np.flatnonzero(margins < NEAR_TIE).tolist():
        yield {"prompt": prompt, "who": "drafter", "index": anchor, "margin": float(margins[anchor]), "turned": False}
    for tie in text.near_ties:
        yield {"prompt": prompt, "who": "target", "index": tie.index, "margin": tie.margin, "turned": tie.turned}
