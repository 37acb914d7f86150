"""The Live tab without a browser: what its form asks for, what it remembers, what it says when things go wrong."""

from __future__ import annotations

import json
import os
import shlex
import time
from pathlib import Path

import pytest

from dflash_lab.core.errors import DataError, DFlashLabError, RunError
from dflash_lab.core.serve.fake_model import FakeModel
from dflash_lab.core.serve.fake_server import FakeServer
from dflash_lab.core.serve.measure import make_task
from dflash_lab.core.serve.published import published_tables
from dflash_lab.core.serve.records import LoadPlan
from dflash_lab.core.serve.runfile import read_run
from dflash_lab.core.serve.watch import Watch
from dflash_lab.ui.app.ask import MEASURE, OWN, PRESETS, WATCH, command_line, make_ask, make_tasks, preset
from dflash_lab.ui.app.live import EXAMPLE_RUN, LiveStore
from dflash_lab.ui.app.tabs import live
from dflash_lab.ui.cli.main import cli
from tests.ui.toyruns import CARD, ToySet, fake_run, gb300_runs, measure_fake

FORM = {
    "mode": MEASURE, "url": "127.0.0.1:30000/v1", "model": "", "label": "", "datasets": ["gsm8k"],
    "own_prompts": "one\n\ntwo\nthree", "num_prompts": "", "concurrency": "1", "max_new_tokens": 2048,
    "temperature": 0, "top_p": 1, "top_k": 0, "reasoning": "", "stream": False,
}  # fmt: skip


def ask(**changes):
    return make_ask(*(FORM | changes).values())


def wait_for(condition, seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.01)


def look(store: LiveStore, **asked):
    (live_view,) = live.look_ups(store)
    return live_view(asked)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder to work in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"url": "nonsense"}, "expected a server's address"),
        ({"url": ""}, "expected a server's address"),
        ({"datasets": []}, "expected a prompt set, got none"),
        ({"datasets": [OWN], "own_prompts": " \n"}, "expected prompts, one a line, got none"),
        ({"num_prompts": "0"}, "prompts must be a number of 1 or more, or nothing for all, got '0'"),
        ({"concurrency": "1,x"}, "concurrency must be a number of 1 or more, or several as 1,8,32, got '1,x'"),
        ({"concurrency": "0"}, "concurrency must be a number"),
        ({"max_new_tokens": None}, "expected a number for max tokens, got none"),
        ({"max_new_tokens": 0}, "max tokens must be 1 or more, got 0"),
        ({"temperature": -1}, "temperature must be 0 or more, got -1"),
        ({"top_p": 0}, "top-p must be above 0 and at most 1, got 0"),
        ({"top_p": 1.5}, "top-p must be above 0 and at most 1, got 1.5"),
        ({"top_k": -2}, "top-k must be 0 or more, got -2"),
    ],
)
def test_wrong_input_is_named_in_one_line(changes, said):
    with pytest.raises(DFlashLabError, match=said) as error:
        ask(**changes)
    assert "\n" not in str(error.value)
    assert live.same_command(*(FORM | changes).values()).startswith("# ")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"mode": WATCH, "model": "a b"},
        {"datasets": ["gsm8k", "mt-bench"], "num_prompts": "32", "concurrency": "1, 8,32"},
        {"stream": True, "label": "my run"},
        {"temperature": 1, "top_p": 0.95, "top_k": 20, "reasoning": "xhigh", "max_new_tokens": 4096},
        {"datasets": [OWN]},
    ],
)  # fmt: skip
def test_the_command_shown_is_a_call_that_means_the_same(changes):
    asked = ask(**changes)
    program, group, name, *arguments = shlex.split(command_line(asked).replace("\\\n", ""))
    assert (program, group) == ("dflash-lab", "live")
    given = cli.commands[group].commands[name].make_context(name, arguments).params
    assert given.get("url", given.get("source")) == "http://127.0.0.1:30000" == asked.url
    assert given["model"] == asked.model
    if asked.datasets:
        assert given["dataset"].replace("prompts.txt", OWN).split(",") == list(asked.datasets)
        assert [int(part) for part in given["concurrency"].split(",")] == list(asked.concurrency)
        assert {key: given[key] for key in asked.options} == asked.options
        assert (given["num_prompts"], given["label"]) == (asked.num_prompts, asked.label)


