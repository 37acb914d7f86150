"""Cells spread over a Ray cluster: one worker for each GPU, or on a cluster without any, for each CPU.

A worker loads the pair once. Texts are kept in the sweep's folder, so a folder that all machines see saves writing them
again; rows come back to the process that started the sweep, which is the only one to write them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dflash_lab.core.ablate.results import Row
from dflash_lab.core.ablate.rows import Job, failed_row, job_rows
from dflash_lab.core.ablate.sweep import Sweep
from dflash_lab.core.ablate.work import Notify, Workbench
from dflash_lab.core.errors import BackendError


class OnRay:
    """Connects to the cluster that RAY_ADDRESS names, else starts one on this machine; leaves what was there."""

    def __init__(self) -> None:
        """Raises BackendError if ray is not installed."""
        try:
            import ray
        except ImportError:
            raise BackendError("ray is not installed; pip install 'dflash-lab[ray]', or use --executor here") from None
        self._ray = ray
        self._started = not ray.is_initialized()
        if self._started:
            ray.init(log_to_driver=False, configure_logging=False, include_dashboard=False)
        self.seconds: dict[str, float] = {}

    def place(self, sweep: Sweep) -> Sweep:
        gpus = int(self._ray.cluster_resources().get("GPU", 0))
        if sweep.device == "cuda" and not gpus:
            raise BackendError("device cuda was asked for, but no machine of the cluster has a GPU: use --device cpu")
        device = ("cuda" if gpus else "cpu") if sweep.device == "auto" else sweep.device
        dtype = ("float32" if device == "cpu" else "bfloat16") if sweep.dtype == "auto" else sweep.dtype
        return dataclasses.replace(sweep, device=device, dtype=dtype)

    def run(self, sweep: Sweep, folder: Path, jobs: Sequence[Job], notify: Notify) -> Iterator[Row]:
        kind = "GPU" if sweep.device == "cuda" else "CPU"
        count = min(len(jobs), max(1, int(self._ray.cluster_resources().get(kind, 1))))
        notify(f"{count} workers, a {kind} each")
        needs = {"num_gpus": 1, "num_cpus": 0} if kind == "GPU" else {"num_cpus": 1}
        make = self._ray.remote(**needs)(_Worker)
        idle = [make.remote(sweep, str(folder.absolute())) for _ in range(count)]
        waiting, running = list(jobs), {}
        try:
            while waiting or running:
                while waiting and idle:
                    worker, job = idle.pop(), waiting.pop(0)
                    running[worker.rows.remote(job)] = worker, job
                for done in self._ray.wait(list(running))[0]:
                    worker, job = running.pop(done)
                    rows, alive = self._rows(done, sweep, job)
                    idle.append(worker if alive else make.remote(sweep, str(folder.absolute())))
                    yield from rows
        finally:
            if self._started:
                self._ray.shutdown()

    def _rows(self, done: Any, sweep: Sweep, job: Job) -> tuple[list[Row], bool]:
        """A job's rows, and whether its worker is still there."""
        try:
            return self._ray.get(done), True
        except self._ray.exceptions.RayTaskError as error:
            cause = error.cause if isinstance(error.cause, Exception) else error
            return [failed_row(sweep, *cell, cause) for cell in zip(job.cells, job.keys, strict=True)], True
        except self._ray.exceptions.RayActorError as error:
            return [failed_row(sweep, *cell, error) for cell in zip(job.cells, job.keys, strict=True)], False


class _Worker:
    """A workbench in a process of its own."""

    def __init__(self, sweep: Sweep, folder: str) -> None:
        self._bench = Workbench(sweep, Path(folder))

    def rows(self, job: Job) -> list[Row]:
        """Every row of a job."""
        return list(job_rows(self._bench, job))
