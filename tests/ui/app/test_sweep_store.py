"""The Ablations tab without a browser: what its form asks for, results, sweeps of its own, cells opened again."""

from __future__ import annotations

import dataclasses
import json
import threading
import time

import pytest
from app_fakes import FakeEngine
from toytraces import make_trace

from dflash_lab.core.ablate.again import find_prompt
from dflash_lab.core.errors import DataError, RequestError
from dflash_lab.core.trace.schema import Trace
from dflash_lab.ui.app import sweep_run
from dflash_lab.ui.app.session import TraceStore
from dflash_lab.ui.app.sweep import SweepStore
from dflash_lab.ui.app.sweep_run import SweepRun
from dflash_lab.ui.app.tabs.sweep import OWN, look_ups, make_ask
from tests.ui.toysweep import HOSTILE, fake_program, toy_rows, toy_run, write_results

FORM = {
    "datasets": ["gsm8k"], "own_prompts": "one\ntwo", "num_prompts": 2, "block_size": "4, 8", "num_candidates": "1,4",
    "selector": ["on", "off"], "mode": "replay", "max_new_tokens": 128, "conv": ["on"], "layers": "all", "window": "0",
    "temperature": "0",
}  # fmt: skip


def toy_cell(row: dict, notify) -> object:
    """A pair for a cell, without models."""
    return FakeEngine().pair(notify)


@pytest.fixture
def folder(tmp_path):
    return write_results(tmp_path / "toy", toy_rows(), [toy_run()])


@pytest.fixture
def sweeps(folder, tmp_path):
    """A store over the toy results, whose cells are decoded by whatever the engine makes of no pair at all."""
    return SweepStore([folder], load_cell=toy_cell, own_folder=tmp_path / "own")


def wait_for(condition, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.01)


# ---- the form


def test_the_form_is_a_command_and_the_same_form_has_the_same_folder(tmp_path):
    ask = make_ask(tmp_path, **FORM)
    assert ask.command == (
        "dflash-lab sweep run --block-size 4,8 --num-candidates 1,4 --selector on,off --num-prompts 2 "
        f"--max-new-tokens 128 --out {ask.folder}"
    )
    assert ask.num_cells == 8
    assert make_ask(tmp_path, **FORM).folder == ask.folder
    assert make_ask(tmp_path, **{**FORM, "num_prompts": 3}).folder != ask.folder
    assert ask.folder.name.startswith("gsm8k-")


def test_own_prompts_are_a_file_of_the_folder_and_change_it(tmp_path):
    form = {**FORM, "datasets": [OWN]}
    ask = make_ask(tmp_path, **form)
    assert ask.sweep.dataset == (str(ask.folder / "prompts.txt"),)
    assert ask.own_prompts == "one\ntwo"
    assert make_ask(tmp_path, **{**form, "own_prompts": "three"}).folder != ask.folder


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_prompts": None}, "expected a value for prompts"),
        ({"datasets": []}, "expected a value for prompt sets"),
        ({"datasets": [OWN], "own_prompts": " \n"}, "expected prompts, one a line"),
        ({"block_size": "4,x"}, "block_size must be whole numbers with commas, got '4,x'"),
        ({"block_size": "4,4"}, "block_size names a value twice"),
        ({"num_prompts": 0}, "num_prompts must be at least 1"),
        ({"temperature": "0,0.7"}, "use --mode decode"),
    ],
)
def test_a_wrong_form_is_told_in_one_line(tmp_path, change, said):
    with pytest.raises(RequestError, match=said):
        make_ask(tmp_path, **{**FORM, **change})


# ---- results


def test_results_given_open_first_and_are_read_again_when_they_change(sweeps, folder):
    source = sweeps.opening()
    assert source.label == "given · toy"
    assert [each.kind for each in sweeps.sources()] == ["given", "example"]
    assert len(source.report()["grids"]) == 2
    before = source.version()
    write_results(folder, toy_rows()[:2], [toy_run()])
    assert source.version() != before
    assert source.report()["num_rows"] == 2


def test_an_upload_is_checked_and_outlives_its_file(sweeps, folder, tmp_path):
    source = sweeps.upload([folder / "results.jsonl", folder / "sweep.json"])
    (folder / "results.jsonl").unlink()
    assert source.report()["num_rows"] == 8
    assert source.report()["runs"]
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"a": 1}\n')
    with pytest.raises(DataError, match="row 1: not a row of a sweep"):
        sweeps.upload([bad])
    with pytest.raises(DataError, match=r"expected results\.jsonl"):
        sweeps.upload([folder / "sweep.json"])


def test_folders_without_results_are_named(tmp_path):
    with pytest.raises(DataError, match=f"no results.jsonl in {tmp_path}"):
        SweepStore([tmp_path])


