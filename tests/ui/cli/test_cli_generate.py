"""`generate`: lossless text, the promised JSON keys, traces, cancellation, wrong input."""

import io
import json
import signal
import sys

import click
import pytest

from dflash_lab.core import generate as core
from dflash_lab.core.trace import store
from dflash_lab.ui.cli import generate as cli

PROMISED = set(
    "prompt_ids output_ids text stop_reason num_steps produced_per_step mean_acceptance_length zlab_acceptance_length "
    "acceptance_rate survival decode_tok_s time_to_first_token_ms device dtype kernels loop forward target drafter "
    "trace warnings seed block_size num_candidates provenance".split()
)

pytestmark = pytest.mark.usefixtures("toy_pair")


def document(done) -> dict:
    assert done.code == 0, done.err
    return json.loads(done.out)


def test_the_document_has_every_promised_key(command):
    found = document(command("generate", "the duck", "--max-new-tokens", 40, "--json"))
    assert set(found) == PROMISED
    assert len(found["output_ids"]) == 40
    assert found["stop_reason"] == "length"
    assert 1 + sum(found["produced_per_step"]) == 40
    assert found["num_steps"] == len(found["produced_per_step"])
    assert found["mean_acceptance_length"] == pytest.approx(1 + sum(found["survival"]))
    assert found["zlab_acceptance_length"] == pytest.approx(40 / found["num_steps"])
    assert found["drafter"] == "toy drafter"
    assert (found["block_size"], found["num_candidates"]) == (4, 3)
    assert found["warnings"] == ["the toy pair knows no words"]
    assert found["provenance"]["argv"]


def test_the_text_is_the_targets_own(command):
    drafted = document(command("generate", "the duck", "--max-new-tokens", 60, "--json"))
    alone = document(command("generate", "the duck", "--max-new-tokens", 60, "--drafter", "none", "--json"))
    assert drafted["output_ids"] == alone["output_ids"]
    assert drafted["num_steps"] < alone["num_steps"] == 59
    for key in ("drafter", "mean_acceptance_length", "zlab_acceptance_length", "acceptance_rate", "survival"):
        assert alone[key] is None


def test_in_a_pipe_stdout_is_the_text_and_nothing_else(command):
    found = document(command("generate", "the duck", "--max-new-tokens", 80, "--json"))
    done = command("generate", "the duck", "--max-new-tokens", 80)
    assert done.out == found["text"] + "\n"
    assert "🦆" in done.out
    loading, warning, acceptance, speed, setting = done.err.splitlines()
    assert loading == "loading target bundled"
    assert warning == "warning: the toy pair knows no words"
    length, steps = found["mean_acceptance_length"], found["num_steps"]
    assert acceptance.startswith(f"acceptance length {length:.2f} over {steps} steps · accepted ")
    assert acceptance.endswith(f" proposed ({found['acceptance_rate']:.0%})")
    assert speed.startswith("80 tokens · ")
    assert setting == "target toy · drafter toy drafter, block 4 · lean forward, reference kernels, float32, cpu"


@pytest.mark.parametrize("length", [1, 2, 5])
def test_short_texts_end_well(command, length):
    done = command("generate", "the duck", "--max-new-tokens", length, "--json")
    found = document(done)
    assert len(found["output_ids"]) == length
    if length == 1:
        assert found["num_steps"] == 0
        assert found["decode_tok_s"] is None
        assert found["mean_acceptance_length"] is None
    assert command("generate", "the duck", "--max-new-tokens", length).out == found["text"] + "\n"


def test_a_trace_is_recorded_at_level_scores_unless_told_otherwise(command, tmp_path):
    path = tmp_path / "t.safetensors"
    found = document(command("generate", "the duck", "--max-new-tokens", 20, "--trace", path, "--json"))
    assert found["trace"] == str(path)
    trace = store.load(path)
    assert trace.header.level == "scores"
    assert trace.header.output_ids == tuple(found["output_ids"])
    assert trace.tensor("unary", 0) is not None
    command("generate", "the duck", "--max-new-tokens", 20, "--trace", path, "--record", "steps")
    assert store.load(path).header.level == "steps"


