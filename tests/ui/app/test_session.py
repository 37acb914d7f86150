"""The store of traces and the runs of the browser sessions, without a browser."""

from __future__ import annotations

import json
import threading
import time

import pytest
from app_fakes import FakeEngine, FakeGeneration
from toytraces import make_trace

from dflash_lab.core.errors import NumericsError, RequestError, TraceError
from dflash_lab.core.trace import store as trace_store
from dflash_lab.core.types import GenerateRequest
from dflash_lab.ui.app.run import Pace, Run
from dflash_lab.ui.app.session import KINDS, Runs, TraceStore, read_traces, trace_id
from dflash_lab.ui.app.tabs import inspect

REQUEST = GenerateRequest("How many clips?", record="scores")


def wait_for(condition, seconds: float = 5.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.005)


def finish(run) -> dict:
    run.start()
    run.join(10)
    return run.view()


def test_opening_step_is_a_mixed_one():
    trace = make_trace(30)
    store = TraceStore(trace)
    step = trace.steps[store.example.opening_step]
    assert 4 <= step.num_accepted <= 7
    assert step.num_accepted < len(step.draft_ids)


@pytest.mark.parametrize(
    ("trace", "step"), [(make_trace(0), 0), (make_trace(5, kind="ar"), 0), (make_trace(6, 4, 4, skill=1.0), 0)]
)
def test_opening_step_exists_for_every_trace(trace, step):
    assert TraceStore(trace).example.opening_step == step


def test_id_depends_on_content_alone(tmp_path):
    trace = make_trace(4)
    trace_store.save(trace, tmp_path / "a.safetensors")
    trace_store.save(trace, tmp_path / "b.safetensors")
    ids = {trace_id(trace_store.load(tmp_path / name)) for name in ("a.safetensors", "b.safetensors")}
    assert ids == {trace_id(trace)}
    assert trace_id(make_trace(4, seed=1)) not in ids


def test_the_first_file_given_opens_and_unknown_ids_are_none(tmp_path):
    store = TraceStore(make_trace(4))
    assert store.opening() is store.example
    trace_store.save(make_trace(5, seed=2), tmp_path / "mine.safetensors")
    entry = store.open(tmp_path / "mine.safetensors")
    assert store.opening() is entry
    assert entry.label == "mine.safetensors"
    assert store.get("../../etc/passwd") is None
    assert store.get(str(tmp_path / "mine.safetensors")) is None


def test_oldest_uploads_and_runs_go_first_and_given_traces_stay():
    store = TraceStore(make_trace(2), capacity=3)
    ids = [store.add(make_trace(2, seed=seed), "run").id for seed in range(1, 6)]
    assert [store.get(id) is not None for id in ids] == [False, False, True, True, True]
    assert [entry.id for entry in store.entries()] == [store.example.id, *reversed(ids[2:])]


def test_upload_is_checked_and_outlives_the_uploaded_file(tmp_path):
    store = TraceStore(make_trace(2))
    file = tmp_path / "up.safetensors"
    trace_store.save(make_trace(3, seed=5), file)
    entry = store.upload(file)
    assert store.upload(file) is entry
    file.unlink()
    assert entry.trace.tensor("unary", 2) is not None
    bad = tmp_path / "bad.safetensors"
    bad.write_bytes(b"not a trace")
    with pytest.raises(TraceError, match=r"bad\.safetensors"):
        store.upload(bad)
    assert len(store.entries()) == 2


def test_missing_file_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("dflash_lab.ui.app.session.example_trace", lambda: make_trace(2))
    with pytest.raises(TraceError, match=r"nowhere\.safetensors"):
        read_traces([tmp_path / "nowhere.safetensors"])


@pytest.mark.parametrize("source", ["memory", "file"])
def test_saved_files_hold_the_trace(tmp_path, source):
    trace = make_trace(3, hostile=True)
    store = TraceStore(make_trace(2))
    if source == "file":
        trace_store.save(trace, tmp_path / "x y.safetensors")
        entry = store.open(tmp_path / "x y.safetensors")
    else:
        entry = store.add(trace, "run")
    files = {kind: store.write(entry, kind, 1) for kind in KINDS}
    assert trace_id(trace_store.load(files["trace"])) == trace_id(trace)
    assert json.loads(files["step"].read_text(encoding="utf-8"))["i"] == 1
    assert "<!doctype html" in files["page"].read_text(encoding="utf-8")[:200].lower()


