"""A sweep's grid in a notebook: what is shown, selected, decoded again, kept as a picture."""

from __future__ import annotations

import gc
import json
import weakref

import pytest

from dflash_lab.core.ablate import again
from dflash_lab.core.ablate.results import load_results
from dflash_lab.core.errors import DataError, RequestError
from tests.ui.toysweep import toy_rows, toy_run, write_results

pytest.importorskip("anywidget")
from dflash_lab.ui.widgets.sweep import SweepGrid


@pytest.fixture
def folder(tmp_path):
    return write_results(tmp_path / "toy", toy_rows(), [toy_run()])


@pytest.fixture
def sent(monkeypatch):
    """What a widget sends to its page."""
    messages = []
    monkeypatch.setattr(SweepGrid, "_send", lambda self, message, buffers=None: messages.append(message))
    return messages


def ask(widget: SweepGrid, content: object) -> None:
    widget._handle_msg({"content": {"data": {"method": "custom", "content": content}}, "buffers": []})


def test_it_opens_on_the_best_cell_and_knows_all_of_it(folder):
    with SweepGrid(folder) as grid:
        assert grid.slices == ["gsm8k", "gsm8k · no selector"]
        assert grid.row["mean_acceptance_length"] == max(
            row["mean_acceptance_length"] for row in grid.report["rows"] if row["selector"]
        )
        assert grid.selected == {name: grid.row[name] for name in ("block_size", "num_candidates", "key")}
        json.dumps(grid.get_state(), allow_nan=False)
    with SweepGrid(load_results(folder), metric="ms_per_token") as grid:
        assert grid.row["ms_per_token"] == min(row["ms_per_token"] for row in grid.report["rows"] if row["selector"])


def test_one_stands_on_a_cell_also_in_another_slice(folder):
    with SweepGrid(folder) as grid:
        grid.select(4, 4)
        assert (grid.row["block_size"], grid.row["selector"]) == (4, True)
        grid.slice = 1
        assert (grid.row["block_size"], grid.row["selector"]) == (4, False)
        assert grid.view["slice"] == 1
        grid.slice = 99
        assert grid.slice == 1
        grid.slice = 0
        grid.select(16, 4)
        assert grid.row is None
        with pytest.raises(RequestError, match="no block of 3 with 4 candidates"):
            grid.select(3, 4)
        with pytest.raises(RequestError, match="did not run"):
            grid.trace()


def test_the_page_asks_for_a_cell(folder, sent):
    with SweepGrid(folder) as grid:
        key = grid.row["key"]
        ask(grid, {"get": key})
        ask(grid, {"get": "unknown"})
        ask(grid, {"get": 3})
        answers = [message["content"] for message in sent if message["method"] == "custom"]
        assert [answer["key"] for answer in answers] == [key, "unknown"]
        assert answers[0]["cell"]["title"].startswith("block 8")
        assert answers[1]["cell"] is None


def test_a_saved_notebook_keeps_a_table(folder):
    with SweepGrid(folder, slice=1, metric="tok_s") as grid:
        data, _ = grid._repr_mimebundle_()
        assert "<strong>tok/s</strong>, gsm8k · no selector" in data["text/html"]
        assert "<table>" in data["text/html"]


def test_a_cells_trace_is_decoded_as_in_the_sweep(toy_pair, tmp_path, monkeypatch):
    """With the loop that the rows come from: the trace has the row's steps."""
    prompts = tmp_path / "p.txt"
    prompts.write_text("hello\nworld\n")
    rows = toy_rows(dataset="p.txt", num_prompts=2, max_new_tokens=24, prompts=2)
    loaded = []
    monkeypatch.setattr(again, "load_cell", lambda row, notify: loaded.append(row) or toy_pair)
    with SweepGrid(write_results(tmp_path, rows, [toy_run(dataset=["p.txt"])])) as grid:
        grid.select(4, 1)
        trace = grid.trace("p/1")
        assert trace.header.request["prompt"] == "world"
        assert (trace.header.block_size, trace.header.num_candidates) == (4, 1)
        assert len(trace.header.output_ids) == 24
        grid.select(2, 1)
        grid.trace()
        assert len(loaded) == 1
        with pytest.raises(RequestError, match="no prompt 'p/9'"):
            grid.trace("p/9")


def test_an_empty_folder_is_told(tmp_path):
    with pytest.raises(DataError, match="no finished cell"):
        SweepGrid(write_results(tmp_path, []))
    with pytest.raises(DataError, match="no results.jsonl"):
        SweepGrid(tmp_path / "nowhere")


def test_closing_frees_it(folder):
    grid = SweepGrid(folder)
    alive = weakref.ref(grid)
    grid.close()
    del grid
    gc.collect()
    assert alive() is None