def test_tokens_are_told_apart_by_colour_on_a_terminal(command, monkeypatch):
    plain = command("generate", "the duck", "--max-new-tokens", 60).out
    monkeypatch.setattr("dflash_lab.ui.cli.output.sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    done = command("generate", "the duck", "--max-new-tokens", 60)
    assert click.unstyle(done.out) == plain
    for style in cli.STYLES.values():
        assert click.style("x", **style).partition("x")[0] in done.out
    assert "accepted" in click.unstyle(done.err)
    assert "\x1b" not in command("generate", "the duck", "--max-new-tokens", 60, "--json").out


def test_ctrl_c_keeps_what_was_finished(command, monkeypatch, tmp_path):
    steps = core.Generation.__iter__

    def interrupted(self):
        for step in steps(self):
            if step.record.index == 2:
                signal.raise_signal(signal.SIGINT)
            yield step

    monkeypatch.setattr(core.Generation, "__iter__", interrupted)
    path = tmp_path / "t.safetensors"
    done = command("generate", "the duck", "--max-new-tokens", 200, "--trace", path, "--json")
    assert done.code == 130
    found = json.loads(done.out)
    assert found["stop_reason"] == "cancelled"
    assert found["num_steps"] == 3
    trace = store.load(path)
    assert trace.header.status == "cancelled"
    assert len(trace.steps) == 3
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_reader_that_went_away_stops_the_decoding(command, monkeypatch):
    monkeypatch.setattr(cli.Output, "write", lambda self, text: setattr(self, "closed", True))
    assert command("generate", "the duck", "--max-new-tokens", 200).code == 130


@pytest.mark.parametrize("arguments", [["-"], ["--prompt-file", "-"]])
def test_the_prompt_may_come_from_stdin(command, monkeypatch, arguments):
    monkeypatch.setattr(sys, "stdin", io.StringIO("the duck"))
    found = document(command("generate", *arguments, "--max-new-tokens", 3, "--json"))
    assert (
        found["prompt_ids"] == document(command("generate", "the duck", "--max-new-tokens", 3, "--json"))["prompt_ids"]
    )


def test_the_prompt_may_come_from_a_file_and_go_without_a_template(command, tmp_path):
    path = tmp_path / "prompt.txt"
    path.write_text("the duck")
    found = document(command("generate", "--prompt-file", path, "--no-chat", "--max-new-tokens", 3, "--json"))
    assert len(found["prompt_ids"]) == len("the duck")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "expected one prompt: give PROMPT, or - to read stdin, or --prompt-file FILE"),
        (["a", "--prompt-file", "b"], "expected one prompt"),
        (["--prompt-file", "no/such/file"], "--prompt-file no/such/file cannot be read as UTF-8 text"),
        ([" "], "the prompt is empty"),
        (["a", "--trace", "no/such/folder/t.safetensors"], "does not exist; create it first"),
        (["a", "--trace", "."], "--trace . is a folder; name a file in it"),
        (["a", "--trace", "t.safetensors", "--record", "none"], "would be empty; leave one of them out"),
        (["a", "--record", "scores"], "--record scores needs --trace FILE"),
        (["a", "--block-size", "1"], "block_size must be at least 2 with a drafter, got 1; use --drafter none for 1"),
        (["a", "--num-candidates", "0"], "num_candidates must be 1 to 32"),
        (["a", "--temperature", "-1"], "temperature must be 0 (greedy) or a positive number"),
        (["a", "--max-new-tokens", "0"], "max_new_tokens must be at least 1"),
    ],
)
def test_wrong_input_is_one_line(command, arguments, complaint):
    done = command("generate", *arguments, "--json")
    assert done.code == 2
    assert done.out == ""
    last = done.err.splitlines()[-1]
    assert last.startswith("error: ")
    assert complaint in last