def test_presets_are_the_published_settings():
    zlab, flash_next, a3b, *_ = PRESETS
    assert list(preset(zlab).values()) == [2048, 0.0, 1.0, 0, ""]
    assert preset(flash_next) == CARD
    assert preset(a3b)["reasoning"] == "on"


def test_tasks_are_every_set_at_every_concurrency(here, monkeypatch):
    (here / "gsm8k.jsonl").write_text("".join(json.dumps({"question": f"what is {i}?"}) + "\n" for i in range(40)))
    monkeypatch.setenv("DFLASH_LAB_DATA", str(here))
    tasks = make_tasks(ask(datasets=["gsm8k", OWN], concurrency="1,16"), here / "runs")
    names = [(task.plan.name, task.plan.num_prompts, task.plan.num_warmup) for task in tasks]
    assert names == [("gsm8k-c1", 40, 8), ("gsm8k-c16", 40, 16), ("prompts-c1", 3, 8), ("prompts-c16", 3, 16)]
    with pytest.raises(DataError, match="prompts holds 3 prompts, asked for 9"):
        make_tasks(ask(datasets=[OWN], num_prompts="9"), here / "runs")


def test_nothing_to_show_is_an_empty_state(monkeypatch):
    monkeypatch.setattr("dflash_lab.ui.app.live.EXAMPLE_RUN", Path("nowhere.jsonl"))
    answer = look(LiveStore())
    assert (answer["source"], answer["sources"], "view" in answer) == (None, [], False)
    assert answer["card"]["tables"] == []
    assert len(answer["card"]["others"]) == len(published_tables())


@pytest.mark.parametrize("asked", [None, 7, [], {"source": 3}, {"source": "../../etc/passwd", "mine": [], "beside": 1}])
def test_any_question_has_an_answer(tmp_path, asked):
    run = fake_run(tmp_path)
    (live_view,) = live.look_ups(LiveStore([run.path]))
    assert live_view(asked)["view"]["title"] == "DFlash 2 · GSM8K, concurrency 1"


def test_runs_are_named_by_id_and_sent_once(tmp_path):
    run = fake_run(tmp_path)
    store = LiveStore([run.path])
    assert store.get(str(run.path)) is None
    answer = look(store)
    again = look(store, source=answer["source"], seen=answer["version"], card=answer["cardVersion"])
    assert not {"view", "card"} & set(again)
    json.dumps(answer, allow_nan=False)


def test_wrong_files_are_named(tmp_path):
    with pytest.raises(RunError, match="holds no runs"):
        LiveStore([tmp_path])
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"kind": "header", "schema": 99}\n')
    with pytest.raises(RunError, match=r"bad\.jsonl has run schema 99, this dflash-lab reads 1"):
        LiveStore([bad])
    with pytest.raises(RunError, match="cannot read the run"):
        LiveStore([tmp_path / "nowhere.jsonl"])
    with pytest.raises(RunError, match="schema 99"):
        LiveStore().upload(bad)


def test_a_folder_is_looked_into_again_and_a_growing_run_grows(tmp_path):
    run = fake_run(tmp_path)
    store = LiveStore([tmp_path])
    lines = run.path.read_bytes().splitlines(keepends=True)
    grows = tmp_path / "grows.jsonl"
    grows.write_bytes(b"".join(lines[:4]))
    first = look(store)
    assert first["view"]["state"] == "running"
    assert store.get(first["source"]).run.path == grows
    with grows.open("ab") as file:
        file.write(b"".join(lines[4:])[:-30])
    second = look(store, source=first["source"], seen=first["version"])
    assert second["view"]["message"] == "8 of 8 answered"
    with grows.open("ab") as file:
        file.write(lines[-1][-30:])
    assert look(store, source=first["source"])["view"]["state"] == "complete"
    with grows.open("ab") as file:
        file.write(b"what is this\n")
    assert "expected a JSON object with a kind" in look(store, source=first["source"])["view"]["message"]


