"""Runs on a pair from disk: both modes agree cell by cell, stopped runs go on, failures stay where they are."""

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
import torch

from dflash_lab.core.ablate import rows as row_module
from dflash_lab.core.ablate import runner, texts, work
from dflash_lab.core.ablate.report import report
from dflash_lab.core.ablate.results import ROWS, load_results
from dflash_lab.core.ablate.runner import Here, run_sweep
from dflash_lab.core.ablate.sweep import Sweep
from dflash_lab.core.errors import CheckpointError, DataError, NumericsError, RequestError, TargetError
from dflash_lab.core.model.checkpoint import load_checkpoint, save_checkpoint

KEYS = {
    "block_size", "num_candidates", "selector", "dataset", "num_prompts", "mean_acceptance_length",
    "argmax_acceptance_length", "best_path_acceptance_length", "per_prompt",
}  # fmt: skip
"""What scripts rely on."""


def small(disk_pair, **changes) -> Sweep:
    """A sweep of the pair on disk."""
    base = Sweep(
        target=str(disk_pair.target),
        drafter=(str(disk_pair.drafter),),
        dataset=(str(disk_pair.prompts),),
        num_prompts=4,
        max_new_tokens=24,
        block_size=(2, 6),
        num_candidates=(1, 4),
    )
    return dataclasses.replace(base, **changes)


def test_replay_and_decode_agree_in_every_cell(disk_pair, tmp_path):
    sizes = {"block_size": (2, 5, 8), "num_candidates": (1, 2, 4), "selector": (True, False)}
    knobs = {"conv": (True, False), "layers": ("all", "shift+1", "drop2"), "window": (0, 5)}
    one = {"block_size": (5,), "num_candidates": (4,)}
    for mode in ("replay", "decode"):
        brief = small(disk_pair, mode=mode, num_prompts=3, max_new_tokens=16)
        outcome = run_sweep(dataclasses.replace(brief, **sizes), tmp_path)
        assert (outcome.num_computed, outcome.failed) == (18, ())
        outcome = run_sweep(dataclasses.replace(brief, **one, **knobs), tmp_path)
        assert (outcome.num_computed, outcome.num_skipped, outcome.failed) == (11, 1, ())
    found = report(load_results(tmp_path))
    assert found["agreement"]["num_cells"] == found["agreement"]["num_equal"] == 29
    assert found["agreement"]["differences"] == []
    assert found["agreement"]["holds"]
    rows = load_results(tmp_path).rows
    decoded = {row["key"]: row for row in rows if row["mode"] == "decode"}
    assert len(decoded) == 29
    pairs = {}
    for row in rows:
        assert row.keys() >= KEYS
        assert row["num_prompts"] == len(row["per_prompt"]) == 3
        name = tuple(row[axis] for axis in ("block_size", "num_candidates", "selector", "conv", "layers", "window"))
        pairs.setdefault(name, []).append(row)
    same = ("argmax_acceptance_length", "best_path_acceptance_length", "zlab_acceptance_length", "output_hash",
            "interval", "survival", "recall_at_1", "recall_at_c", "recall_n")  # fmt: skip
    for replayed, decode in pairs.values():
        for name in same:
            assert replayed[name] == (decode[name] if isinstance(decode[name], str) else pytest.approx(decode[name]))
        assert replayed["step_ms"] > 0
        assert decode["tok_s"] > 0
        assert decode["per_prompt"][0]["decode_ms"] > 0
    assert len({row["mean_acceptance_length"] for row in decoded.values()}) >= 6, "the axes change nothing"


def test_a_second_run_computes_nothing_and_a_wider_one_what_is_new(disk_pair, tmp_path, monkeypatch):
    first = run_sweep(small(disk_pair), tmp_path)
    assert (first.num_computed, first.num_skipped) == (4, 0)
    lines = (tmp_path / ROWS).read_text()
    monkeypatch.setattr(runner, "Workbench", None)
    again = run_sweep(small(disk_pair), tmp_path)
    assert (again.num_computed, again.num_skipped) == (0, 4)
    assert (tmp_path / ROWS).read_text() == lines
    monkeypatch.undo()
    wider = run_sweep(small(disk_pair, block_size=(2, 4, 6)), tmp_path)
    assert (wider.num_computed, wider.num_skipped) == (2, 4)
    assert run_sweep(small(disk_pair, num_prompts=3), tmp_path).num_skipped == 0, "other prompts are other cells"
    assert [run["num_computed"] for run in load_results(tmp_path).runs] == [4, 0, 2, 4]


