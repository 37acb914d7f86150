"""A prompt of a cell decoded once more: the same run that the row is of, found by its id, compared in words."""

from __future__ import annotations

import pytest

from dflash_lab.core.ablate.again import cell_request, compare, find_prompt, load_cell
from dflash_lab.core.ablate.results import load_results
from dflash_lab.core.ablate.runner import run_sweep
from dflash_lab.core.ablate.sweep import Sweep
from dflash_lab.core.data.prompts import Prompt
from dflash_lab.core.errors import DataError
from dflash_lab.core.generate import generate
from dflash_lab.core.trace.schema import Trace
from tests.core.ablate.toy_rows import make_row, make_run


def decode(row: dict, prompt: str, folder, runs) -> Trace:
    """The trace of a prompt of a row's cell."""
    generation = generate(load_cell(row), cell_request(row, find_prompt(row, prompt, folder), runs))
    for _ in generation:
        pass
    return generation.trace()


@pytest.mark.parametrize("mode", ["replay", "decode"])
def test_every_cell_is_decoded_as_in_the_sweep(disk_pair, tmp_path, mode):
    """With and without selector, greedily and at a temperature where the sweep decoded: equal step for step."""
    sweep = Sweep(
        block_size=(3, 5), num_candidates=(2,), selector=(True, False), dataset=(str(disk_pair.prompts),),
        num_prompts=3, max_new_tokens=24, target=str(disk_pair.target), drafter=(str(disk_pair.drafter),), mode=mode,
        temperature=(0.0, 0.8) if mode == "decode" else (0.0,), seed=7,
    )  # fmt: skip
    run_sweep(sweep, tmp_path)
    results = load_results(tmp_path)
    assert len(results.rows) == 4 * len(sweep.temperature)
    for row in results.rows:
        trace = decode(row, row["per_prompt"][0]["prompt"], tmp_path, results.runs)
        said = compare(row, row["per_prompt"][0]["prompt"], trace)
        assert said.endswith("exactly as in the sweep."), said
        assert trace.tensor("candidate_ids", 0) is not None


def test_another_run_is_told_with_both_numbers(disk_pair, tmp_path):
    sweep = Sweep(
        block_size=(5,), num_candidates=(2,), dataset=(str(disk_pair.prompts),), num_prompts=2, max_new_tokens=24,
        target=str(disk_pair.target), drafter=(str(disk_pair.drafter),),
    )  # fmt: skip
    run_sweep(sweep, tmp_path)
    (row,) = load_results(tmp_path).rows
    told = row["per_prompt"][1]
    trace = decode(row, told["prompt"], tmp_path, ())
    told["num_steps"] += 1  # as if the code had been another then
    said = compare(row, told["prompt"], trace)
    assert f"{len(trace)} steps, acceptance length " in said
    assert f"the sweep has {told['num_steps']} steps and {told['mean_acceptance_length']:.2f}: " in said
    assert "have changed since" in said
    said = compare({**row, "device": "cuda", "dtype": "bfloat16"}, told["prompt"], trace)
    assert "it ran on cuda bfloat16, this on cpu float32" in said


def test_a_prompt_file_is_found_beside_the_results_or_where_it_was(tmp_path):
    was, beside = tmp_path / "was", tmp_path / "beside"
    for folder in (was, beside):
        folder.mkdir()
        (folder / "p.txt").write_text(f"{folder.name} 0\n{folder.name} 1\n")
    row = make_row(8, dataset=str(was / "p.txt"))
    assert find_prompt(row, "p/1", beside).text == "beside 1"
    assert find_prompt(row, "p/1", tmp_path).text == "was 1"
    with pytest.raises(DataError, match="no prompt set"):
        find_prompt(row, "p/1", tmp_path, elsewhere=False)
    with pytest.raises(DataError, match="has no prompt 'p/2' any more"):
        find_prompt(row, "p/2", beside)


def test_a_named_set_comes_from_the_data_folder(tmp_path, monkeypatch):
    (tmp_path / "gsm8k.jsonl").write_text('{"question": "How many?"}\n')
    monkeypatch.setenv("DFLASH_LAB_DATA", str(tmp_path))
    assert find_prompt(make_row(8), "gsm8k/0", tmp_path).text.startswith("How many?")


def test_the_seed_is_that_of_the_run_that_had_the_temperature():
    prompt = Prompt("p/0", "hello", "", "p")
    runs = [make_run(seed=1, temperature=[0.7]), make_run(seed=2, temperature=[0.0])]
    assert cell_request(make_row(8, temperature=0.7), prompt, runs).seed == 1
    assert cell_request(make_row(8), prompt, runs).seed == 2
    assert cell_request(make_row(8), prompt).seed == 0
    assert cell_request(make_row(8, num_candidates=257), prompt).record == "steps"
