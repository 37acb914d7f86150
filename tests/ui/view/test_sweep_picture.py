"""A sweep as one picture: well-formed, true to the report, readable without seeing it."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from dflash_lab.core.ablate.report import report
from dflash_lab.core.ablate.results import load_results
from dflash_lab.ui.view.sweep_picture import sweep_svg
from tests.core.ablate.toy_rows import make_row, results
from tests.ui.toysweep import HOSTILE, toy_rows, toy_run, write_results

SVG = "{http://www.w3.org/2000/svg}"
SCRIPT = Path(__file__).parents[3] / "docs/draw_sweep.py"


def texts(picture: str) -> list[str]:
    return [node.text or "" for node in ElementTree.fromstring(picture).iter(f"{SVG}text")]


def test_contents_stand_side_by_side_on_one_scale():
    rows = [make_row(size, 4, dataset=name, right=right) for name, right in (("a", 0.9), ("b", 0.5)) for size in (4, 8)]
    found = report(results(rows))
    picture = sweep_svg(found)
    said = texts(picture)
    assert {"a", "b", "fastest, 95 % over prompts"} <= set(said)
    assert [f"{row['mean_acceptance_length']:.2f}" in said for row in rows] == [True] * 4
    fills = [
        node.get("fill") for node in ElementTree.fromstring(picture).iter(f"{SVG}rect") if node.get("fill") != "none"
    ]
    # The same value has the same colour wherever it stands, so only one cell of all is the brightest.
    assert fills.count("rgb(253,234,69)") == fills.count("rgb(0,32,77)") == 1
    (title,) = ElementTree.fromstring(picture).iter(f"{SVG}title")
    assert "a: best" in title.text
    assert "at block 8 with 4 candidates" in title.text


def test_only_the_drafter_as_it_was_trained_is_drawn_and_gaps_are_gaps():
    found = report(results(toy_rows(), [toy_run()]))
    picture = sweep_svg(found, "ms_per_token")
    assert texts(picture)[0] == "ms per token by block size (rows) and candidates (columns)"
    assert "gsm8k · no selector" not in texts(picture)
    assert picture.count('class="n"') == 4, "two cells without a value, each a box and a line"
    assert picture.count('stroke-width="3"') == 1


@pytest.mark.parametrize("rows", [[], [make_row(8, dataset=HOSTILE)], [make_row(8, selector=False)]])
def test_any_results_make_a_picture(rows):
    picture = sweep_svg(report(results(rows)))
    ElementTree.fromstring(picture)
    assert "<img" not in picture


def test_the_script_draws_a_folder_or_a_report(tmp_path, monkeypatch):
    folder = write_results(tmp_path / "toy", toy_rows(), [toy_run()])
    document = tmp_path / "report.json"
    document.write_text(json.dumps(report(load_results(folder))))
    drawn = []
    for source in (folder, document):
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), str(source), str(tmp_path / "out.svg"), "--metric", "tok_s"])
        runpy.run_path(str(SCRIPT), run_name="__main__")
        drawn.append((tmp_path / "out.svg").read_text())
    assert drawn[0] == drawn[1]
    assert "tok/s by block size" in drawn[0]