def test_an_interrupt_keeps_what_is_done(disk_pair, tmp_path):
    @contextmanager
    def stop_after_two(total):
        assert total == 4
        done = []

        def advance():
            done.append(1)
            if len(done) == 2:
                raise KeyboardInterrupt

        yield advance

    outcome = run_sweep(small(disk_pair, mode="decode"), tmp_path, watch=stop_after_two)
    assert outcome.interrupted
    assert outcome.num_computed == len(load_results(tmp_path).rows) == 2
    rest = run_sweep(small(disk_pair, mode="decode"), tmp_path)
    assert (rest.num_computed, rest.num_skipped, rest.interrupted) == (2, 2, False)
    keys = [json.loads(line)["key"] for line in (tmp_path / ROWS).read_text().splitlines()]
    assert len(keys) == len(set(keys)) == 4


@pytest.mark.slow
def test_a_killed_run_loses_no_row_and_computes_none_twice(disk_pair, tmp_path):
    command = [
        sys.executable, "-m", "dflash_lab", "sweep", "run", "--mode", "decode", "--target", disk_pair.target,
        "--drafter", disk_pair.drafter, "--dataset", disk_pair.prompts, "--num-prompts", "4", "--max-new-tokens", "40",
        "--block-size", "2,4,6", "--num-candidates", "1,2,3,4", "--out", tmp_path, "--json",
    ]  # fmt: skip
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    file = tmp_path / ROWS
    for _ in range(600):
        if file.exists() and file.read_text().count("\n") >= 3:
            break
        time.sleep(0.1)
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    before = file.read_text()[: file.read_text().rfind("\n") + 1]
    assert 3 <= before.count("\n") < 12
    done = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert done["num_skipped"] == before.count("\n")
    assert done["num_computed"] == 12 - done["num_skipped"]
    after = file.read_text()
    assert after.startswith(before)
    keys = [json.loads(line)["key"] for line in after.splitlines()]
    assert len(keys) == len(set(keys)) == 12


def test_a_cell_that_fails_is_recorded_and_the_others_go_on(disk_pair, tmp_path, monkeypatch):
    replay = row_module.replay

    def fail_at_six(drafter, texts, context, block_size, choices):
        if block_size == 6:
            raise NumericsError("scores are not finite:\nhere")
        return replay(drafter, texts, context, block_size, choices)

    monkeypatch.setattr(row_module, "replay", fail_at_six)
    outcome = run_sweep(small(disk_pair), tmp_path)
    assert (outcome.num_computed, len(outcome.failed)) == (2, 2)
    found = report(load_results(tmp_path))
    assert [row["error"] for row in found["failed"]] == ["scores are not finite: here"] * 2
    assert found["grids"][0]["status"] == [["done", "done"], ["failed", "failed"]]
    monkeypatch.undo()
    again = run_sweep(small(disk_pair), tmp_path)
    assert (again.num_computed, again.num_skipped) == (2, 2)
    assert report(load_results(tmp_path))["failed"] == []


def test_a_drafter_that_does_not_load_fails_alone(disk_pair, tmp_path):
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text((disk_pair.drafter / "config.json").read_text())
    (broken / "model.safetensors").write_bytes(b"nothing")
    sweep = small(disk_pair, drafter=(str(disk_pair.drafter), str(broken)), block_size=(4,), num_candidates=(4,))
    for mode in ("replay", "decode"):
        outcome = run_sweep(dataclasses.replace(sweep, mode=mode), tmp_path / mode)
        assert outcome.num_computed == 1
        (failed,) = outcome.failed
        assert "not a readable safetensors file" in failed["error"]
        assert failed["drafter"] == str(broken)


def test_a_pair_that_does_not_load_ends_the_sweep(disk_pair, tmp_path):
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text((disk_pair.drafter / "config.json").read_text())
    (broken / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match="not a readable safetensors file"):
        run_sweep(small(disk_pair, drafter=(str(broken),)), tmp_path / "s")
    assert load_results(tmp_path / "s").rows == ()


