"""`inspect`, `compare`, `export`: what they say of traces, as text and as data."""

import json
import math

import pytest

from dflash_lab.core.trace import store


@pytest.fixture
def trace(command, toy_pair, tmp_path):
    """The toy pair's trace of 60 tokens at level scores."""
    path = tmp_path / "t.safetensors"
    assert command("generate", "the duck", "--max-new-tokens", 60, "--trace", path).code == 0
    return path


def test_a_step_as_data(command, trace):
    step = next(step for step in store.load(trace).steps if step.num_accepted == 1)
    done = command("inspect", trace, "--step", step.index, "--json")
    assert done.code == 0
    found = json.loads(done.out)
    assert found["accepted"] == 1
    assert found["bonus"]["id"] == step.bonus_id
    assert [token["id"] for token in found["proposal"]] == list(step.draft_ids)
    for position, (column, chosen) in enumerate(zip(found["candidates"], found["path"], strict=True)):
        assert column[chosen]["id"] == step.draft_ids[position]
        assert [candidate["unary"] for candidate in column] == found["unary"][position]
        assert 0 < math.fsum(candidate["p"] for candidate in column) <= 1 + 1e-6
    assert len(found["edges"]) == 3
    assert len(found["edges"][0]) == len(found["edges"][0][0]) == 3
    assert found["cause"] == "selector"
    assert found["wanted"]["id"] == step.bonus_id
    assert found["argmax_length"] <= found["best_path_length"]
    assert found["selected_length"] == 2
    assert found["timings_ms"]["total_ms"] == pytest.approx(step.timings.total_ms)


def test_what_was_not_recorded_is_null(command, toy_pair, tmp_path):
    path = tmp_path / "t.safetensors"
    command("generate", "the duck", "--max-new-tokens", 9, "--trace", path, "--record", "steps")
    found = json.loads(command("inspect", path, "--json").out)
    for key in ("candidates", "unary", "edges", "path", "target_ids", "argmax_length", "best_path_length"):
        assert found[key] is None
    assert found["selected_length"] == found["accepted"] + 1


def test_a_step_is_drawn_for_people(command, trace):
    done = command("inspect", trace, "--step", 2)
    assert done.code == 0
    assert "\x1b" not in done.out
    assert len(done.out.splitlines()) > 4


@pytest.mark.parametrize("name", ["inspect", "export"])
@pytest.mark.parametrize(("step", "complaint"), [(-1, "asked for -1"), (999, "asked for 999")])
def test_a_step_out_of_range_says_which_there_are(command, trace, tmp_path, name, step, complaint):
    target = [tmp_path / "out.html"] if name == "export" else []
    done = command(name, trace, *target, f"--step={step}")
    assert done.code == 2
    assert f"has steps 0 to {len(store.load(trace).steps) - 1}, {complaint}" in done.err
    assert not (tmp_path / "out.html").exists()


def test_a_trace_without_steps_says_so(command, toy_pair, tmp_path):
    path = tmp_path / "t.safetensors"
    command("generate", "the duck", "--max-new-tokens", 1, "--trace", path)
    done = command("inspect", path)
    assert done.code == 2
    assert "has no verification step" in done.err


@pytest.mark.parametrize("arguments", [["inspect", "missing"], ["compare", "missing", "missing"]])
def test_a_missing_trace_is_one_line(command, arguments):
    done = command(*arguments)
    assert done.code == 2
    assert done.err.startswith("error: no trace at missing")
    assert done.err.count("\n") == 1


def test_equal_texts_compare_as_identical(command, trace, tmp_path):
    other = tmp_path / "other.safetensors"
    command("generate", "the duck", "--max-new-tokens", 60, "--block-size", 3, "--trace", other)
    found = json.loads(command("compare", trace, other, "--json").out)
    assert found["comparable"] is True
    assert found["verdict"] == "identical"
    assert found["divergence"] is None
    assert {"name": "block_size", "a": 4, "b": 3} in found["differences"]
    done = command("compare", trace, other)
    assert done.code == 0
    assert done.out.startswith("identical: the texts are equal as far as both go (60 tokens compared)\n")
    assert "warning: 3 and 2 drafts per step: compare acceptance lengths, not acceptance rates" in done.err


def test_different_prompts_are_not_comparable(command, trace, tmp_path):
    other = tmp_path / "other.safetensors"
    command("generate", "a.quick brown fox", "--max-new-tokens", 60, "--trace", other)
    done = command("compare", trace, other, "--json")
    found = json.loads(done.out)
    assert found["comparable"] is False
    assert "not comparable: prompts differ" in done.err


def test_a_divergence_names_tokens_and_margins(command, trace, tmp_path):
    other = tmp_path / "other.safetensors"
    command("generate", "the duck", "--max-new-tokens", 60, "--temperature", 9, "--trace", other)
    done = command("compare", trace, other)
    assert done.out.splitlines()[0].startswith("unknown: ")
    assert done.out.splitlines()[1].startswith("output token ")
    assert " against " in done.out


def test_a_large_page_is_announced(command, trace, tmp_path, monkeypatch):
    page = tmp_path / "step.html"
    assert "browser" not in command("export", trace, page).err
    monkeypatch.setattr("dflash_lab.ui.view.export.LARGE", 1000)
    done = command("export", trace, page)
    assert done.code == 0
    assert "a browser may take long to open it" in done.err


def test_export_writes_one_file(command, trace, tmp_path):
    page = tmp_path / "step.html"
    found = json.loads(command("export", trace, page, "--step", 3, "--json").out)
    assert found == {"file": str(page), "step": 3, "size_bytes": page.stat().st_size}
    assert page.read_text(encoding="utf-8").lstrip().lower().startswith("<!doctype html>")
    done = command("export", trace, tmp_path / "no" / "step.html")
    assert done.code == 2
    assert "does not exist; create it first" in done.err
