"""`dflash-lab train` on a toy target: every command, its document, and its refusals in one line."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "core" / "train"))
from toy_train import make_bench, make_corpus, make_recipe, make_tokenizer

from dflash_lab.core.train import recipe as recipe_module
from dflash_lab.core.train import run as run_module
from dflash_lab.core.train.corpus import Overlap, overlapping, user_turns


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """A folder with corpus and held-out text; the toy target whatever is asked for."""
    target = tmp_path / "target"
    bench = make_bench(target)
    bench.target.model.save_pretrained(target)
    make_tokenizer().save_pretrained(target)
    corpus, held_out = make_corpus(), make_corpus(8, seed=1)
    evaluation = Overlap(bench.text.decode(turn.tolist()) for turn in user_turns(held_out, bench.text))
    corpus.select(~overlapping(corpus, bench.text, evaluation)).save(tmp_path / "corpus.npz")
    held_out.save(tmp_path / "held-out.npz")
    monkeypatch.setattr(run_module, "open_bench", lambda name, **placed: bench)
    monkeypatch.setattr(recipe_module, "load_recipe", lambda name: make_recipe())
    monkeypatch.chdir(tmp_path)
    return tmp_path


OWN = ("--corpus", "corpus.npz", "--held-out", "held-out.npz", "--device", "cpu")


def document(finished) -> dict:
    assert finished.code == 0, finished.err
    return json.loads(finished.out.splitlines()[-1])


def test_a_run_then_its_evaluation(command, toy):
    made = document(command("train", "run", "--steps", 12, "--evaluate-every", 6, "--out", "run", *OWN, "--json"))
    assert made["step"] == 12
    assert made["held_out"]["mean_acceptance_length"] >= 1
    assert (toy / "run" / "model.safetensors").exists()
    assert len((toy / "run" / "training.jsonl").read_text().splitlines()) >= 12

    evaluated = document(
        command("train", "eval", "--drafter", "run", "--held-out", "held-out.npz", "--num-prompts", 2, "--json")
    )
    assert set(evaluated["by_dataset"]) == {"odd", "even"}
    assert evaluated["by_dataset"]["odd"]["num_prompts"] == 2
    assert evaluated["mean_acceptance_length"] >= 1
    assert evaluated["argmax_acceptance_length"] >= 1

    shown = command("train", "eval", "--drafter", "run", "--held-out", "held-out.npz", "--dataset", "odd")
    assert "recall@1" in shown.out
    assert "even" not in shown.out


def test_writing_text(command, toy):
    made = document(command("train", "corpus", "--out", "made", "--self-written", 4, *OWN, "--json"))
    assert made["texts"] >= 80
    assert (toy / "made" / "corpus-seed.npz").exists()


def test_the_export(command, toy):
    made = document(
        command("train", "export-config", "--target", toy / "target", "--data", "x.jsonl", "--out", "out", "--json")
    )
    assert [Path(file).name for file in made["files"]] == ["drafter-config.json", "specforge.yaml"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "--steps", 1, "--seconds", 1, *OWN), "either steps or seconds"),
        (("run", *OWN), "either steps or seconds"),
        (("run", "--steps", 1, "--corpus", "nowhere"), "no corpus in nowhere"),
        (("run", "--steps", 1, "--corpus", "held-out.npz", "--held-out", "held-out.npz"), "are evaluation prompts"),
        (("run", "--steps", 1, *OWN, "--batch-size", 0), "batch_size must be at least 1"),
        (("run", "--steps", 1, *OWN, "--batch-size", 500), "lower --batch-size"),
        (("eval", "--dataset", "gsm8k", "--held-out", "held-out.npz"), "no held-out text of 'gsm8k'"),
        (("corpus", "--out", "made", "--prompts", "mbpp", *OWN), "mbpp is an evaluation set"),
    ],
)
def test_refusals_are_one_line(command, toy, arguments, message):
    finished = command("train", *arguments)
    assert finished.code == 2
    errors = [line for line in finished.err.splitlines() if line.startswith("error:")]
    assert len(errors) == 1
    assert message in errors[0]


def test_a_target_without_a_chat_template(command, tmp_path):
    bench = make_bench()
    bench.target.model.save_pretrained(tmp_path / "target")
    make_tokenizer(template=None).save_pretrained(tmp_path / "target")
    finished = command("train", "run", "--target", tmp_path / "target", "--steps", 1, "--device", "cpu")
    assert finished.code == 2
    assert "has no chat template" in finished.err


def test_cuda_that_is_not_there(command):
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    finished = command("train", "run", "--steps", 1, "--device", "cuda")
    assert finished.code == 2
    assert "torch finds no CUDA device" in finished.err
