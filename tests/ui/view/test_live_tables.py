"""The card's tables: one's own runs with what is published beside them, and an honest gap where that is not known."""

from __future__ import annotations

import dataclasses
import json

import pytest

from dflash_lab.core.serve.compare import tabulate
from dflash_lab.core.serve.published import published_tables, tables_of
from dflash_lab.core.serve.runfile import read_run
from dflash_lab.ui.view.live_tables import card, sorted_loads, speedup_text
from tests.ui.toyruns import gb300_runs

TARGET = "Qwen/Qwen3.8-Flash-Next-FP8"
DATASETS = ["GSM8K", "MATH-500", "HumanEval", "MBPP", "MT-Bench"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs on a fake GB300 with the card's settings."""
    return [read_run(path) for path in gb300_runs(tmp_path_factory.mktemp("runs"))]


def cells(table, row: str) -> dict[str, dict | None]:
    found = next(item for item in table["rows"] if item["name"] == row)
    return dict(zip(table["columns"], found["cells"], strict=True))


def test_a_card_without_runs_is_the_published_one():
    told = card(None, tables_of(TARGET), TARGET)
    json.dumps(told, allow_nan=False)
    acceptance, *throughput = told["tables"]
    assert [table["title"] for table in told["tables"]] == [
        "Acceptance length", "Throughput, concurrency 1", "Throughput, concurrency 8", "Throughput, concurrency 32",
    ]  # fmt: skip
    assert acceptance["columns"] == ["MTP", "DFlash 2"]
    assert [row["name"] for row in acceptance["rows"]] == DATASETS
    assert cells(acceptance, "MBPP")["DFlash 2"] == {"value": "", "detail": "", "published": "3.06"}
    assert throughput[0]["columns"] == ["Autoregressive", "MTP", "DFlash 2"]
    assert cells(throughput[2], "GSM8K")["DFlash 2"]["published"] == "2,907.3 (1.73×)"
    assert cells(throughput[2], "GSM8K")["Autoregressive"]["published"] == "1,680.9"
    assert (told["measured"], told["missing"]) == (None, [])


def test_runs_stand_beside_the_published_values(runs):
    comparison = tabulate(runs)
    told = card(comparison, comparison.published, comparison.target)
    assert told["measured"] == "1x NVIDIA GB300"
    acceptance, one, *_ = told["tables"]
    found = cells(acceptance, "GSM8K")["DFlash 2"]
    cell = next(cell for cell in comparison.cells if (cell.label, cell.load) == ("DFlash 2", "1"))
    assert found["value"] == f"{cell.acceptance.value:.2f}"
    assert found["detail"] == f"{cell.acceptance.low:.2f}..{cell.acceptance.high:.2f}"
    assert found["published"] == "3.26"
    assert cells(acceptance, "MATH-500")["DFlash 2"]["value"] == ""
    fast = cells(one, "GSM8K")["DFlash 2"]
    assert fast["value"] == f"{cell.report.throughput_tok_s:,.1f} ({cell.speedup.value:.2f}×)"
    assert fast["detail"].endswith("% of ◇")
    assert cells(one, "GSM8K")["Autoregressive"]["value"] != ""


def test_other_hardware_is_never_divided_by(runs):
    other = [
        dataclasses.replace(
            run,
            header=dataclasses.replace(
                run.header, server=dataclasses.replace(run.header.server, hardware="NVIDIA H200")
            ),
        )
        for run in runs
    ]
    comparison = tabulate(other)
    told = card(comparison, comparison.published, comparison.target)
    details = [cell["detail"] for table in told["tables"] for row in table["rows"] for cell in row["cells"] if cell]
    assert not any("%" in detail for detail in details)
    assert told["measured"] == "1x NVIDIA H200"


def test_one_run_alone_makes_tables(runs):
    comparison = tabulate(runs[:1])
    told = card(comparison, comparison.published, comparison.target)
    assert cells(told["tables"][1], "GSM8K")["Autoregressive"]["value"]


def test_settings_without_numbers_are_an_empty_state():
    told = card(None, tables_of("Qwen3.6-35B-A3B"), "Qwen/Qwen3.6-35B-A3B")
    assert told["tables"] == []
    assert [head["known"] for head in told["published"]] == [False]
    (said,) = told["missing"]
    assert "1x NVIDIA GB300" in said
    assert "None are shown rather than guessed ones." in said


def test_a_target_nobody_wrote_about_and_no_target_at_all():
    assert card(None, (), "mine")["missing"] == ["Nothing is published of mine that is known here."]
    told = card(None, (), None)
    assert (told["missing"], told["tables"]) == ([], [])
    assert len(told["others"]) == len(published_tables())
    assert all(other["source"] and other["hardware"] for other in told["others"])


def test_loads_are_in_the_order_of_their_numbers():
    assert sorted_loads({"8", "0.5/s", "32", "2/s", "1"}) == ["1", "8", "32", "0.5/s", "2/s"]


def test_a_speedup_needs_a_baseline():
    assert speedup_text(100.0, None) == "100.0"
    assert speedup_text(100.0, 50.0) == "100.0 (2.00×)"
    assert speedup_text(None, 50.0) == ""
