"""`bench` on the toy pair: the promised keys, a file to keep, and no number without equal text."""

import dataclasses
import json
import sys

import pytest

from dflash_lab.core import bench
from dflash_lab.core.decode.loop import Decoding
from dflash_lab.core.types import GenerateRequest, SamplingParams


@pytest.fixture(autouse=True)
def prompts(toy_pair, tmp_path, monkeypatch):
    """Three prompts, and a toy that takes no memory."""
    path = tmp_path / "prompts.txt"
    path.write_text("the duck\na quick brown fox\nbread\n")
    monkeypatch.setattr("dflash_lab.ui.cli.bench.WARMUP", "warm")
    monkeypatch.setattr(bench, "measure_memory", lambda pair, before_bytes: bench.Memory(1000, 1200))
    return path


def test_measures_the_arms_and_keeps_a_file(command, prompts, tmp_path):
    kept = tmp_path / "bench.json"
    arguments = ["--dataset", prompts, "--num-prompts", 3, "--max-new-tokens", 30]
    done = command("bench", *arguments, "--out", kept, "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert json.loads(kept.read_text()) == found
    assert found["exact"] is True
    assert found["differences"] == []
    assert set(found["decode_tok_s"]) == {"autoregressive", "drafter", "drafter_recording"}
    for speed in found["decode_tok_s"].values():
        assert speed["q1"] <= speed["median"] <= speed["q3"]
        assert len(speed["per_prompt"]) == 3
    assert found["speedup_vs_autoregressive"] > 0
    assert found["ratio_vs_zlab"] is None
    assert found["mean_commit_length"]["autoregressive"] == 1
    assert found["mean_commit_length"]["drafter"] > 1
    assert found["memory"]["peak_over_weights"] == 1.2
    assert found["prompt_ids"][0].startswith("prompts/")
    assert {"dtype", "device", "kernels", "block_size", "provenance"} < set(found)
    text = command("bench", *arguments).out
    assert text.startswith("the same text in all arms, 3 prompts\nautoregressive ")
    assert "1.20 times" in text


def test_against_zlab_adds_its_arm(command, prompts, toy_pair, monkeypatch):
    def zlab_arm(zlab, pair, checkpoint, block_size, max_new_tokens):
        assert (str(checkpoint), block_size, max_new_tokens) == ("somewhere", 3, 30)
        ours = bench.pair_arm(dataclasses.replace(toy_pair, drafter=None), request)
        return lambda prompt: dataclasses.replace(ours(prompt), decode_s=1e9)

    request = GenerateRequest(prompt="", sampling=SamplingParams(max_new_tokens=30))
    monkeypatch.setattr(bench, "import_zlab", object)
    monkeypatch.setattr(bench, "zlab_arm", zlab_arm)
    arguments = ["--against", "zlab", "--drafter", "somewhere", "--block-size", 3]
    done = command("bench", *arguments, "--dataset", prompts, "--num-prompts", 2, "--max-new-tokens", 30, "--json")
    found = json.loads(done.out)
    assert "zlab" in found["decode_tok_s"]
    assert found["ratio_vs_zlab"] > 1


def test_an_interrupt_reports_the_prompts_that_were_finished(command, prompts, monkeypatch):
    arm = bench.pair_arm

    def interrupted(pair, request):
        decode = arm(pair, request)
        asked = []

        def run(prompt):
            asked.append(prompt)
            if request.record == "scores" and len(asked) == 4:
                raise KeyboardInterrupt
            return decode(prompt)

        return run

    monkeypatch.setattr(bench, "pair_arm", interrupted)
    done = command("bench", "--dataset", prompts, "--num-prompts", 3, "--max-new-tokens", 30, "--json")
    assert done.code == 130
    found = json.loads(done.out)
    assert found["num_prompts"] == len(found["prompt_ids"]) == len(found["decode_tok_s"]["drafter"]["per_prompt"]) == 2


def test_no_number_without_equal_text(command, prompts, monkeypatch):
    commit = Decoding._commit

    def faulty(self, tokens):
        return commit(self, [7] if self.drafter and len(self.output_ids) >= 5 else tokens)

    monkeypatch.setattr(Decoding, "_commit", faulty)
    arguments = ["--dataset", prompts, "--num-prompts", 1, "--max-new-tokens", 30]
    done = command("bench", *arguments, "--json")
    found = json.loads(done.out)
    assert done.code == 1
    assert found["exact"] is False
    for key in ("decode_tok_s", "mean_commit_length", "speedup_vs_autoregressive", "ratio_vs_zlab"):
        assert found[key] is None
    assert found["differences"][0]["arm"] == "drafter"
    assert found["differences"][0]["margin"] > 1
    text = command("bench", *arguments).out
    assert "tok/s" not in text
    assert text.rstrip().endswith("the texts differ by more than rounding: no speed is given")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--drafter", "none"], "bench measures a drafter"),
        (["--num-prompts", "4"], "prompts holds 3 prompts, asked for 4"),
        (["--num-prompts", "0"], "Invalid value for '--num-prompts'"),
        (["--against", "zlab"], "pip install --no-deps dflash==0.1.0"),
        (["--out", "no/such/folder/bench.json"], "does not exist; create it first"),
        (["--dataset", "gsm9k"], "no prompt set 'gsm9k'"),
    ],
)
def test_wrong_input_is_one_line(command, prompts, monkeypatch, arguments, complaint):
    monkeypatch.setitem(sys.modules, "dflash", None)
    done = command("bench", "--dataset", prompts, "--num-prompts", 3, *arguments)
    assert done.code == 2
    assert done.out == ""
    assert complaint in done.err.splitlines()[-1]
