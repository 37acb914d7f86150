"""The loop learns, resumes to the bit, stops on numbers that are not finite, and says what to lower."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from toy_train import make_bench, make_corpus, make_recipe

from dflash_lab.core.errors import BackendError, CheckpointError, DataError, NumericsError, RequestError
from dflash_lab.core.model.checkpoint import load_checkpoint
from dflash_lab.core.train.loop import LOG, Budget, Trainer
from dflash_lab.core.train.recipe import draft_config
from dflash_lab.core.train.run import train
from dflash_lab.core.train.state import STATE


def make_trainer(folder: Path, **training) -> Trainer:
    bench, recipe = make_bench(), make_recipe(**training)
    config = draft_config(recipe.drafter, bench.config)
    teacher = bench.teacher_of(config.target_layer_ids)
    return Trainer(recipe, config, teacher, make_corpus(), folder, dtype=torch.float32)


def log_of(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / LOG).read_text().splitlines()]


def test_a_run_lowers_the_loss_and_leaves_a_checkpoint_that_loads(tmp_path):
    bench = make_bench()
    held_out = make_corpus(8, seed=1)
    budget = Budget(steps=40, log_every=10, evaluate_every=20)
    last = train(make_recipe(), bench, make_corpus(), held_out, budget, tmp_path, notify=lambda text: None)
    lines = [line for line in log_of(tmp_path) if "loss" in line]
    assert lines[-1]["loss"] < 0.9 * lines[0]["loss"]
    assert lines[-1]["argmax_acceptance_length"] > lines[0]["argmax_acceptance_length"]
    assert last["held_out"]["mean_acceptance_length"] > 1.1
    assert [line["step"] for line in log_of(tmp_path) if "held_out" in line] == [20, 40]
    checkpoint = load_checkpoint(tmp_path, dtype=torch.float32, device="cpu")
    assert checkpoint.config.version == "dflash2"
    assert not checkpoint.warnings
    # Engines that load every safetensors file of a folder find the weights alone.
    assert [path.name for path in tmp_path.glob("*.safetensors")] == ["model.safetensors"]
    assert (tmp_path / STATE).exists()


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_killed_and_resumed_gives_the_same_weights(tmp_path, monkeypatch, optimizer):
    budget = Budget(steps=24, save_every=8, log_every=8)
    whole = make_trainer(tmp_path / "whole", optimizer=optimizer)
    whole.run(budget)

    killed = make_trainer(tmp_path / "killed", optimizer=optimizer)
    step, made = killed._step, []

    def stop_in_the_middle(progress):
        if len(made) == 19:
            raise KeyboardInterrupt
        made.append(progress)
        return step(progress)

    monkeypatch.setattr(killed, "_step", stop_in_the_middle)
    with pytest.raises(KeyboardInterrupt):
        killed.run(budget)
    resumed = make_trainer(tmp_path / "killed", optimizer=optimizer)
    assert resumed.state.step == 16
    resumed.run(budget)
    assert all(torch.equal(a, b) for a, b in zip(whole.state.masters, resumed.state.masters, strict=True))
    steps = [line["step"] for line in log_of(tmp_path / "killed")]
    assert steps == sorted(set(steps))


def test_a_finished_run_is_not_trained_again(tmp_path):
    budget = Budget(steps=10, log_every=5)
    first = make_trainer(tmp_path).run(budget)
    assert make_trainer(tmp_path).run(budget) == first


def test_another_recipe_does_not_go_on_with_the_run(tmp_path):
    make_trainer(tmp_path).run(Budget(steps=3))
    with pytest.raises(CheckpointError, match="other values of recipe"):
        make_trainer(tmp_path, learning_rate=1e-3)


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_good_state(tmp_path, monkeypatch):
    trainer = make_trainer(tmp_path)
    update, seen = trainer.state.update, []

    def poison(rate, reduce):
        seen.append(rate)
        if len(seen) == 11:
            trainer.state.masters[0].fill_(float("nan"))
        return update(rate, reduce)

    monkeypatch.setattr(trainer.state, "update", poison)
    with pytest.raises(NumericsError, match="not finite near step 16.*lower --learning-rate"):
        trainer.run(Budget(steps=40, log_every=8, save_every=4))
    kept = make_trainer(tmp_path)
    assert kept.state.step == 8
    assert all(master.isfinite().all() for master in kept.state.masters)


def test_out_of_memory_says_what_to_lower(tmp_path, monkeypatch):
    trainer = make_trainer(tmp_path)

    def exhaust(ids):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(trainer._teacher, "read", exhaust)
    with pytest.raises(BackendError, match="8 texts x 4 anchors: lower --batch-size"):
        trainer.run(Budget(steps=1))


def test_a_corpus_smaller_than_a_step(tmp_path):
    with pytest.raises(DataError, match="has 96 texts, a step needs 97: lower --batch-size"):
        make_trainer(tmp_path, batch_size=97).run(Budget(steps=1))


def test_a_damaged_state_is_named(tmp_path):
    (tmp_path / STATE).write_bytes(b"not a state")
    with pytest.raises(CheckpointError, match="not a readable training state"):
        make_trainer(tmp_path)


@pytest.mark.parametrize("given", [{}, {"steps": 1, "seconds": 1.0}, {"steps": 0}, {"seconds": -1.0}])
def test_a_budget_is_one_of_steps_and_seconds(given):
    with pytest.raises(RequestError, match="either steps or seconds"):
        Budget(**given)


def test_a_budget_in_seconds_is_kept(tmp_path):
    trainer = make_trainer(tmp_path)
    trainer.run(Budget(seconds=0.2))
    assert 0.2 <= trainer.state.elapsed_s < 2


@pytest.mark.slow
def test_two_processes_agree_on_weights_and_on_when_to_stop(tmp_path):
    program = (
        "import sys, torch; from pathlib import Path; from torch import distributed as dist\n"
        "from test_train_loop import make_trainer; from dflash_lab.core.train.loop import Budget\n"
        "from dflash_lab.core.train.run import processes\n"
        "with processes('cpu') as (device, first):\n"
        "    trainer = make_trainer(Path(sys.argv[1])); trainer.run(Budget(seconds=0.5))\n"
        "    print(trainer.state.step, sum(m.double().sum().item() for m in trainer.state.masters), flush=True)\n"
    )
    (tmp_path / "program.py").write_text(program)
    here = Path(__file__)
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", tmp_path / "program.py", tmp_path],
        capture_output=True,
        text=True,
        timeout=240,
        env={"PYTHONPATH": f"{here.parents[3]}:{here.parent}", "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
    )
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    assert done.returncode == 0, done.stderr
    assert len(lines) == 2
    assert lines[0] == lines[1]
