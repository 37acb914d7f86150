"""`live` from the command line, against fake servers: the promised keys, files, exit codes and one-line errors."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from dflash_lab.core.serve.fake_model import FakeModel
from dflash_lab.core.serve.fake_server import FakeServer
from dflash_lab.core.serve.runfile import read_run

FAST = {"step_s": 0.0005, "prefill_s": 0.001}


@pytest.fixture
def prompts(tmp_path):
    """A file of twenty prompts of two categories."""
    path = tmp_path / "toy.jsonl"
    rows = [{"prompt": f"question number {i}", "category": "math" if i % 2 else "code"} for i in range(20)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def server():
    """A fake SGLang with DFlash 2 on a GB300."""
    with FakeServer(FakeModel(**FAST)) as running:
        yield running


def test_probe_says_who_answers(command, server):
    done = command("live", "probe", server.url, "--json")
    assert (done.code, done.err) == (0, "")
    found = json.loads(done.out)
    assert (found["backend"], found["method"], found["drafts_per_step"]) == ("sglang", "DFlash 2", 3)
    text = command("live", "probe", server.url).out
    assert "DFlash 2, 3 drafts per step" in text
    assert "1x NVIDIA GB300 (server's word)" in text


def test_bench_gives_the_promised_keys_and_a_file(command, server, prompts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs"
    done = command("live", "bench", server.url, "--dataset", prompts, "--num-prompts", 8, "--out", folder, "--json")
    assert done.code == 0, done.err
    assert len(done.out.splitlines()) == 1
    found = json.loads(done.out)
    assert (found["num_requests"], found["num_failed"], found["status"]) == (8, 0, "complete")
    assert found["throughput_tok_s"] > 0
    assert found["mean_acceptance_length"] > 1
    assert found["zlab_acceptance_length"] > 1
    assert found["sampling_sent"]["temperature"] == 0.0
    assert found["sampling_sent"]["max_tokens"] == 2048
    assert [group["name"] for group in found["categories"]] == ["code", "math"]
    assert found["server"]["hardware"] == "NVIDIA GB300"
    assert found["provenance"]["argv"]
    assert len(found["prompts"]["ids"]) == 8
    run = read_run(folder / "toy-c1.jsonl")
    assert found["file"] == str(run.path)
    assert [record.completion_tokens for record in run.requests] == [40] * 8
    text = command("live", "bench", server.url, "--dataset", prompts, "--num-prompts", 8, "--stream").out
    assert "1 + accepted / steps" in text
    assert "published on 1x NVIDIA GB300" in text
    assert "until the first text arrives here" in text
    assert len(list(tmp_path.glob("live-runs/*/toy-c1.jsonl"))) == 1, "a folder of its own unless told otherwise"


def test_several_sets_and_loads_are_a_folder_of_runs(command, server, prompts, tmp_path):
    folder = tmp_path / "runs"
    line = ["--dataset", prompts, "--num-prompts", 6, "--concurrency", "1,3", "--out", folder]
    done = command("live", "bench", server.url, *line, "--json")
    assert [run["name"] for run in json.loads(done.out)["runs"]] == ["toy-c1", "toy-c3"]
    sent = len(server.ledger.bodies)
    again = command("live", "bench", server.url, *line, "--json")
    assert again.code == 0
    assert again.err.count("is complete already; nothing is sent") == 2
    assert len(server.ledger.bodies) == sent + 1, "the probe's request only"


def test_compare_makes_the_tables(command, prompts, tmp_path):
    line = ["--dataset", prompts, "--num-prompts", 8]
    for name, acceptance in (("off", None), ("on", (0.9, 0.8, 0.7))):
        with FakeServer(FakeModel(acceptance=acceptance, **FAST)) as running:
            assert command("live", "bench", running.url, *line, "--out", tmp_path / name).code == 0
    done = command("live", "compare", tmp_path / "off", tmp_path / "on", "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert [cell["label"] for cell in found["cells"]] == ["Autoregressive", "DFlash 2"]
    assert found["cells"][1]["speedup"]["value"] > 1.5
    assert found["texts"]["toy"]["verdict"] == "same"
    text = command("live", "compare", tmp_path / "off", tmp_path / "on").out
    assert "acceptance length at load 1" in text
    assert "tok/s at concurrency 1" in text
    assert "the same text in all arms" in text
    assert "368.2 (1.79×)" in text, "the published table stands below"
    assert "of the published" not in text, "other sampling: no ratio to it"


def test_a_run_that_loses_its_server_is_reported_and_goes_on(command, prompts, tmp_path):
    # The fifth of the twenty in the order of seed 42.
    line = ["--dataset", prompts, "--num-prompts", 12, "--warmup", 1, "--out", tmp_path / "runs"]
    with FakeServer(FakeModel(failures={"question number 9": "die"}, **FAST)) as running:
        done = command("live", "bench", running.url, *line, "--json")
    assert done.code == 1
    found = json.loads(done.out)
    assert found["status"] == "server lost"
    assert 0 < found["num_requests"] < 12
    with FakeServer(FakeModel(**FAST)) as running:
        done = command("live", "bench", running.url, *line, "--json")
    assert done.code == 0, done.err
    assert "goes on" in done.err
    assert json.loads(done.out)["num_requests"] == 12


def test_an_interrupt_keeps_what_was_finished(prompts, tmp_path):
    with FakeServer(FakeModel(output_tokens=400, step_s=0.002)) as running:
        line = ["--dataset", prompts, "--num-prompts", "20", "--warmup", "1", "--out", tmp_path / "runs", "--json"]
        process = subprocess.Popen(
            [sys.executable, "-m", "dflash_lab", "live", "bench", running.url, *map(str, line)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        guard = threading.Timer(60, process.kill)
        guard.start()
        try:
            while len(running.ledger.spans) < 5 and process.poll() is None:
                time.sleep(0.02)
            os.kill(process.pid, signal.SIGINT)
            out, err = process.communicate(timeout=30)
        finally:
            guard.cancel()
            process.kill()
    assert process.returncode == 130, err
    found = json.loads(out)
    assert found["status"] == "interrupted"
    assert found["failures"] == {"cancelled": 1}
    assert 1 <= found["num_requests"] - found["num_failed"] < 20
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("acceptance", "code", "said"),
    [((0.9, 0.8, 0.7), 0, ""), ((0.0, 0.0, 0.0), 1, "expected 2.0"), (None, 1, "not reported")],
)
def test_min_accept_is_an_exit_code(command, prompts, tmp_path, acceptance, code, said):
    with FakeServer(FakeModel(acceptance=acceptance, **FAST)) as running:
        done = command(
            "live",
            "bench",
            running.url,
            "--dataset",
            prompts,
            "--num-prompts",
            4,
            "--out",
            tmp_path,
            "--min-accept",
            2.0,
        )
    assert done.code == code
    assert said in done.err
    text = {None: "speculation is not active", (0.0,) * 3: "contributes nothing"}.get(acceptance, "is active")
    assert text in done.out
    assert ("by position" in done.out) == (acceptance is not None), "no table of zeros without speculation"


def test_statistics_that_break_an_identity_are_not_averaged(command, prompts, tmp_path):
    model = FakeModel(distort=lambda fields: fields | {"spec_verify_ct": fields["spec_verify_ct"] + 1}, **FAST)
    with FakeServer(model) as running:
        done = command(
            "live", "bench", running.url, "--dataset", prompts, "--num-prompts", 4, "--out", tmp_path, "--json"
        )
    assert done.code == 1
    found = json.loads(done.out)
    assert (found["mean_acceptance_length"], found["zlab_acceptance_length"]) == (None, None)
    assert "steps = sum(histogram)" in found["broken"][0]
    assert found["throughput_tok_s"] > 0


def test_watch_writes_a_line_for_each_look(command, server):
    done = command("live", "watch", server.url, "--samples", 3, "--interval-s", 0.05)
    assert done.code == 0, done.err
    assert len(done.out.splitlines()) == 3
    assert "running 0" in done.out
    assert server.ledger.bodies == [], "a watcher asks nothing"
    found = json.loads(command("live", "watch", server.url, "--samples", 2, "--interval-s", 0.05, "--json").out)
    assert found["method"] == "DFlash 2"
    assert len(found["series"]["t_s"]) == 2
    assert found["positions"]["positions"] == []


def test_watch_takes_a_run_too(command, server, prompts, tmp_path):
    command("live", "bench", server.url, "--dataset", prompts, "--num-prompts", 4, "--out", tmp_path)
    found = json.loads(command("live", "watch", tmp_path / "toy-c1.jsonl", "--json").out)
    assert (found["status"], found["requests"]) == ("complete", 4)
    assert len(found["positions"]["survival"]) == 3


def test_tables_have_their_sources(command):
    text = command("live", "tables").out
    assert "source: model card Qwen3.8-Flash-Next-DFlash2 (published)" in text
    assert "its tables were not found: no numbers are shown" in text
    found = json.loads(command("live", "tables", "Qwen/Qwen3.8-27B", "--json").out)
    assert [table["hardware"] for table in found["tables"]] == ["1x NVIDIA H200"]


def test_recipe_prints_what_to_launch_and_how_to_measure(command):
    found = json.loads(command("live", "recipe", "qwen3.8-flash-next", "--json").out)
    assert len(found["recipes"]) == 6
    done = command("live", "recipe", "qwen3.6-35b-a3b", "--engine", "sglang", "--method", "dflash2")
    assert "--speculative-draft-attention-backend fa4" in done.out
    assert "dflash-lab live bench http://127.0.0.1:30000" in done.out
    bundled = json.loads(command("live", "recipe", "bundled", "--json").out)
    assert bundled["pair"]["block_size"] == 16


def test_run_becomes_the_server_where_it_is_installed(command, monkeypatch):
    started = []
    monkeypatch.setattr("dflash_lab.ui.cli.live_recipe.importlib.util.find_spec", lambda name: object())
    monkeypatch.setattr("dflash_lab.ui.cli.live_recipe.os.execv", lambda path, words: started.append(words))
    command("live", "recipe", "qwen3.6-35b-a3b", "--method", "dflash2", "--run")
    assert started[0][:4] == [sys.executable, "-m", "sglang.launch_server", "--model-path"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["probe", "http://127.0.0.1:1"], "no server answers at http://127.0.0.1:1"),
        (["probe", "nonsense"], "expected a server's address"),
        (["probe", "{url}", "--model", "gpt"], "does not serve 'gpt'; it serves Qwen/"),
        (["probe", "{url}/wrong"], "HTTP 404 and no list of models"),
        (["bench", "{url}", "--dataset", "nothing"], "no prompt set 'nothing'"),
        (["bench", "{url}", "--dataset", "{prompts}", "--num-prompts", "21"], "toy holds 20 prompts, asked for 21"),
        (["bench", "{url}", "--dataset", "{prompts}", "--concurrency", "x"], "--concurrency expects a number"),
        (["bench", "{url}", "--dataset", "{prompts}", "--concurrency", "0"], "--concurrency expects a number"),
        (["bench", "{url}", "--dataset", "{prompts}", "--concurrency", "1", "--rate", "2"], "give one of them"),
        (["bench", "{url}", "--dataset", "{prompts}", "--max-new-tokens", "32768"], "prompt included"),
        (["bench", "http://127.0.0.1:1", "--dataset", "{prompts}"], "no server answers"),
        (["watch", "http://127.0.0.1:1"], "no server answers"),
        (["watch", "nothing.jsonl"], "cannot read the run nothing.jsonl: No such file"),
        (["watch", "."], "cannot read the run .: Is a directory"),
        (["watch", "nothing"], "expected a server's address"),
        (["compare", "nothing.jsonl"], "nothing.jsonl does not exist"),
        (["compare", "{prompts}"], "line 1: expected a JSON object with a kind"),
        (["tables", "gpt2"], "nothing is published of 'gpt2'"),
        (["recipe", "gpt2"], "is not one of"),
        (["recipe", "qwen3.6-35b-a3b", "--block-size", "16"], "block size must be 2 to 8"),
        (["recipe", "bundled", "--method", "mtp"], "its target has no heads"),
        (["recipe", "qwen3.6-35b-a3b", "--run"], "say which with --method"),
        (["recipe", "qwen3.6-35b-a3b", "--run", "--method", "dflash2"], "sglang is not installed here"),
    ],
)
def test_wrong_input_is_one_line(command, server, prompts, monkeypatch, arguments, complaint):
    monkeypatch.chdir(prompts.parent)
    monkeypatch.setitem(sys.modules, "sglang", None)
    monkeypatch.setattr("dflash_lab.ui.cli.live_recipe.importlib.util.find_spec", lambda name: None)
    done = command("live", *(text.format(url=server.url, prompts=prompts) for text in arguments))
    assert done.code == 2, done.err
    assert done.out == ""
    last = done.err.splitlines()[-1]
    assert last.startswith("error: ")
    assert complaint in last


def test_the_key_is_taken_from_the_environment_and_never_written(command, prompts, tmp_path, monkeypatch):
    with FakeServer(FakeModel(api_key="secret-key", **FAST)) as running:
        done = command("live", "bench", running.url, "--dataset", prompts, "--num-prompts", 4, "--out", tmp_path)
        assert done.code == 2
        assert "set DFLASH_LAB_API_KEY" in done.err
        monkeypatch.setenv("DFLASH_LAB_API_KEY", "secret-key")
        done = command("live", "bench", running.url, "--dataset", prompts, "--num-prompts", 4, "--out", tmp_path)
    assert done.code == 0, done.err
    assert "secret-key" not in (tmp_path / "toy-c1.jsonl").read_text() + done.out + done.err