def test_an_upload_outlives_the_uploaded_file(tmp_path):
    run = fake_run(tmp_path)
    store = LiveStore()
    source = store.upload(run.path)
    run.path.unlink()
    assert look(store, source=source.id)["view"]["state"] == "complete"


def test_the_card_takes_runs_that_are_alike_and_says_what_it_leaves_out(tmp_path):
    paths = gb300_runs(tmp_path, loads=(1,))
    with FakeServer(FakeModel(accelerator="NVIDIA H200")) as server:
        measure_fake(server.url, tmp_path / "other.jsonl", **CARD)
    store = LiveStore([*paths, tmp_path / "other.jsonl"])
    shown = next(source for source in store.runs() if source.run.path == paths[-1])
    told = look(store, source=shown.id)["card"]
    assert told["measured"] == "1x NVIDIA GB300"
    (said,) = told["left_out"]
    assert "not comparable: hardware differs" in said
    assert "other.jsonl" in said
    assert sum(bool(cell and cell["value"]) for row in told["tables"][1]["rows"] for cell in row["cells"]) == 3


def test_a_watch_belongs_to_its_session(tmp_path):
    with FakeServer(FakeModel(backend="vllm")) as server:
        store = LiveStore()
        source = store.watch("one", Watch(server.url, interval_s=0.05))
        wait_for(lambda: look(store, source=source.id)["view"]["figures"][2]["data"])
        answer = look(store, source=source.id, mine=source.id, beside=["mt-bench", "8"])
        assert answer["sources"][0] == [source.id, f"watching {server.url}"]
        assert answer["view"]["beside"] == ["mt-bench", "8"]
        assert answer["view"]["published"][0]["throughput_tok_s"]["DFlash 2"] == 1261.8
        assert answer["card"]["target"] == "Qwen/Qwen3.8-Flash-Next-FP8"
        store.stop("another")
        assert look(store, source=source.id)["view"]["stoppable"]
        store.stop("one")
        wait_for(lambda: look(store, source=source.id)["view"]["state"] == "stopped")
        store.close("one")
        assert store.get(source.id) is None


def test_a_server_that_is_down_or_goes_is_said(tmp_path):
    with FakeServer(FakeModel(backend="vllm")) as server:
        url = server.url
        store = LiveStore()
        source = store.watch("one", Watch(url, interval_s=0.05))
        wait_for(lambda: look(store, source=source.id)["view"]["figures"][2]["data"])
    wait_for(lambda: "no server answers" in (look(store, source=source.id)["view"]["message"] or ""))
    assert look(store, source=source.id)["view"]["state"] == "running"
    down = store.watch("one", Watch(url))
    assert store.get(source.id) is None
    wait_for(lambda: look(store, source=down.id)["view"]["state"] == "failed")
    assert "no server answers" in look(store, source=down.id)["view"]["message"]
    store.close("one")


@pytest.mark.parametrize(
    ("model", "wanted", "said"),
    [
        (FakeModel(api_key="secret"), None, "set DFLASH_LAB_API_KEY to the server's key"),
        (FakeModel(metrics=False, backend="vllm"), None, "publishes no counters to watch"),
        (FakeModel(name="tiny"), "huge", "does not serve 'huge'; it serves tiny"),
    ],
)
def test_servers_that_cannot_be_watched_say_why(model, wanted, said):
    with FakeServer(model) as server:
        store = LiveStore()
        source = store.watch("one", Watch(server.url, wanted))
        wait_for(lambda: look(store, source=source.id)["view"]["state"] == "failed")
        assert said in look(store, source=source.id)["view"]["message"]


def measure(store: LiveStore, url: str, folder: Path, count: int = 6, loads: tuple[int, ...] = (1,), **options):
    plans = [LoadPlan("gsm8k", count, load, num_warmup=1) for load in loads]
    return store.measure("one", url, [make_task(ToySet(), plan) for plan in plans], folder, **options)


