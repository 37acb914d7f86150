"""One prompt of a cell decoded once more, with everything recorded: the run that a row's numbers stand for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dflash_lab.core.ablate.knobs import Knobs
from dflash_lab.core.ablate.results import Results, Row
from dflash_lab.core.ablate.sweep import Sweep
from dflash_lab.core.ablate.work import Notify, Workbench
from dflash_lab.core.data.prompts import DATASET_NAMES, Prompt, load_prompts
from dflash_lab.core.errors import DataError
from dflash_lab.core.generate import Pair
from dflash_lab.core.trace.recorder import MAX_CANDIDATES
from dflash_lab.core.trace.schema import Trace
from dflash_lab.core.types import GenerateRequest, SamplingParams

COUNTED = ("num_steps", "num_accepted")
"""What is equal if the same happened again."""


def knobs_of(row: Row) -> Knobs:
    """What the row's cell changes about the drafter."""
    return Knobs(row["selector"], row["conv"], row["layers"], row["window"])


def load_cell(row: Row, notify: Notify = lambda text: None) -> Pair:
    """The row's target and its drafter with the cell's knobs turned. Raises the one-line errors of core.errors."""
    sweep = Sweep(target=row["target"], drafter=(row["drafter"],), mode="decode")
    # A bench keeps texts in its folder; none are asked for.
    return Workbench(sweep, Path(), notify).variant(row["drafter"], knobs_of(row))


def find_prompt(row: Row, prompt: str, folder: Path, elsewhere: bool = True) -> Prompt:
    """The prompt of that id in the row's prompt set. Raises DataError.

    A set that is a file is looked for in the sweep's `folder`, and if `elsewhere` where it was when the sweep ran.
    """
    name = row["dataset"]
    if name not in DATASET_NAMES:
        beside = folder / Path(name).name
        name = str(beside) if beside.is_file() or not elsewhere else name
    found = next((each for each in load_prompts(name).prompts if each.id == prompt), None)
    if found is None:
        raise DataError(f"{name} has no prompt {prompt!r} any more: it is not the set that the sweep was run on")
    return found


def cell_request(row: Row, prompt: Prompt, runs: Iterable[Mapping[str, Any]] = ()) -> GenerateRequest:
    """The request that decodes `prompt` as the row's cell does; `runs` are those of its folder, for their seed."""
    seeds = [run["sweep"]["seed"] for run in runs if row["temperature"] in run["sweep"]["temperature"]]
    return GenerateRequest(
        prompt.text,
        SamplingParams(temperature=row["temperature"], max_new_tokens=row["max_new_tokens"]),
        target=row["target"],
        drafter=row["drafter"],
        block_size=row["block_size"],
        num_candidates=row["num_candidates"],
        seed=seeds[-1] if seeds else 0,
        record="scores" if row["num_candidates"] <= MAX_CANDIDATES else "steps",
    )


def find_row(results: Results, key: str) -> Row | None:
    """The row of this key, if its cell did not fail."""
    return next((row for row in results.rows if row["key"] == key and "error" not in row), None)


def compare(row: Row, prompt: str, trace: Trace) -> str:
    """In one sentence, whether `trace` is what the row says of `prompt`."""
    told = next(each for each in row["per_prompt"] if each["prompt"] == prompt)
    steps, accepted = len(trace), sum(step.num_accepted for step in trace.steps)
    length = 1 + accepted / steps if steps else None
    here = f"{prompt}, block {row['block_size']}, {row['num_candidates']} candidates: "
    if (steps, accepted) == tuple(told[name] for name in COUNTED):
        return f"{here}{steps} steps, acceptance length {_number(length)}, exactly as in the sweep."
    ran, now = f"{row['device']} {row['dtype']}", f"{trace.header.backends['device']} {trace.header.backends['dtype']}"
    why = f"it ran on {ran}, this on {now}" if ran != now else "prompts, target, drafter or code have changed since"
    return (
        f"{here}{steps} steps, acceptance length {_number(length)}; the sweep has {told['num_steps']} steps and "
        f"{_number(told['mean_acceptance_length'])}: {why}."
    )


def _number(length: float | None) -> str:
    return "–" if length is None else f"{length:.2f}"
