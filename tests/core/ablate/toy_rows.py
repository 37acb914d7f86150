"""Rows of a made-up sweep: acceptance saturates with the block, a step's cost grows with it."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from dflash_lab.core.ablate.costs import StepCost, speed
from dflash_lab.core.ablate.numbers import PromptWalk, pooled_numbers, prompt_numbers
from dflash_lab.core.ablate.report import GRID, SLICE
from dflash_lab.core.ablate.results import Results

RIGHT = 0.8
"""How often a proposal is right given that all before it are."""


def walk(random, block_size: int, right: float, steps: int = 200) -> PromptWalk:
    """One prompt's steps, each position right with the same probability."""
    depth = block_size - 1
    holds = random.random((steps, depth)) < right
    accepted = holds.cumprod(axis=1).sum(axis=1)
    ranks = np.where(holds, 1, random.choice([0, 2, 3, 4], (steps, depth)))
    whole = np.full(steps, depth)
    return PromptWalk(whole, accepted, whole, ranks, tuple(range(int(accepted.sum()) + steps + 1)))


def make_row(
    block_size: int,
    num_candidates: int = 4,
    *,
    right: float = RIGHT,
    prompts: int = 6,
    categories: Iterable[str] = ("math",),
    seed: int = 0,
    fixed_ms: float = 10.0,
    slot_ms: float = 1.0,
    **changes,
) -> dict:
    """A row; a step costs `fixed_ms + slot_ms * block_size`."""
    random = np.random.default_rng(seed)
    names = list(categories)
    walks = [walk(random, block_size, right) for _ in range(prompts)]
    per_prompt = [prompt_numbers(each, num_candidates, f"p/{i}", names[i % len(names)]) for i, each in enumerate(walks)]
    pooled = pooled_numbers(walks, per_prompt, num_candidates)
    cost = StepCost(slot_ms * block_size, 0.0, fixed_ms, 0.0, 10)
    row = {
        "schema_version": 1,
        "mode": "replay", "target": "bundled", "dataset": "gsm8k", "drafter": "bundled", "block_size": block_size,
        "num_candidates": num_candidates, "selector": True, "conv": True, "layers": "all", "window": 0,
        "temperature": 0.0, "num_prompts": prompts, "max_new_tokens": 256, "device": "cpu", "dtype": "float32",
        "flags": [],
        **pooled,
        **speed(pooled["mean_acceptance_length"], cost),
        "num_near_ties": 0,
        "near_ties": [],
        "per_prompt": [{**vars(each), "num_near_ties": 0} for each in per_prompt],
        **changes,
    }  # fmt: skip
    row["output_hash"] = changes.get("output_hash", "same")
    shown = ("mode", "dataset", "drafter", "block_size", "num_candidates", "selector", "conv", "layers", "temperature")
    return {"key": "/".join(str(row[name]) for name in shown), **row}


def failed(block_size: int, num_candidates: int = 4, **changes) -> dict:
    """A row of a cell that failed."""
    row = make_row(block_size, num_candidates, **changes)
    return {
        **{name: row[name] for name in ("schema_version", "key", *SLICE, *GRID)},
        "error": "out of <b>memory</b> | here",
    }


def make_run(**sweep) -> dict:
    """What `sweep.json` says of a call."""
    asked = {
        "mode": "replay", "dataset": ["gsm8k"], "drafter": ["bundled"], "layers": ["all"], "window": [0],
        "temperature": [0.0], "block_size": [2, 4, 8, 16], "num_candidates": [1, 4], "selector": [], "conv": [],
        "num_prompts": 6, "max_new_tokens": 256, **sweep,
    }  # fmt: skip
    return {"sweep": asked, "command": "dflash-lab sweep run", "provenance": {"cpu": "made up"}, "num_computed": 4,
            "wall_s": 8.0}  # fmt: skip


def results(rows, runs=()) -> Results:
    """A folder with these rows."""
    return Results(Path("toy"), tuple(rows), tuple(runs))