def test_a_run_becomes_a_trace_with_its_text_by_origin():
    engine, store = FakeEngine(), TraceStore(make_trace(2))
    view = finish(Runs(store, engine).prepare("a", REQUEST))
    assert (view["state"], view["warnings"]) == ("done", ["this pair is a toy"])
    trace = store.get(view["trace"]).trace
    assert "".join(text for _, text in view["parts"]) == engine.made[0]._played.header.text
    assert {origin for origin, _ in view["parts"]} <= {"target", "accepted", "corrected", "bonus"}
    accepted = sum(step.num_accepted for step in trace.steps)
    assert view["acceptance_length"] == pytest.approx(1 + accepted / len(trace))
    assert view["tokens"] == len(trace.header.output_ids)
    json.dumps(view, allow_nan=False)


def test_without_a_drafter_the_pair_has_none_and_the_text_is_the_targets():
    engine, store = FakeEngine(make_trace(5, kind="ar")), TraceStore(make_trace(2))
    view = finish(Runs(store, engine).prepare("a", GenerateRequest("x", drafter=None, record="scores")))
    assert engine.pairs[0].drafter is None
    assert {origin for origin, _ in view["parts"]} == {"target"}


def test_a_text_that_ends_with_its_first_token_has_no_steps():
    engine = FakeEngine(make_trace(0))
    store = TraceStore(make_trace(2))
    view = finish(Runs(store, engine).prepare("a", REQUEST))
    assert (view["state"], view["tokens"], len(view["parts"])) == ("done", 1, 1)
    summary, _ = inspect.look_ups(store)
    assert summary({"trace": view["trace"]})["n"] == 0


def test_stop_ends_within_a_step_keeps_the_trace_and_the_next_run_starts_clean():
    engine, store = FakeEngine(make_trace(200, 8, 4), step_s=0.02), TraceStore(make_trace(2))
    runs = Runs(store, engine)
    run = runs.prepare("a", REQUEST)
    run.start()
    wait_for(lambda: engine.made and len(engine.made[0].done) >= 3)
    run.cancel()
    seen = len(engine.made[0].done)
    run.join(5)
    assert len(engine.made[0].done) <= seen + 1
    view = run.view()
    assert view["state"] == "cancelled"
    kept = store.get(view["trace"]).trace
    assert (kept.header.status, len(kept)) == ("cancelled", len(engine.made[0].done))
    assert not engine.lock.locked()
    engine._step_s = 0
    assert len(store.get(finish(runs.prepare("a", REQUEST))["trace"]).trace) == 200


def test_stop_while_queued_ends_at_once_and_never_runs():
    engine = FakeEngine()
    run = Runs(TraceStore(make_trace(2)), engine).prepare("a", REQUEST)
    assert (run.state, run.message) == ("queued", "Starting…")
    run.cancel()
    assert finish(run)["state"] == "cancelled"
    assert engine.made == []


def test_a_closed_session_ends_its_run_and_leaves_others_alone():
    engine = FakeEngine(make_trace(300, 8, 4), step_s=0.01)
    runs = Runs(TraceStore(make_trace(2)), engine)
    mine, other = runs.prepare("a", REQUEST), runs.prepare("b", REQUEST)
    mine.start()
    wait_for(lambda: engine.made and engine.made[0].done)
    runs.close("a")
    mine.join(5)
    assert (mine.state, other.state) == ("cancelled", "queued")
    assert runs.get("a") is None
    assert runs.get("b") is other


def test_runs_take_turns():
    engine = FakeEngine(make_trace(20, 8, 4), step_s=0.002)
    runs = Runs(TraceStore(make_trace(2)), engine)
    both = [runs.prepare(name, REQUEST) for name in "ab"]
    active: list[int] = []
    generate = engine.generate

    def counted(pair, request):
        active.append(sum(g.done != [] and len(g.done) < 20 for g in engine.made))
        return generate(pair, request)

    engine.generate = counted
    threads = [threading.Thread(target=finish, args=(run,)) for run in both]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert active == [0, 0]
    assert [run.state for run in both] == ["done", "done"]


def test_errors_end_a_run_with_their_line(caplog):
    runs = Runs(TraceStore(make_trace(2)), FakeEngine(error=RequestError("expected less, got more; shorten it")))
    view = finish(runs.prepare("a", REQUEST))
    assert (view["state"], view["message"]) == ("failed", "expected less, got more; shorten it")
    assert caplog.records == []
    engine = FakeEngine()
    engine._generate = lambda pair, request: 1 / 0
    view = finish(Runs(TraceStore(make_trace(2)), engine).prepare("a", REQUEST))
    assert view["message"] == "ZeroDivisionError: division by zero"
    assert [record.message for record in caplog.records] == ["the run failed"]


