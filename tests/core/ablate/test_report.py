"""What rows come to: the analytic optimum, paired differences, missing cells, and whether two modes agree."""

import csv
import io
import itertools
import json

import numpy as np
import pytest

from dflash_lab.core.ablate.report import report
from dflash_lab.core.ablate.tables import BRIEF, markdown, to_csv
from tests.core.ablate.toy_rows import RIGHT, failed, make_row, make_run, results

SIZES = (2, 4, 8, 12, 16)


def expected_length(block_size: int) -> float:
    """1 + sum of RIGHT^i over the positions."""
    return sum(RIGHT**i for i in range(block_size))


def test_speed_peaks_at_the_analytic_block_size_and_acceptance_does_not():
    rows = [make_row(size, seed=size) for size in SIZES]
    found = report(results(rows))
    (grid,) = found["grids"]
    lengths = [line[0] for line in grid["mean_acceptance_length"]]
    assert lengths == sorted(lengths)
    assert lengths == pytest.approx([expected_length(size) for size in SIZES], rel=0.05)
    fastest = max(SIZES, key=lambda size: expected_length(size) / (10 + size))
    assert SIZES[grid["best"]["tok_s"][0]] == fastest == 8
    assert SIZES[grid["best"]["mean_acceptance_length"][0]] == 16
    assert SIZES[grid["best"]["ms_per_token"][0]] == fastest
    (choice,) = found["recommended"]
    assert choice["block_size"] == fastest
    assert choice["interval"][0] < choice["tok_s"] < choice["interval"][1]
    assert choice["tok_s"] == pytest.approx(1e3 * expected_length(fastest) / (10 + fastest), rel=0.05)
    assert 2 not in choice["close"]
    assert 0.5 < choice["share"] <= 1


def test_each_category_has_a_choice_of_its_own():
    rows = []
    for size in (4, 12):
        easy = make_row(size, right=0.95, prompts=4, categories=["code"], seed=size)
        hard = make_row(size, right=0.3, prompts=4, categories=["chat"], seed=size)
        for prompt in hard["per_prompt"]:
            prompt["prompt"] = prompt["prompt"].replace("p/", "q/")
        rows.append({**easy, "per_prompt": easy["per_prompt"] + hard["per_prompt"], "num_prompts": 8})
    found = report(results(rows))
    choices = {item["category"]: item["block_size"] for item in found["recommended"]}
    assert choices["code"] == 12
    assert choices["chat"] == 4
    assert set(choices) == {None, "code", "chat"}
    by_category = {item["category"]: item["mean_acceptance_length"] for item in found["categories"]}
    assert by_category["code"] > 3 * by_category["chat"] / 2


def test_contrasts_are_paired_and_against_what_was_trained():
    base = make_row(8, seed=1)
    off = make_row(8, seed=1, right=0.7, selector=False)
    bare = make_row(8, seed=1, right=0.75, conv=False, output_hash="other")
    warm = make_row(8, seed=1, temperature=1.0)
    found = {item["axis"]: item for item in report(results([off, base, bare, warm]))["contrasts"]}
    assert set(found) == {"selector", "conv"}
    lift = found["selector"]
    assert (lift["value"], lift["baseline"], lift["n"]) == (True, False, 6)
    assert lift["difference"] == pytest.approx(base["mean_acceptance_length"] - off["mean_acceptance_length"])
    assert lift["interval"][0] < lift["difference"] < lift["interval"][1]
    assert lift["interval"][0] > 0
    assert (found["conv"]["value"], found["conv"]["difference"] < 0) == (False, True)
    assert lift["same_text"]
    assert not found["conv"]["same_text"]


def test_an_interval_is_the_spread_of_drawn_prompts():
    row = make_row(8, prompts=5)
    totals = np.array([(p["num_accepted"], p["num_steps"]) for p in row["per_prompt"]], dtype=float)
    every = [1 + (s := totals[list(drawn)].sum(0))[0] / s[1] for drawn in itertools.product(range(5), repeat=5)]
    assert row["interval"] == pytest.approx(np.percentile(every, (2.5, 97.5)), abs=0.02)
    alone = make_row(8, prompts=1)
    assert alone["interval"] is None
    (choice,) = report(results([alone, make_row(4, prompts=1)]))["recommended"]
    assert choice["interval"] is choice["close"] is None


