"""`sweep` on the command line: rows, resuming, files, refusals in one line."""

import itertools
import json

import pytest

from tests.core.ablate.toy_rows import make_row


@pytest.fixture
def arguments(disk_pair, tmp_path):
    """A small sweep into tmp_path/s."""
    return [
        "--target", disk_pair.target, "--drafter", disk_pair.drafter, "--dataset", disk_pair.prompts,
        "--num-prompts", 3, "--max-new-tokens", 16, "--out", tmp_path / "s",
    ]  # fmt: skip


def test_runs_goes_on_and_reports(command, arguments, tmp_path):
    axes = ["--block-size", "2,4,6", "--num-candidates", "1,4"]
    done = command("sweep", "run", *axes, *arguments, "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert (found["num_computed"], found["num_skipped"], found["num_failed"], found["interrupted"]) == (6, 0, 0, False)
    sizes = {(row["block_size"], row["num_candidates"]) for row in found["rows"]}
    assert sizes == set(itertools.product((2, 4, 6), (1, 4)))
    again = command("sweep", "run", *axes, *arguments)
    assert again.code == 0
    assert "| block size \\ candidates | 1 | 4 |" in again.out
    assert "0 cells computed, 6 were there, 0 failed" in again.out
    assert command("sweep", "run", *axes, "--mode", "decode", *arguments).code == 0
    page, table, lines = tmp_path / "r.html", tmp_path / "r.md", tmp_path / "r.csv"
    told = command("sweep", "report", tmp_path / "s", "--html", page, "--markdown", table, "--csv", lines)
    assert told.code == 0, told.err
    assert "| cells equal, prompt by prompt | 6 of 6 |" in told.out
    assert table.read_text() == told.out
    assert len(lines.read_text().splitlines()) == 13
    assert page.stat().st_size > 10**6
    document = json.loads(command("sweep", "report", tmp_path / "s", "--json").out)
    assert document["agreement"]["num_equal"] == 6
    assert document["grids"][0]["block_sizes"] == [2, 4, 6]


def test_a_file_says_what_options_may_override(command, arguments, tmp_path):
    file = tmp_path / "plan.toml"
    file.write_text('block_size = [2, 4]\nnum_candidates = 4\nselector = ["on", "off"]\nnum_prompts = 2\n')
    done = command("sweep", "run", file, "--block-size", "3", *arguments, "--json")
    rows = json.loads(done.out)["rows"]
    assert {(row["block_size"], row["selector"], row["num_prompts"]) for row in rows} == {(3, True, 3), (3, False, 3)}


@pytest.mark.parametrize(
    ("axes", "said"),
    [
        (["--block-size", "two"], "error: sweep run: block_size must be whole numbers with commas, got 'two'"),
        (["--num-candidates", "500"], "error: num_candidates must be 1 to 128 (the vocabulary), got 500"),
        (["--temperature", "0.5"], "error: a replay walks along the target's greedy text, and temperature 0.5 changes"),
        (["--num-prompts", "99"], "prompts holds 6 prompts, asked for 99; ask for 1 to 6"),
        (["--mode", "guess"], "error: Invalid value for '--mode'"),
    ],
)
def test_wrong_input_is_one_line(command, arguments, axes, said):
    done = command("sweep", "run", *arguments, *axes)
    assert done.code == 2
    assert said in done.err
    assert len(done.err.strip().splitlines()) == 1 + done.err.count("warning:")


def test_a_failed_cell_is_told_by_the_exit_code(command, arguments, monkeypatch):
    from dflash_lab.core.ablate import rows
    from dflash_lab.core.errors import NumericsError

    def fail(*given):
        raise NumericsError("scores are not finite")

    monkeypatch.setattr(rows, "replay", fail)
    done = command("sweep", "run", "--block-size", "4", *arguments)
    assert done.code == 1
    assert "warning: block 4, 4 candidates" in done.err
    assert "scores are not finite" in done.err


def test_a_report_of_nothing_is_refused(command, tmp_path):
    done = command("sweep", "report", tmp_path)
    assert done.code == 2
    assert done.err.startswith(f"error: no results.jsonl in {tmp_path}")
    done = command("sweep", "report", tmp_path, "--html", tmp_path / "no" / "r.html")
    assert "does not exist; create it first" in done.err


def test_modes_that_disagree_exit_with_1(command, tmp_path):
    rows = [make_row(8), make_row(8, mode="decode", seed=9)]
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = command("sweep", "report", tmp_path)
    assert done.code == 1
    assert "| of them without a near tie | 6 |" in done.out
    with open(tmp_path / "results.jsonl", "a") as sink:
        sink.write('{"half')
    assert "warning: the last row of" in command("sweep", "report", tmp_path).err


def test_ray_that_is_missing_is_named(command, arguments, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    done = command("sweep", "run", "--executor", "ray", *arguments)
    assert done.code == 2
    assert "pip install 'dflash-lab[ray]'" in done.err