def test_another_drafter_under_the_same_name_is_another_cell(disk_pair, tmp_path):
    folder = tmp_path / "drafter"
    shutil.copytree(disk_pair.drafter, folder)
    sweep = small(disk_pair, drafter=(str(folder),), block_size=(6,), num_candidates=(4,))
    first = run_sweep(sweep, tmp_path / "s")
    checkpoint = load_checkpoint(folder, dtype=torch.float32, device="cpu")
    checkpoint.model.backbone.norm.weight.mul_(-1)
    raw = json.loads((folder / "config.json").read_text())
    save_checkpoint(checkpoint.model, raw, folder, checkpoint.model.backbone.norm.weight.dtype)
    second = run_sweep(sweep, tmp_path / "s")
    assert first.num_computed == second.num_computed == 1
    found = report(load_results(tmp_path / "s"))
    assert found["num_rows"] == 1
    assert "1 rows are of an older drafter" in found["warnings"][0]


def test_sampling_is_decoded(disk_pair, tmp_path):
    sweep = small(disk_pair, mode="decode", temperature=(0.0, 0.8), block_size=(4,), num_candidates=(4,))
    rows = {row["temperature"]: row for row in _rows(sweep, tmp_path)}
    assert rows[0.8]["output_hash"] != rows[0.0]["output_hash"]
    assert report(load_results(tmp_path))["contrasts"] == []


def _rows(sweep, folder):
    assert run_sweep(sweep, folder).num_computed
    return load_results(folder).rows


def test_blocks_above_the_trained_one_are_flagged(disk_pair, tmp_path):
    said = []
    run_sweep(small(disk_pair, block_size=(6, 9), num_candidates=(4,)), tmp_path, notify=said.append)
    rows = {row["block_size"]: row for row in load_results(tmp_path).rows}
    assert rows[6]["flags"] == []
    assert "above the 6 the drafter was trained with" in rows[9]["flags"][0]
    assert any("above the 6" in text for text in said)


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"num_prompts": 7}, DataError, "prompts holds 6 prompts, asked for 7"),
        ({"dataset": ("nowhere",)}, DataError, "no prompt set 'nowhere'"),
        ({"num_candidates": (129,)}, RequestError, "num_candidates must be 1 to 128"),
        ({"layers": ("shift+2",)}, RequestError, "would tap"),
        ({"drafter": ("/nowhere",)}, TargetError, "neither 'bundled', a folder, nor a hub id"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_written(disk_pair, tmp_path, changes, error, said):
    with pytest.raises(error, match=said):
        run_sweep(small(disk_pair, **changes), tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_texts_are_kept_and_read_again(disk_pair, tmp_path, monkeypatch):
    run_sweep(small(disk_pair), tmp_path)
    (kept,) = (tmp_path / "texts").iterdir()
    known = []
    read_text = texts.read_text

    def spy(target, drafter, prompt_ids, answer, *rest):
        known.append(len(answer))
        return read_text(target, drafter, prompt_ids, answer, *rest)

    monkeypatch.setattr(texts, "read_text", spy)
    run_sweep(small(disk_pair, block_size=(3,)), tmp_path)
    assert len(known) == 4
    assert min(known) > 0
    assert list((tmp_path / "texts").iterdir()) == [kept]


def test_memory_may_be_short(disk_pair, tmp_path, monkeypatch):
    wanted = [row["per_prompt"] for row in _rows(small(disk_pair), tmp_path / "a")]
    monkeypatch.setattr(work, "KEEP_BYTES", {"cpu": 0})
    monkeypatch.setattr(row_module, "GROUP", 2)
    assert [row["per_prompt"] for row in _rows(small(disk_pair), tmp_path / "b")] == wanted


def test_half_precision_runs_as_well(disk_pair, tmp_path):
    rows = _rows(small(disk_pair, dtype="bfloat16"), tmp_path)
    assert all(row["mean_acceptance_length"] >= 1 for row in rows)
    assert {row["dtype"] for row in rows} == {"bfloat16"}
    run_sweep(small(disk_pair, dtype="bfloat16", mode="decode"), tmp_path)
    assert report(load_results(tmp_path))["agreement"]["holds"], "rounding proves nothing in half precision"


def test_where_time_went_is_told(disk_pair, tmp_path):
    here = Here()
    outcome = run_sweep(small(disk_pair), tmp_path, executor=here)
    assert set(outcome.seconds) == {"load", "texts", "costs"}
    assert 0 < sum(outcome.seconds.values()) < outcome.wall_s
