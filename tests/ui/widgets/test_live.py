"""A decode in a worker thread: it ends by itself, by Stop, by an error; what was decoded is kept."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest

from dflash_lab.core.errors import NumericsError
from dflash_lab.core.generate import generate
from dflash_lab.core.hooks import Hooks
from dflash_lab.core.types import GenerateRequest, SamplingParams

pytest.importorskip("anywidget")
from dflash_lab.ui.widgets.live import Live


def request(tokens: int = 60, record: str = "scores") -> GenerateRequest:
    """A request of the toy pair."""
    return GenerateRequest("hello", SamplingParams(max_new_tokens=tokens), record=record)


class Gate:
    """Lets a decode pass one step at a time, from a hook."""

    def __init__(self) -> None:
        self.hooks = Hooks()
        self.hooks.add("path", self._wait)
        self._steps = threading.Semaphore(0)
        self.arrived = threading.Semaphore(0)

    def _wait(self, path) -> None:
        self.arrived.release()
        assert self._steps.acquire(timeout=20)

    def let(self, steps: int) -> None:
        self._steps.release(steps)


def test_runs_to_its_end_and_becomes_a_trace(toy_pair):
    plain = generate(toy_pair, request())
    list(plain)
    with Live(generate(toy_pair, request())) as live:
        trace = live.wait(30)
        assert (live.state, live.message) == ("done", "")
        assert trace.header.output_ids == plain.header().output_ids
        assert "".join(text for _, text in live.parts) == trace.header.text
        assert {origin for origin, _ in live.parts} <= {"target", "accepted", "corrected", "bonus"}
        assert live.numbers["tokens"] == 60
        assert live.numbers["steps"] == len(trace) == live.summary["n"]
        live.step = 1
        assert "step 1 (of" in live.still()


def test_stop_ends_it_within_a_step_and_keeps_what_there_is(toy_pair):
    gate = Gate()
    live = Live(generate(toy_pair, request(), gate.hooks))
    assert gate.arrived.acquire(timeout=20)
    gate.let(2)
    assert all(gate.arrived.acquire(timeout=20) for _ in range(2))
    assert live.wait(0) is None
    assert live.state == "running"
    live._handle_msg({"content": {"data": {"method": "custom", "content": {"stop": True}}}, "buffers": []})
    gate.let(99)
    assert len(live.wait(20)) == 3
    assert live.state == live.trace.header.status == "cancelled"
    live.close()


def test_a_failure_is_told_in_one_line_and_keeps_the_steps_before_it(toy_pair):
    hooks, seen = Hooks(), []

    def fail(path):
        seen.append(path)
        if len(seen) == 3:
            raise NumericsError("layer 1 is not finite")

    hooks.add("path", fail)
    with Live(generate(toy_pair, request(), hooks)) as live:
        trace = live.wait(20)
        assert (live.state, live.message) == ("failed", "layer 1 is not finite")
        assert len(trace) == 2
        assert trace.header.status == "failed"


@pytest.mark.parametrize(("tokens", "record", "kept"), [(60, "none", False), (1, "scores", False), (2, "steps", True)])
def test_short_and_unrecorded_runs(toy_pair, tokens, record, kept):
    with Live(generate(toy_pair, request(tokens, record))) as live:
        assert (live.wait(20) is not None) == kept
        assert live.state == "done"
        assert live.numbers["tokens"] == tokens
        assert "<pre>" in live.still()


def test_runs_of_one_pair_wait_for_each_other(toy_pair):
    gate = Gate()
    first = Live(generate(toy_pair, request(), gate.hooks))
    assert gate.arrived.acquire(timeout=20)
    second = Live(generate(toy_pair, request()))
    assert (first.state, second.state) == ("running", "waiting")
    gate.let(99)
    assert first.wait(20).header.output_ids == second.wait(20).header.output_ids
    first.close()
    second.close()


def test_a_run_that_waits_can_be_closed_at_once(toy_pair):
    gate = Gate()
    first = Live(generate(toy_pair, request(), gate.hooks))
    assert gate.arrived.acquire(timeout=20)
    second = Live(generate(toy_pair, request()))
    second.close()
    assert (first.state, second.state) == ("running", "cancelled")
    gate.let(99)
    first.close()


# What other tests left for the collector, a library's event loop say, is collected here too: not this test's matter.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_closing_ends_the_run_and_frees_it(toy_pair):
    gate = Gate()
    live = Live(generate(toy_pair, request(), gate.hooks))
    alive = weakref.ref(live)
    assert gate.arrived.acquire(timeout=20)
    gate.let(99)
    live.close()
    assert live.generation is None
    del live
    gc.collect()
    assert alive() is None


def test_text_of_any_kind_stays_text(toy_pair):
    with Live(generate(toy_pair, request(5))) as live:
        live.wait(20)
        live.parts = [["accepted", "<img src=x onerror=alert(1)>"]]
        assert "<img" not in live.still()
