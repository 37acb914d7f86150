"""A sweep that the page runs: `dflash-lab sweep run` in a process of its own, watched by the rows it writes.

A process and not a thread, so that the page stays smooth and Stop is what Ctrl-C is: rows that are done are kept, and
the same sweep goes on from them.
"""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dflash_lab.core.ablate.results import ROWS

log = logging.getLogger(__name__)

PROGRAM = (sys.executable, "-m", "dflash_lab")
PATIENCE_S = 5.0
"""Seconds that a process has to end by itself after it was asked to."""
POLL_S = 0.2


class SweepRun:
    """state: queued -> running -> done | stopped | failed."""

    FINAL = ("done", "stopped", "failed")

    def __init__(self, arguments: Sequence[str], folder: Path, total: int, lock: threading.Lock) -> None:
        """`arguments` of dflash-lab, without the folder; `total` cells; `lock` is held while it computes."""
        self.folder, self.total = folder, total
        self.state = "queued"
        self.message = "Waiting for the model: another run has it." if lock.locked() else "Starting…"
        self._arguments = [*arguments, "--out", str(folder)]
        self._lock = lock
        self._stopped = threading.Event()
        self._process: subprocess.Popen[str] | None = None
        self._worker = threading.Thread(target=self._work, name="dflash-lab sweep", daemon=True)

    @property
    def finished(self) -> bool:
        """True when nothing more will change."""
        return self.state in self.FINAL

    @property
    def num_rows(self) -> int:
        """Cells in the folder."""
        file = self.folder / ROWS
        return file.read_bytes().count(b"\n") if file.is_file() else 0

    def start(self) -> None:
        """Begin in a thread of its own."""
        self._worker.start()

    def stop(self) -> None:
        """End it; rows that are done are kept."""
        self._stopped.set()
        if not self.finished:
            self.message = "Stopping…"

    def join(self, seconds: float | None = None) -> None:
        """Wait for the end, `seconds` at most."""
        self._worker.join(seconds)

    def view(self) -> dict[str, Any]:
        """State and progress, JSON-ready."""
        return {
            "state": self.state,
            "message": self.message,
            "done": min(self.num_rows, self.total),
            "total": self.total,
        }

    def _work(self) -> None:
        while not self._lock.acquire(timeout=POLL_S):
            if self._stopped.is_set():
                return self._end("stopped", "Stopped before it began.")
        try:
            self._run()
        except OSError as error:
            self._end("failed", str(error))
        except Exception as error:
            log.exception("the sweep failed")
            self._end("failed", f"{type(error).__name__}: {error}")
        finally:
            self._lock.release()

    def _run(self) -> None:
        self._end("running", "Starting…")
        process = subprocess.Popen(
            [*PROGRAM, *self._arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace"
        )
        # Nobody is left to watch it when the server ends.
        leave = weakref.finalize(self, process.kill)
        reader = threading.Thread(target=self._listen, args=(process,), daemon=True)
        reader.start()
        while process.poll() is None and not self._stopped.wait(POLL_S):
            pass
        if process.poll() is None:
            self._interrupt(process)
        reader.join(PATIENCE_S)
        leave.detach()
        self._finish(process.returncode)

    def _interrupt(self, process: subprocess.Popen[str]) -> None:
        """Ctrl-C, and what it takes if that is not heard: every row that is there is whole."""
        for send in (lambda: process.send_signal(signal.SIGINT), process.terminate, process.kill):
            send()
            try:
                process.wait(PATIENCE_S)
                return
            except subprocess.TimeoutExpired:
                continue

    def _listen(self, process: subprocess.Popen[str]) -> None:
        """The last line it said is what the page says."""
        with process.stderr as lines:
            for line in lines:
                if line.strip() and not self._stopped.is_set():
                    self.message = line.strip()

    def _finish(self, code: int) -> None:
        cells = f"{min(self.num_rows, self.total)} of {self.total} cells"
        if self._stopped.is_set():
            self._end("stopped", f"Stopped with {cells}; run the same sweep again and it goes on from there.")
        elif code == 0:
            self._end("done", f"Finished: {cells}.")
        elif code == 1:
            self._end("done", f"Finished; some cells failed: {self.message.removeprefix('warning: ')}")
        else:
            self._end("failed", self.message.removeprefix("error: "))

    def _end(self, state: str, message: str) -> None:
        # In this order: who sees a state finds its message in place.
        self.message = message
        self.state = state
