"""One generation in the page: decoded by a worker thread, stopped by a flag between two steps."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from dflash_lab.core.errors import DFlashLabError
from dflash_lab.core.trace import metrics
from dflash_lab.core.trace.schema import Trace
from dflash_lab.core.types import GenerateRequest, StepRecord
from dflash_lab.ui.view.parts import TextParts

log = logging.getLogger(__name__)

ENDINGS = {
    "stop": "the target ended its text",
    "length": "the most tokens asked for are there",
    "context": "the target's context is full",
}
"""What is said of a run that was not stopped, by its stop reason."""


class Engine:
    """A pair of models, loaded at the first run. Engines with the same `lock` compute one run at a time, together.

    `load(notify)` gives the pair and `generate(pair, request)` a Generation; the defaults are the bundled pair and
    `core.generate`, imported at the first run so that the page opens without torch.
    """

    def __init__(
        self,
        load: Callable[[Callable[[str], None]], Any] | None = None,
        generate: Callable[[Any, GenerateRequest], Any] | None = None,
        lock: threading.Lock | None = None,
    ) -> None:
        self.lock = lock or threading.Lock()
        self._load = load
        self._generate = generate
        self._pair: Any = None

    def pair(self, notify: Callable[[str], None]) -> Any:
        """The pair, loaded if it is not yet; `notify` is told what takes long."""
        if self._pair is None:
            if self._load is None:
                from dflash_lab.core.generate import load_pair

                self._pair = load_pair(notify=notify)
            else:
                self._pair = self._load(notify)
        return self._pair

    def generate(self, pair: Any, request: GenerateRequest) -> Any:
        """A Generation of `request`."""
        if request.drafter is None:
            pair = dataclasses.replace(pair, drafter=None)
        if self._generate is None:
            from dflash_lab.core.generate import generate

            return generate(pair, request)
        return self._generate(pair, request)


class Run:
    """One generation, decoded by a worker thread; `view()` is what the page draws of it.

    state: queued -> loading -> running -> done | cancelled | failed.
    """

    FINAL = ("done", "cancelled", "failed")
    LIVE_S = 1.0
    """Who watches is given the steps so far at most this often, seconds."""

    def __init__(self, request: GenerateRequest, engine: Engine, keep: Callable[[Trace, bool], str]) -> None:
        """`keep(trace, live)` stores what there is so far (live) or the finished trace, and gives its id."""
        self.request = request
        self.state = "queued"
        self.message = "Waiting for the model: another run has it." if engine.lock.locked() else "Starting…"
        self.trace_id: str | None = None
        self._engine = engine
        self._keep = keep
        self._watched = False
        self._shown = threading.Event()
        self._lock = threading.Lock()
        self._cancelled = False
        self._generation: Any = None
        self._worker: threading.Thread | None = None
        self._parts: TextParts | None = None
        self._stats: dict[str, Any] = {}
        self._warnings: tuple[str, ...] = ()

    @property
    def finished(self) -> bool:
        """True when nothing more will change."""
        return self.state in self.FINAL

    def start(self) -> None:
        """Begin in a thread of its own; does nothing if that was done or the run was cancelled before."""
        with self._lock:
            if self._worker is None and not self.finished:
                self._worker = threading.Thread(target=self._work, name="dflash-lab run", daemon=True)
                self._worker.start()

    def cancel(self) -> None:
        """End after the step that is being decoded, and keep what there is; at once if it has not begun."""
        with self._lock:
            self._cancelled = True
            if self._generation is not None:
                self._generation.cancel()
            if self._worker is None and not self.finished:
                self._say("cancelled", "Stopped before it began.")

    def watch(self) -> str | None:
        """Id of a trace that grows with the run, from now on; of the finished one if it has ended; None if too early.

        Making it costs the run a little time, so it is made for runs that somebody watches.
        """
        self._watched = True
        if self.state == "running":
            self._shown.wait(2 * self.LIVE_S)
        return self.trace_id

    def join(self, seconds: float | None = None) -> None:
        """Wait for the worker to end, `seconds` at most."""
        if self._worker is not None:
            self._worker.join(seconds)

    def view(self) -> dict[str, Any]:
        """State, text by origin and numbers so far, JSON-ready."""
        parts = list(self._parts.parts) if self._parts else []
        return {
            "state": self.state,
            "message": self.message,
            "trace": self.trace_id,
            "parts": [[part.origin, part.text] for part in parts],
            "warnings": list(self._warnings),
            **self._stats,
        }

    def _say(self, state: str, message: str) -> None:
        # In this order: who sees a final state finds everything else in place.
        self.message = message
        self.state = state

    def _work(self) -> None:
        try:
            with self._engine.lock:
                self._decode()
        except DFlashLabError as error:
            self._say("failed", str(error))
        except Exception as error:
            log.exception("the run failed")
            self._say("failed", f"{type(error).__name__}: {error}")
        finally:
            self._shown.set()
            with self._lock:
                self._generation = None

    def _decode(self) -> None:
        self._say("loading", "Loading the pair…")
        pair = self._engine.pair(lambda text: self._say("loading", text))
        generation = self._engine.generate(pair, self.request)
        self._warnings = generation.warnings
        with self._lock:
            self._generation = generation
            if self._cancelled:
                generation.cancel()
        self._say("running", "Reading the prompt…")
        parts = self._parts = TextParts(pair.text.decode)
        pace = Pace()
        shown_at = 0.0
        try:
            for step in generation:
                if step.record.index == 0:
                    parts.add(generation.output_ids[:1], "target")
                parts.add_step(step.record)
                pace.add(step.record)
                self._stats = pace.view()
                self._say("running", "Decoding…")
                if self._watched and time.perf_counter() - shown_at >= self.LIVE_S:
                    self.trace_id = self._keep(generation.trace(), True)
                    shown_at = time.perf_counter()
                    self._shown.set()
        except Exception:
            self.trace_id = self._keep(generation.trace(), False)  # the steps before the fault explain it
            raise
        if not pace.records:
            parts.add(generation.output_ids, "target")
        parts.flush()
        self._finish(generation.trace())

    def _finish(self, trace: Trace) -> None:
        self.trace_id = self._keep(trace, False)
        header, found = trace.header, metrics.trace_metrics(trace)
        last = {
            "acceptance_length": found.mean_acceptance_length,
            "tok_s": found.decode_tok_s,
            "tok_s_now": None,
            "tokens": len(header.output_ids),
            "ttft_ms": header.time_to_first_token_ms,
        }
        self._stats = {**self._stats, **last}
        if trace.header.status == "cancelled":
            self._say("cancelled", f"Stopped after {len(trace)} steps; what was decoded is kept.")
        else:
            self._say("done", f"Finished: {ENDINGS[trace.header.stop_reason]}.")


def refused(error: DFlashLabError) -> dict[str, Any]:
    """What the page draws when a request did not become a run."""
    return {"state": "failed", "message": str(error), "trace": None, "parts": [], "warnings": []}


class Pace:
    """Running numbers of a generation, from time stamps."""

    ROLLING_STEPS = 16
    WINDOW_S = 2.0
    QUIET_S = 0.5
    """No rate is shown before this much time has passed: it would be noise."""

    def __init__(self) -> None:
        self.records: list[StepRecord] = []
        self._began = 0.0
        self._tokens = 0
        self._recent: deque[tuple[float, int]] = deque()

    def add(self, record: StepRecord) -> None:
        """Count one step that has just ended."""
        now = time.perf_counter()
        if not self.records:
            self._began = now - record.timings.total_ms / 1000
        self.records.append(record)
        self._tokens += record.commit_length
        self._recent.append((now, record.commit_length))
        while now - self._recent[0][0] > self.WINDOW_S:
            self._recent.popleft()

    def view(self) -> dict[str, Any]:
        """Numbers for the page; a rate is None while it would be noise."""
        now = self._recent[-1][0]
        elapsed, window = now - self._began, min(now - self._began, self.WINDOW_S)
        enough = elapsed >= self.QUIET_S
        accepted = [record.num_accepted for record in self.records]
        last = accepted[-self.ROLLING_STEPS :]
        return {
            "steps": len(accepted),
            "tokens": 1 + self._tokens,
            "acceptance_length": 1 + sum(accepted) / len(accepted),
            "rolling_acceptance_length": 1 + sum(last) / len(last),
            "tok_s": self._tokens / elapsed if enough else None,
            "tok_s_now": sum(n for _, n in self._recent) / window if enough else None,
        }