def test_look_ups_answer_anything_and_change_nothing(sweeps):
    sweep_view, sweep_cell = look_ups(sweeps)
    first = sweep_view({})
    assert first["source"] == sweeps.opening().id
    assert first["view"]["slices"] == ["gsm8k", "gsm8k · no selector"]
    assert "view" not in sweep_view({"seen": first["seen"]})
    assert sweep_view({"slice": 1})["view"]["slice"] == 1
    for wrong in (None, [], "x", {"source": "../../etc"}, {"source": 3, "slice": "1", "mine": []}, {"slice": 99}):
        assert sweep_view(wrong)["view"]["slice"] == 0
        assert "error" in sweep_cell(wrong)
    key = first["view"]["grid"]["cells"][0][0]["key"]
    cell = sweep_cell({"source": first["source"], "key": key})
    assert cell["title"] == "block 2, 1 candidates"
    json.dumps([first, cell], allow_nan=False)


def test_a_half_written_row_is_read_over_and_a_broken_one_is_told(sweeps, folder):
    sweep_view, _ = look_ups(sweeps)
    with open(folder / "results.jsonl", "a") as rows:
        rows.write('{"half": ')
    assert "half-written" in sweep_view({})["view"]["warnings"][0]
    with open(folder / "results.jsonl", "a") as rows:
        rows.write("\n")
    answer = sweep_view({})
    assert answer["view"] is None
    assert "row 10: not a row of a sweep" in answer["problem"]


def test_the_shipped_example_is_whole_and_its_prompts_are_there(tmp_path):
    source = SweepStore(own_folder=tmp_path).opening()
    assert source.kind == "example"
    found = source.report()
    assert (found["num_rows"], found["failed"], found["warnings"]) == (50, [], [])
    assert {status for grid in found["grids"] for line in grid["status"] for status in line} == {"done"}
    assert all(find_prompt(row, each["prompt"], source.folder).text for row in source.results().rows[:1]
               for each in row["per_prompt"])  # fmt: skip
    assert {item["category"] for item in found["recommended"]} == {None, "math", "code", "explain", "write"}


# ---- sweeps of the page


def run_of(folder, monkeypatch, lock=None, **program) -> SweepRun:
    folder.mkdir(exist_ok=True)
    monkeypatch.setattr(sweep_run, "PROGRAM", fake_program(folder, **program))
    return SweepRun(["sweep", "run"], folder / "out", len(program.get("rows", [])), lock or threading.Lock())


def test_a_sweep_runs_to_its_end(tmp_path, monkeypatch):
    run = run_of(tmp_path, monkeypatch, rows=toy_rows()[:4])
    run.start()
    run.join(20)
    assert run.view() == {"state": "done", "message": "Finished: 4 of 4 cells.", "done": 4, "total": 4}


@pytest.mark.parametrize("deaf", [False, True])
def test_stop_keeps_what_is_done_and_the_same_sweep_goes_on(tmp_path, monkeypatch, deaf):
    monkeypatch.setattr(sweep_run, "PATIENCE_S", 0.5)
    lock = threading.Lock()
    rows = toy_rows()[:6]
    run = run_of(tmp_path, monkeypatch, lock, rows=rows, row_s=0.2, deaf=deaf)
    run.start()
    wait_for(lambda: run.num_rows >= 2)
    assert lock.locked()
    run.stop()
    run.join(20)
    done = run.num_rows
    assert run.state == "stopped"
    assert 2 <= done < 6
    assert f"Stopped with {done} of 6 cells" in run.message
    assert not lock.locked()
    again = run_of(tmp_path, monkeypatch, lock, rows=rows)
    again.start()
    again.join(20)
    assert [json.loads(line)["key"] for line in (tmp_path / "out/results.jsonl").read_text().splitlines()] == [
        row["key"] for row in rows
    ]


def test_a_sweep_that_fails_says_why_in_one_line(tmp_path, monkeypatch):
    run = run_of(tmp_path, monkeypatch, error="prompts holds 2 prompts, asked for 9")
    run.start()
    run.join(20)
    assert (run.state, run.message) == ("failed", "prompts holds 2 prompts, asked for 9")
    run = run_of(tmp_path, monkeypatch, rows=toy_rows()[-1:], code=1)
    run.start()
    run.join(20)
    assert run.state == "done"
    assert "some cells failed" in run.message


def test_a_sweep_waits_for_the_model_and_can_be_stopped_meanwhile(tmp_path, monkeypatch):
    lock = threading.Lock()
    with lock:
        run = run_of(tmp_path, monkeypatch, lock, rows=toy_rows()[:1])
        assert "another run has it" in run.message
        run.start()
        run.stop()
        run.join(20)
    assert (run.state, run.num_rows) == ("stopped", 0)


