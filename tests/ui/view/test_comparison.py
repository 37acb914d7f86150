"""What the Compare page is given."""

from __future__ import annotations

import dataclasses
import json

import pytest

from dflash_lab.core.trace.schema import Trace
from dflash_lab.ui.view.comparison import comparison_wire
from tests.ui.toytraces import make_trace


def changed(trace, **header):
    return Trace(dataclasses.replace(trace.header, **header), trace.steps, trace.tensor, trace.name)


def diverging(trace, index, token=5):
    ids = list(trace.header.output_ids)
    ids[index] = token if ids[index] != token else token + 1
    return changed(trace, output_ids=tuple(ids))


@pytest.fixture(scope="module")
def trace():
    return make_trace(20, 8, 8)


def test_equal_texts(trace):
    wire = json.loads(json.dumps(comparison_wire(trace, trace), allow_nan=False))
    assert (wire["verdict"], wire["comparable"], wire["divergence"]) == ("identical", True, None)
    assert wire["differences"] == []
    assert wire["numCompared"] == len(trace.header.output_ids)
    assert all(row[1] == row[2] for row in wire["metrics"])


def test_the_first_divergence_has_both_tokens_and_margins(trace):
    other = diverging(trace, 9)
    wire = comparison_wire(trace, other)
    at = wire["divergence"]
    assert at["index"] == 9
    assert (at["a"], at["b"]) != ("", "")
    assert at["a"] != at["b"]
    assert float(at["marginA"]) == float(at["marginB"]) > 0
    assert wire["verdict"] in ("rounding", "clear")


def test_what_is_not_comparable_is_said(trace):
    wire = comparison_wire(trace, changed(trace, prompt_ids=(1,) * 40, target={"name": "another"}))
    assert not wire["comparable"]
    assert [reason.split()[0] for reason in wire["reasons"]] == ["prompts", "targets"]


def test_a_hostile_text_is_spelled_out():
    trace = make_trace(20, 8, 8, hostile=True)
    wire = json.dumps(comparison_wire(trace, diverging(trace, 40)), ensure_ascii=False)
    assert "\u202e" not in wire


@pytest.mark.parametrize(("name", "fitting"), [("Qwen/Qwen3.8-27B", 1), ("bundled", 0)])
def test_published_tables_fit_by_target(trace, name, fitting):
    published = comparison_wire(changed(trace, target={"name": name}), trace)["published"]
    assert sum(table["fits"] for table in published["tables"]) == fitting
    assert [table["fits"] for table in published["tables"]][:fitting] == [True] * fitting
    assert all(table["source"] and "hardware" in table["settings"] for table in published["tables"])
    assert published["measured"][1] == f"{len(trace.header.output_ids) / len(trace):.4g}"


@pytest.mark.parametrize("a", [make_trace(0), make_trace(4, kind="ar"), make_trace(4, kind="dflash")])
def test_traces_of_any_kind_are_compared(trace, a):
    for pair in ((a, trace), (trace, a)):
        json.dumps(comparison_wire(*pair), allow_nan=False)