def test_a_run_that_fails_on_the_way_keeps_its_steps(monkeypatch):
    store, engine = TraceStore(make_trace(2)), FakeEngine()
    whole = FakeGeneration.__iter__

    def breaks(generation):
        for step in whole(generation):
            if step.record.index == 3:
                raise NumericsError("draft layer 1 of the drafter is not finite at block slot 0 (position 9)")
            yield step

    monkeypatch.setattr(FakeGeneration, "__iter__", breaks)
    view = finish(Runs(store, engine).prepare("a", REQUEST))
    assert (view["state"], view["message"][:13]) == ("failed", "draft layer 1")
    assert len(store.get(view["trace"]).trace) == 4


def test_no_rate_before_half_a_second(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("dflash_lab.ui.app.run.time.perf_counter", lambda: now[0])
    pace, steps = Pace(), make_trace(20).steps
    pace.add(steps[0])
    now[0] += 0.1
    pace.add(steps[1])
    assert pace.view()["tok_s"] is None
    now[0] += 10
    pace.add(steps[2])
    view = pace.view()
    tokens = sum(step.commit_length for step in steps[:3])
    assert view["tok_s"] == pytest.approx(tokens / (10.1 + steps[0].timings.total_ms / 1000))
    assert view["tok_s_now"] == pytest.approx(steps[2].commit_length / 2)
    assert view["tokens"] == 1 + tokens


def test_a_watched_run_grows_under_one_name_and_ends_under_its_own(monkeypatch):
    monkeypatch.setattr(Run, "LIVE_S", 0.05)
    engine, store = FakeEngine(make_trace(60, 8, 4), step_s=0.01), TraceStore(make_trace(2))
    run = Runs(store, engine).prepare("a", REQUEST)
    run.start()
    wait_for(lambda: run.state == "running")
    live = run.watch()
    first = store.get(live)
    assert first.live
    assert first.summary["status"] == "running"
    assert 0 < len(first.trace) < 60
    assert first in store.entries()
    wait_for(lambda: len(store.get(live).trace) > len(first.trace))
    run.join(10)
    ended = store.get(live)
    assert (ended.live, len(ended.trace)) == (False, 60)
    assert ended.id == run.watch() == ended.summary["id"] != live
    assert [entry.id for entry in store.entries()] == [store.example.id, ended.id]


def test_a_run_that_nobody_watches_is_stored_once():
    engine, store = FakeEngine(), TraceStore(make_trace(2))
    kept = []
    keep_run = store.keep_run
    store.keep_run = lambda *what: kept.append(what) or keep_run(*what)
    finish(Runs(store, engine).prepare("a", REQUEST))
    assert [live for _, _, live in kept] == [False]


def test_two_uploads_at_once_are_both_kept(tmp_path):
    store = TraceStore(make_trace(2))
    files = [tmp_path / f"{i}" / "same-name.safetensors" for i in range(8)]
    for i, file in enumerate(files):
        file.parent.mkdir()
        trace_store.save(make_trace(3, seed=i // 2 + 1), file)  # each trace comes twice
    gate, found = threading.Barrier(8), []

    def upload(file):
        gate.wait()
        found.append(store.upload(file))

    threads = [threading.Thread(target=upload, args=(file,)) for file in files]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {entry.id for entry in found} == {trace_id(make_trace(3, seed=seed)) for seed in range(1, 5)}
    assert len(store.entries()) == 5
    for entry in found:
        assert entry.trace.tensor("unary", 2) is not None


def test_a_large_file_is_opened_and_not_read(tmp_path):
    """500 MB of features: the page needs none of them, so nothing waits for them."""
    small, large = tmp_path / "small.safetensors", tmp_path / "large.safetensors"
    trace_store.save(make_trace(20, 8, 8), small)
    raw = small.read_bytes()
    end = 8 + int.from_bytes(raw[:8], "little")
    index, data = json.loads(raw[8:end]), raw[end:]
    size = 500_000_000
    index["target_features/000019"] = {
        "dtype": "F32", "shape": [1, size // 4], "data_offsets": [len(data), len(data) + size]
    }  # fmt: skip
    text = json.dumps(index).encode()
    text += b" " * (-len(text) % 8)
    with open(large, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + data)
        file.truncate(8 + len(text) + len(data) + size)
    began = time.monotonic()
    entry = TraceStore(make_trace(2)).open(large)
    assert entry.summary["n"] == 20
    assert inspect.step_block(entry.trace, 19)["steps"][-1]["i"] == 19
    assert time.monotonic() - began < 2