def test_runs_are_measured_one_after_another(here):
    with FakeServer() as server:
        store = LiveStore()
        source = measure(store, server.url, Path("runs"), loads=(1, 4), label="mine")
        wait_for(lambda: source.job.finished)
    view = look(store, source=source.id)["view"]
    assert view["title"] == "mine · GSM8K, concurrency 4"
    assert view["message"] == "run 2 of 2 · 6 of 6 answered · written to runs/gsm8k-c4.jsonl"
    assert (source.job.state, view["state"], view["stoppable"]) == ("done", "complete", False)
    assert [each.run.header.plan.concurrency for each in store.runs()][:2] == [4, 1]
    assert read_run(here / "runs/gsm8k-c1.jsonl").status == "complete"


def test_stop_keeps_what_was_answered_and_it_can_go_on(here):
    slow = FakeModel(step_s=0.05)
    with FakeServer(slow) as server:
        store = LiveStore()
        source = measure(store, server.url, Path("runs"), count=20)
        wait_for(lambda: (current := source.current) and current.version() and len(current.run.requests) >= 2, 20)
        store.stop("one")
        wait_for(lambda: source.job.finished)
        view = look(store, source=source.id)["view"]
        assert view["state"] == "interrupted"
        assert "to go on, add --out runs to the command" in view["message"]
        kept = read_run(here / "runs/gsm8k-c1.jsonl")
        answered = sum(record.ok for record in kept.requests)
        assert answered >= 2
        assert len(kept.missing) == 20 - answered


def test_a_server_that_dies_is_labelled_and_its_answers_are_kept(here):
    prompts = ToySet().prompts
    with FakeServer(FakeModel(failures={prompts[3].text: "die"})) as server:
        store = LiveStore()
        source = measure(store, server.url, Path("runs"))
        wait_for(lambda: source.job.finished, 20)
    view = look(store, source=source.id)["view"]
    assert view["state"] == "failed"
    assert "the server no longer answers" in view["message"]
    assert next(number["value"] for number in view["numbers"] if number["name"] == "acceptance length") > 1
    assert read_run(here / "runs/gsm8k-c1.jsonl").status == "server lost"


def test_a_server_that_refuses_is_said_and_leaves_no_run(here):
    with FakeServer(FakeModel(max_model_len=100)) as server:
        store = LiveStore()
        source = measure(store, server.url, Path("runs"))
        wait_for(lambda: source.job.finished)
        view = look(store, source=source.id)["view"]
    assert view["state"] == "failed"
    assert "takes 100 tokens, prompt included" in view["message"]
    assert not (here / "runs").exists()


def test_a_stop_in_the_warm_up_is_an_end_too(here):
    with FakeServer(FakeModel(step_s=0.2)) as server:
        store = LiveStore()
        source = measure(store, server.url, Path("runs"))
        wait_for(lambda: source.current is not None)
        store.stop("one")
        wait_for(lambda: source.job.finished)
    view = look(store, source=source.id)["view"]
    assert (view["state"], view["stoppable"]) == ("stopped", False)


def test_a_run_that_nobody_writes_any_more_is_not_opened_first(tmp_path):
    lines = fake_run(tmp_path).path.read_bytes().splitlines(keepends=True)
    left, whole = tmp_path / "left.jsonl", tmp_path / "whole.jsonl"
    left.write_bytes(b"".join(lines[:4]))
    whole.write_bytes(b"".join(lines))
    store = LiveStore([left, whole])
    assert store.opening().run.path == left
    os.utime(left, (0, 0))
    assert store.opening().run.path == whole


def test_the_example_opens_where_nothing_else_is_and_names_no_folder(tmp_path):
    store = LiveStore()
    assert store.opening() is store.example
    assert '"/' not in EXAMPLE_RUN.read_text(encoding="utf-8")
    view = look(store)["view"]
    assert (view["state"], view["warnings"]) == ("complete", [])
    assert all(figure["data"] for figure in view["figures"])
    assert view["missing"] == ["Nothing is published of SmolLM2-135M-Instruct that is known here."]
    assert store.example.label.startswith("example · DFlash 2 · gsm8k-c1 · ")
    mine = store.open(fake_run(tmp_path).path)
    assert store.opening() is mine
    assert store.runs() == [mine, store.example]