def test_missing_and_failed_cells_have_their_place():
    rows = [make_row(2), make_row(8), failed(4), make_row(8, 1)]
    found = report(results(rows, [make_run()]))
    (grid,) = found["grids"]
    assert grid["block_sizes"] == [2, 4, 8, 16]
    assert grid["candidate_counts"] == [1, 4]
    assert grid["status"] == [["missing", "done"], ["missing", "failed"], ["done", "done"], ["missing"] * 2]
    assert grid["mean_acceptance_length"][1] == [None, None]
    assert grid["n"][0] == [None, 6]
    text = markdown(found)
    assert "| 4 | missing | failed |" in text
    assert "out of <b>memory</b> \\| here" in text


def test_one_cell_is_a_whole_report():
    found = report(results([make_row(8)]))
    assert found["grids"][0]["best"]["tok_s"] == [0, 0]
    assert found["recommended"] == []
    assert found["contrasts"] == []
    assert found["agreement"] is None
    assert "acceptance length" in markdown(found)
    json.dumps(found, allow_nan=False)


def test_nothing_but_failures_is_told():
    found = report(results([failed(4)]))
    assert found["grids"] == []
    assert "Cells that failed" in markdown(found)


def test_a_row_of_an_older_drafter_is_left_out():
    old = {**make_row(8, right=0.1), "key": "old"}
    found = report(results([old, make_row(8)]))
    assert found["num_rows"] == 1
    assert found["grids"][0]["mean_acceptance_length"][0][0] > 3
    assert found["warnings"] == ["1 rows are of an older drafter, target or prompts: left out"]


def test_modes_that_agree_and_modes_that_do_not():
    replayed, decoded = make_row(8), make_row(8, mode="decode")
    runs = [make_run(), make_run(mode="decode") | {"wall_s": 200.0}]
    found = report(results([replayed, decoded], runs))["agreement"]
    assert (found["num_cells"], found["num_equal"], found["holds"]) == (1, 1, True)
    assert found["speedup"] == 25
    other = make_row(8, mode="decode", seed=9)
    found = report(results([replayed, other]))["agreement"]
    assert (found["num_equal"], len(found["differences"]), found["holds"]) == (0, 6, False)
    close = {**replayed, "per_prompt": [{**prompt, "num_near_ties": 1} for prompt in replayed["per_prompt"]]}
    close["near_ties"] = [{"prompt": "p/0", "who": "drafter", "index": 3, "margin": 1e-5}]
    found = report(results([close, other]))["agreement"]
    assert found["holds"]
    assert found["differences"][0]["near_ties"] == close["near_ties"]
    half = [{**row, "dtype": "bfloat16"} for row in (replayed, other)]
    found = report(results(half))["agreement"]
    assert found["holds"]
    assert found["differences"][0]["explained"] is None


def test_tables_as_text():
    rows = [make_row(size, count) for size in (4, 8) for count in (1, 4)]
    found = report(results(rows, [make_run()]))
    lines = list(csv.DictReader(io.StringIO(to_csv(found))))
    sizes = [(line["block_size"], line["num_candidates"]) for line in lines]
    assert sizes == [("4", "1"), ("4", "4"), ("8", "1"), ("8", "4")]
    assert float(lines[3]["mean_acceptance_length"]) == rows[3]["mean_acceptance_length"]
    assert "per_prompt" not in lines[0]
    whole, brief = markdown(found), markdown(found, BRIEF)
    assert "What a step costs" in whole
    assert "What a step costs" not in brief
    assert "Recommended block size" in brief
    for line in whole.splitlines():
        assert line.count("|") == 0 or line.startswith("| ")


def test_recall_and_lengths_are_ordered():
    rows = [make_row(8, count, seed=3) for count in (1, 2, 4)]
    (curve,) = report(results(rows))["curves"]
    (recall,), (lengths,) = curve["recall"], curve["lengths"]
    assert recall["candidate_counts"] == [1, 2, 4]
    assert recall["recall"] == sorted(recall["recall"])
    assert lengths["best_path_acceptance_length"] == sorted(lengths["best_path_acceptance_length"])
    assert lengths["argmax_acceptance_length"][0] == pytest.approx(lengths["mean_acceptance_length"][0])
    assert len(curve["positions"][0]["survival"]) == 7
