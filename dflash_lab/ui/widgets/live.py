"""A decode watched while it runs."""

from __future__ import annotations

import html
import threading
import time
from typing import Any

import traitlets

from dflash_lab.core.errors import DFlashLabError
from dflash_lab.core.trace.schema import Trace
from dflash_lab.core.types import StopReason
from dflash_lab.ui.view.parts import TextParts
from dflash_lab.ui.widgets.base import TraceWidget

UPDATE_S = 0.2
"""Least time between two pictures of a run."""
QUIET_S = 0.5
"""No rate is shown before this much time has passed: it would be noise."""

_one_at_a_time = threading.Lock()
"""A pair holds the state of one request, so runs wait for each other."""


class Live(TraceWidget):
    """Decodes a `Generation` in a worker thread, shows its text and numbers, then its trace; Stop ends it.

    The kernel stays free: other cells run, and a click on Stop is heard. Do not iterate the generation yourself, nor
    decode with its pair meanwhile.
    """

    _show = traitlets.Unicode("live").tag(sync=True)

    state = traitlets.Enum(("waiting", "running", "done", "cancelled", "failed"), "waiting").tag(sync=True)
    message = traitlets.Unicode(help="The error in one line, if it failed.").tag(sync=True)
    parts = traitlets.List(help="Text so far in pieces: [origin, text], as in ui.view.parts.").tag(sync=True)
    numbers = traitlets.Dict(help="steps, tokens, acceptance_length and tok_s so far; None while noise.").tag(sync=True)

    def __init__(self, generation: Any) -> None:
        """`generation`: what `dflash_lab.generate` returned, not begun. Decoding starts at once."""
        self.generation = generation
        self._stopped = threading.Event()
        super().__init__(None)
        self._worker = threading.Thread(target=self._work, name="dflash-lab live", daemon=True)
        self._worker.start()

    def stop(self) -> None:
        """End after the step that is being decoded; what was decoded is kept."""
        self._stopped.set()
        if self.generation is not None:
            self.generation.cancel()

    def wait(self, seconds: float | None = None) -> Trace | None:
        """Wait for the end, `seconds` at most, and give the trace; an interrupt stops the decode first.

        None while it runs, if it failed before its first step, or if the request records nothing.
        """
        try:
            self._worker.join(seconds)
        except KeyboardInterrupt:
            self.stop()
            self._worker.join()
        return self.trace

    def close(self) -> None:
        """Stop, take it off the page and let go of the trace."""
        self.stop()
        self._worker.join()
        super().close()
        self.generation = None

    def still(self) -> str:
        """State and text so far; the step it stands on when it is done."""
        text = html.escape("".join(text for _, text in self.parts))
        said = f"<p><strong>{self.state}</strong> {html.escape(self.message)}</p><pre>{text}</pre>"
        return said if self.trace is None else said + super().still()

    def _answer(self, widget: TraceWidget, content: Any, buffers: list[memoryview]) -> None:
        match content:
            case {"stop": True}:
                self.stop()
            case _:
                super()._answer(widget, content, buffers)

    def _work(self) -> None:
        while not _one_at_a_time.acquire(timeout=UPDATE_S):
            if self._stopped.is_set():
                self.state = "cancelled"
                return
        try:
            self.state = self._run(self.generation)
        finally:
            _one_at_a_time.release()

    def _run(self, generation: Any) -> str:
        """Decode to the end, whatever it is; returns the final state."""
        self.state, ending = "running", "failed"
        try:
            self._decode(generation)
            ending = "cancelled" if generation.summary.stop_reason is StopReason.CANCELLED else "done"
        except DFlashLabError as error:
            self.message = str(error)
        except Exception as error:
            self.message = f"{type(error).__name__}: {error}"
        if generation.request.record != "none" and generation.summary.num_steps:
            self._open(generation.trace())
        return ending

    def _decode(self, generation: Any) -> None:
        parts, drawn, began, steps, accepted = TextParts(generation.pair.text.decode), 0.0, 0.0, 0, 0
        for step in generation:
            now = time.perf_counter()
            if not steps:
                began = now - step.record.timings.total_ms / 1000
                parts.add(generation.output_ids[:1], "target")
            parts.add_step(step.record)
            steps, accepted = steps + 1, accepted + step.record.num_accepted
            if now - drawn >= UPDATE_S:
                drawn = now
                self._draw(parts, steps, accepted, len(generation.output_ids), now - began)
        if not steps:
            parts.add(generation.output_ids, "target")
        parts.flush()
        self._draw(parts, steps, accepted, len(generation.output_ids), time.perf_counter() - began if steps else 0.0)

    def _draw(self, parts: TextParts, steps: int, accepted: int, tokens: int, elapsed_s: float) -> None:
        with self.hold_sync():
            self.parts = [[part.origin, part.text] for part in parts.parts]
            self.numbers = {
                "steps": steps,
                "tokens": tokens,
                "acceptance_length": 1 + accepted / steps if steps else None,
                "tok_s": (tokens - 1) / elapsed_s if elapsed_s >= QUIET_S else None,
            }
