"""What the page is given: valid JSON, exact numbers, honest gaps."""

from __future__ import annotations

import base64
import dataclasses
import json

import numpy as np
import pytest

from dflash_lab.core.trace.schema import TokenInfo, Trace
from dflash_lab.ui.view.wire import MAX_PROMPT, MAX_ROWS, step_wire, trace_summary
from tests.ui.toytraces import make_trace


def decode(buffer):
    kind = {"f32": "<f4", "f16": "<f2"}[buffer["q"]]
    return np.frombuffer(base64.b64decode(buffer["d"]), kind).reshape(buffer["shape"]).astype(np.float32)


def as_json(value):
    return json.loads(json.dumps(value, allow_nan=False))


def with_tensor(trace, name, step, value):
    def fetch(wanted, i):
        return value if (wanted, i) == (name, step) else trace.tensor(wanted, i)

    return Trace(trace.header, trace.steps, fetch, trace.name)


@pytest.fixture(scope="module")
def trace():
    return make_trace(12)


def test_a_step_carries_the_tensors(trace):
    wire = as_json(step_wire(trace, 3))
    unary = trace.tensor("unary", 3)
    np.testing.assert_array_equal(decode(wire["unary"]), unary)
    added = trace.tensor("edges", 3) - unary[:, None, :]
    np.testing.assert_allclose(decode(wire["edges"]), added, atol=4e-3)
    np.testing.assert_array_equal(decode(wire["targetLogit"]), trace.tensor("target_logit", 3))
    assert wire["ids"] == trace.tensor("candidate_ids", 3).tolist()
    assert wire["path"] == trace.tensor("path", 3).tolist()
    record = trace.steps[3]
    assert (wire["acc"], wire["bonus"], wire["draft"]) == (record.num_accepted, record.bonus_id, list(record.draft_ids))
    assert wire["lengths"]["selected"] == 1 + record.num_accepted
    assert sum(wire["ms"]) == pytest.approx(record.timings.total_ms, abs=1e-3)


def test_every_id_of_a_step_has_its_token(trace):
    for i in range(len(trace)):
        wire = step_wire(trace, i)
        ids = {wire["anchor"], wire["bonus"], *wire["draft"], *wire["target"]}.union(*wire["ids"])
        assert {str(token_id) for token_id in ids} == set(wire["tokens"])


def test_a_step_stays_under_the_page_s_budget(trace):
    assert len(json.dumps(step_wire(trace, 0))) < 32_000


def test_the_summary_of_thousands_of_steps_is_small():
    summary = trace_summary(make_trace(5000, 4, 2))
    size = len(json.dumps(summary["steps"], separators=(",", ":")))
    assert summary["n"] == 5000
    assert size < 5000 * 80


def test_the_summary_describes_the_trace(trace):
    summary = as_json(trace_summary(trace))
    steps = summary["steps"]
    assert 1 + sum(steps["com"]) == len(summary["output"]) == summary["totals"]["tokens"]
    assert summary["totals"]["acceptanceLength"] == pytest.approx(1 + sum(steps["acc"]) / len(trace), abs=1e-4)
    assert ["target", "toy-target"] in summary["chips"]
    assert sum(summary["totals"]["causes"].values()) == len(trace)
    assert summary["edgeLimit"] > 0


def test_a_long_prompt_is_cut_and_says_so(trace):
    header = dataclasses.replace(trace.header, prompt="p" * (MAX_PROMPT + 5))
    summary = trace_summary(Trace(header, trace.steps, trace.tensor))
    assert len(summary["prompt"]) == MAX_PROMPT
    assert summary["promptChars"] == MAX_PROMPT + 5


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_json_has_no_number_for_is_null_or_in_a_buffer(trace, bad):
    top2 = trace.tensor("target_top2", 2).copy()
    top2[1] = bad
    wire = as_json(step_wire(with_tensor(trace, "target_top2", 2, top2), 2))
    assert wire["targetTop2"][1] == [None, None]
    unary = trace.tensor("unary", 2).copy()
    unary[0, 1] = bad
    np.testing.assert_array_equal(decode(as_json(step_wire(with_tensor(trace, "unary", 2, unary), 2))["unary"]), unary)


def test_too_many_candidates_are_cut_and_counted():
    trace = make_trace(2, 4, 8)
    ids = np.arange(3 * 100, dtype=np.int32).reshape(3, 100)
    wire = step_wire(with_tensor(trace, "candidate_ids", 1, ids), 1)
    assert (len(wire["ids"][0]), wire["rows"]) == (MAX_ROWS, 100)


@pytest.mark.parametrize("name", ["candidate_ids", "unary", "log_norm", "edges", "path", "target_ids", "target_top2"])
def test_what_was_not_recorded_is_none(name):
    trace = make_trace(3, 6, 4, leave_out=(name,))
    key = {"candidate_ids": "ids", "log_norm": "logNorm", "target_ids": "target", "target_top2": "targetTop2"}
    assert as_json(step_wire(trace, 1))[key.get(name, name)] is None
    as_json(trace_summary(trace))


@pytest.mark.parametrize("kind", ["dflash", "ar"])
def test_other_drafters(kind):
    trace = make_trace(4, 6, 4, kind=kind)
    wire, summary = as_json(step_wire(trace, 1)), as_json(trace_summary(trace))
    assert wire["edges"] is None
    assert summary["steps"]["k"] == [0 if kind == "ar" else 5] * 4


def test_no_steps_at_all():
    summary = as_json(trace_summary(make_trace(0, status="cancelled")))
    assert (summary["n"], summary["status"], summary["totals"]) == (0, "cancelled", {})


@pytest.mark.parametrize("i", [-1, 12])
def test_a_step_that_is_not_there(trace, i):
    with pytest.raises(IndexError, match=f"0..11, got {i}"):
        step_wire(trace, i)


def test_step_numbers_may_have_gaps(trace):
    kept = (trace.steps[0], *trace.steps[5:])
    gappy = Trace(trace.header, kept, trace.tensor)
    assert step_wire(gappy, 1)["ids"] == trace.tensor("candidate_ids", 5).tolist()


def test_a_token_says_what_it_hides(trace):
    header = dataclasses.replace(trace.header, tokens={**trace.header.tokens, 0: TokenInfo("\n", "0A", special=True)})
    wire = step_wire(Trace(header, trace.steps, trace.tensor), 0)
    shown = wire["tokens"].get("0") or trace_summary(Trace(header, trace.steps, trace.tensor))["tokens"]["0"]
    assert shown == {"t": "\n", "v": "⏎", "b": "0a", "s": 1}