def test_another_sweep_of_the_session_takes_the_place_of_the_first(sweeps, tmp_path, monkeypatch):
    first = run_of(tmp_path / "a", monkeypatch, rows=toy_rows()[:6], row_s=0.5)
    work = sweeps.begin("ada", first)
    wait_for(lambda: first.state == "running")
    second = run_of(tmp_path / "b", monkeypatch, rows=toy_rows()[:1])
    assert sweeps.begin("ada", second) is work
    first.join(20)
    second.join(20)
    assert (first.state, second.state) == ("stopped", "done")
    assert sweeps.work(work.token) is work
    assert sweeps.work("ada") is None
    sweeps.close("ada")
    assert sweeps.work(work.token) is None


# ---- cells


def prompts_file(folder, count: int = 6) -> None:
    (folder / "p.txt").write_text("".join(f"prompt {i}\n" for i in range(count)))


@pytest.fixture
def cells(tmp_path):
    """Results over a prompt file that lies beside them, and a store that decodes with the toy."""
    folder = write_results(
        tmp_path / "toy", toy_rows(dataset="somewhere/p.txt"), [toy_run(dataset=["somewhere/p.txt"])]
    )
    prompts_file(folder)
    return SweepStore([folder], load_cell=toy_cell, own_folder=tmp_path / "own")


def ask_of(sweeps, block_size=8, prompt="p/0") -> dict:
    source = sweeps.opening()
    row = next(row for row in source.results().rows if row["block_size"] == block_size and row["num_candidates"] == 4)
    return {"source": source.id, "key": row["key"], "prompt": prompt}


def test_a_cell_is_decoded_once_and_found_again(cells):
    engine, traces = FakeEngine(), TraceStore(make_trace(2))
    ask = ask_of(cells)
    work = cells.open_cell("ada", ask, engine, traces)
    work.cell.run.join(20)
    assert work.cell.run.state == "done"
    request = engine.made[0].request
    assert (request.prompt, request.block_size, request.num_candidates) == ("prompt 0", 8, 4)
    assert request.sampling.max_new_tokens == 256
    trace = traces.get(work.cell.run.trace_id)
    assert trace.source == "run"
    assert cells.open_cell("ada", ask, engine, traces) == trace.id
    assert len(engine.made) == 1
    other = cells.open_cell("ada", {**ask, "prompt": "p/1"}, engine, traces)
    other.cell.run.join(20)
    assert engine.made[1].request.prompt == "prompt 1"


def test_a_trace_is_compared_with_its_row(cells):
    row = cells.opening().row(ask_of(cells)["key"])
    told = row["per_prompt"][0]
    trace = make_trace(told["num_steps"], 8, 4)
    accepted = told["num_accepted"] - sum(step.num_accepted for step in trace.steps)
    first = dataclasses.replace(trace.steps[0], num_accepted=trace.steps[0].num_accepted + accepted)
    same = Trace(trace.header, (first, *trace.steps[1:]), trace.tensor)
    assert cells.judged(ask_of(cells), same).endswith("exactly as in the sweep.")
    said = cells.judged(ask_of(cells), make_trace(5, 8, 4))
    assert f"5 steps, acceptance length {1 + sum(s.num_accepted for s in make_trace(5, 8, 4).steps) / 5:.2f}" in said
    assert f"the sweep has {told['num_steps']} steps" in said
    assert "have changed since" in said


def test_what_is_not_there_is_told(cells, tmp_path):
    engine, traces = FakeEngine(), TraceStore(make_trace(2))
    for wrong in (
        {},
        {**ask_of(cells), "key": "x"},
        {**ask_of(cells), "prompt": "p/77"},
        {**ask_of(cells), "source": "x"},
    ):
        with pytest.raises(RequestError, match="not in the results any more"):
            cells.open_cell("ada", wrong, engine, traces)
    prompts_file(tmp_path / "toy", 2)
    with pytest.raises(DataError, match=r"has no prompt 'p/5' any more"):
        cells.open_cell("ada", ask_of(cells, prompt="p/5"), engine, traces)
    assert not engine.made


def test_an_upload_names_no_file_of_the_server(cells, tmp_path):
    secret = tmp_path / "p.txt"
    secret.write_text("the secret\n" * 6)
    rows = write_results(tmp_path / "up", toy_rows(dataset=str(secret)))
    source = cells.upload([rows / "results.jsonl"])
    ask = {**ask_of(cells), "source": source.id, "key": source.results().rows[0]["key"]}
    with pytest.raises(DataError, match="no prompt set"):
        cells.open_cell("ada", ask, FakeEngine(), TraceStore(make_trace(2)))


def test_names_of_rows_are_only_text(tmp_path):
    sweeps = SweepStore([write_results(tmp_path / "toy", toy_rows(dataset=HOSTILE))])
    view = look_ups(sweeps)[0]({})["view"]
    assert view["slices"][0].startswith("<img src=x")
    assert "&lt;" not in json.dumps(view["grid"])
