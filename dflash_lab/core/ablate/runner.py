"""Runs a sweep: what has a row is skipped, the rest is computed here or on a cluster, and written as it comes."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from dflash_lab.core.ablate.results import Row, cell_key, fingerprint, open_results
from dflash_lab.core.ablate.rows import Job, job_rows
from dflash_lab.core.ablate.sweep import Cell, Sweep, expand, variants
from dflash_lab.core.ablate.work import Notify, Workbench, drafter_path
from dflash_lab.core.data.prompts import load_prompts
from dflash_lab.core.generate import BUNDLED, choose_device, choose_dtype, resolve
from dflash_lab.core.model.config import DraftConfig
from dflash_lab.core.model.drafter import check_sizes
from dflash_lab.core.provenance import provenance
from dflash_lab.core.target.bundled import ensure_target

Watch = Callable[[int], AbstractContextManager[Callable[[], None]]]
"""Told how many cells are to come; gives a call for each that is done."""


class Executor(Protocol):
    """Computes jobs somewhere."""

    seconds: Mapping[str, float]
    """Where time went, beside computing cells, as far as it is known."""

    def place(self, sweep: Sweep) -> Sweep:
        """The sweep with its device and dtype named, not `auto`. Raises BackendError."""
        ...

    def run(self, sweep: Sweep, folder: Path, jobs: Sequence[Job], notify: Notify) -> Iterator[Row]:
        """A row for every cell of every job, in any order."""
        ...


class Here:
    """In this process, one after another."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        """Where time went, beside computing cells."""

    def place(self, sweep: Sweep) -> Sweep:
        device = choose_device(sweep.device)
        dtype = str(choose_dtype(sweep.dtype, device)).removeprefix("torch.")
        return dataclasses.replace(sweep, device=device.type, dtype=dtype)

    def run(self, sweep: Sweep, folder: Path, jobs: Sequence[Job], notify: Notify) -> Iterator[Row]:
        bench = Workbench(sweep, folder, notify)
        self.seconds = bench.seconds
        # What does not load ends the sweep in one line, before there is a row.
        assert bench.pair.drafter is not None
        for job in jobs:
            yield from job_rows(bench, job)


@dataclass(frozen=True)
class Outcome:
    """What came of a run."""

    folder: Path
    """Where the results are."""
    sweep: Sweep
    """With device and dtype named."""
    num_cells: int
    """Cells of the sweep."""
    num_computed: int
    """Rows written now, those of failed cells left out."""
    num_skipped: int
    """Cells that had a row."""
    failed: tuple[Row, ...]
    """Rows of the cells that failed."""
    interrupted: bool
    """Whether cells are missing because the run was stopped."""
    wall_s: float
    """Seconds of it all, loading included."""
    seconds: Mapping[str, float]
    """Where time went, beside computing cells."""

    def brief(self) -> dict[str, Any]:
        """Plain JSON values of what was done."""
        return {
            "num_cells": self.num_cells,
            "num_computed": self.num_computed,
            "num_skipped": self.num_skipped,
            "num_failed": len(self.failed),
            "interrupted": self.interrupted,
            "wall_s": round(self.wall_s, 3),
            "seconds": {name: round(value, 3) for name, value in self.seconds.items()},
        }


def run_sweep(
    sweep: Sweep,
    folder: Path,
    *,
    executor: Executor | None = None,
    notify: Notify = lambda text: None,
    watch: Watch = lambda total: nullcontext(lambda: None),
) -> Outcome:
    """Compute the cells that have no row in `folder`; an interrupt ends it with those that are done.

    Raises the one-line errors of core.errors for a sweep that cannot be run; a cell that fails is a row with `error`.
    """
    started = time.perf_counter()
    executor = executor or Here()
    command = sweep.command()
    sweep = executor.place(sweep)
    folders = {name: drafter_path(name, notify) for name in sweep.drafter}
    configs = {name: DraftConfig.from_checkpoint(path) for name, path in folders.items()}
    cells = expand(sweep, configs)
    flags = {text: None for cell in cells for text in check_sizes(configs[cell.drafter], cell.block_size, 1)}
    for flag in flags:
        notify(f"warning: {flag}")
    keys = _keys(sweep, cells, folders, notify)
    rows: list[Row] = []
    interrupted = True
    with open_results(folder) as writer:
        for warning in writer.results.warnings:
            notify(f"warning: {warning}")
        missing = [cell for cell in cells if keys[cell] not in writer.done]
        writer.begin({"sweep": sweep.to_dict(), "command": command, "provenance": provenance()})
        jobs = _jobs(sweep, missing, keys)
        try:
            with watch(len(missing)) as advance:
                for row in executor.run(sweep, folder, jobs, notify) if jobs else ():
                    writer.append(row)
                    rows.append(row)
                    advance()
            interrupted = False
        except KeyboardInterrupt:
            pass
        finally:
            outcome = Outcome(
                folder=folder,
                sweep=sweep,
                num_cells=len(cells),
                num_computed=sum("error" not in row for row in rows),
                num_skipped=len(cells) - len(missing),
                failed=tuple(row for row in rows if "error" in row),
                interrupted=interrupted,
                wall_s=time.perf_counter() - started,
                seconds=dict(executor.seconds),
            )
            writer.end(outcome.brief())
    return outcome


def _keys(sweep: Sweep, cells: Sequence[Cell], folders: dict[str, Path], notify: Notify) -> dict[Cell, str]:
    """Key of every cell: its settings, and the contents of models and prompts under their names."""
    models = {name: fingerprint(path) for name, path in folders.items()}
    target = ensure_target(notify) if sweep.target == BUNDLED else resolve(sweep.target, notify)
    shared = {
        "target": fingerprint(target),
        "mode": sweep.mode,
        "max_new_tokens": sweep.max_new_tokens,
        **sweep.placement(),
    }
    prompts = {name: _prompts(name, sweep.num_prompts, notify) for name in sweep.dataset}
    return {
        cell: cell_key(
            {
                **shared,
                **dataclasses.asdict(cell),
                "drafter": models[cell.drafter],
                "prompts": prompts[cell.dataset],
                "seed": sweep.seed if cell.temperature else None,
            }
        )
        for cell in cells
    }


def _prompts(name: str, count: int, notify: Notify) -> list[str]:
    """Texts of a prompt set."""
    found = load_prompts(name, count)
    if found.duplicates:
        notify(f"warning: {name}: {len(found.duplicates)} of the prompts repeat the text of an earlier one")
    return [prompt.text for prompt in found.prompts]


def _jobs(sweep: Sweep, cells: Sequence[Cell], keys: dict[Cell, str]) -> list[Job]:
    groups = variants(cells) if sweep.mode == "replay" else [(cell,) for cell in cells]
    return [Job(group, tuple(keys[cell] for cell in group)) for group in groups]
