"""A sweep's grid as page and notebook get it, and as a table without script."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from dflash_lab.core.ablate.report import report
from dflash_lab.ui.view.sweep import colour, shown
from dflash_lab.ui.view.sweep_grid import cell_wire, grid_html, grid_wire, ink, slice_names, sweep_wire
from tests.core.ablate.toy_rows import make_row, results
from tests.ui.toysweep import HOSTILE, toy_rows, toy_run


@pytest.fixture
def document():
    return report(results(toy_rows(), [toy_run()]))


def luminance(text: str) -> float:
    """Relative luminance of `#rrggbb` or `rgb(r,g,b)`, as WCAG has it."""
    parts = re.findall(r"\d+", text) if text.startswith("rgb") else [int(text[i : i + 2], 16) for i in (1, 3, 5)]
    channels = np.array([int(part) / 255 for part in parts])
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return float(linear @ (0.2126, 0.7152, 0.0722))


def test_ink_reads_on_every_colour_of_the_scale():
    for share in np.linspace(0, 1, 201):
        light, dark = sorted((luminance(colour(share)), luminance(ink(share))), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, share


def test_cells_are_told_in_each_metric(document):
    wire = grid_wire(document["grids"][0])
    assert [metric["id"] for metric in wire["metrics"]] == [
        "mean_acceptance_length",
        "tok_s",
        "ms_per_token",
        "draft_ms",
    ]
    assert wire["about"] == "replayed along the target's texts, n = 6 prompts of up to 256 tokens, cpu float32"
    cells = {(cell["block_size"], cell["num_candidates"]): cell for line in wire["cells"] for cell in line}
    assert {cell["status"] for cell in cells.values()} == {"done", "failed", "missing"}
    assert cells[16, 4]["looks"]["tok_s"] is None
    row = next(row for row in document["rows"] if (row["block_size"], row["num_candidates"]) == (8, 4))
    assert cells[8, 4]["looks"]["mean_acceptance_length"]["text"] == f"{row['mean_acceptance_length']:.2f}"
    assert cells[8, 4]["interval"] == "{:.2f}–{:.2f}".format(*row["interval"])
    for metric, pick in (("tok_s", max), ("ms_per_token", min)):
        (best,) = [cell for cell in cells.values() if cell["looks"][metric] and cell["looks"][metric]["best"]]
        values = [row[metric] for row in document["rows"] if row["selector"]]
        assert best["looks"][metric]["text"] == shown(pick(values))
        # The best is bright, whether large or small is better.
        assert best["looks"][metric]["fill"] == colour(1.0)


@pytest.mark.parametrize(("interval", "text"), [((4.02, 5.13), "4.0–5.1"), ((4.02, 4.13), "4.02–4.13"), (None, "")])
def test_an_interval_has_as_many_digits_as_tell_its_ends_apart(interval, text):
    (grid,) = report(results([make_row(8, interval=interval)]))["grids"]
    assert grid_wire(grid)["cells"][0][0]["interval"] == text


def test_what_was_not_timed_is_not_offered():
    times = dict.fromkeys(("draft_ms", "select_ms", "verify_ms", "commit_ms", "step_ms", "tok_s", "ms_per_token"))
    rows = [make_row(size, **times) for size in (4, 8)]
    found = report(results(rows))
    assert [metric["id"] for metric in grid_wire(found["grids"][0])["metrics"]] == ["mean_acceptance_length"]
    assert all("speed" not in name for name, _, _ in cell_wire(rows[0])["facts"])


def test_a_page_gets_no_heat_map_of_plotlys_and_short_titles(document):
    wire = sweep_wire(document, 0)
    json.dumps(wire, allow_nan=False)
    assert all(figure["data"][0]["type"] != "heatmap" for figure in wire["figures"])
    assert "Acceptance length" in [figure["title"] for figure in wire["figures"]]
    assert not [figure["title"] for figure in wire["figures"] if "gsm8k" in figure["title"]]
    assert {table["kind"] for table in wire["tables"]} >= {"recommended", "contrasts", "failed", "costs"}


def test_slices_are_named_by_what_tells_them_apart():
    rows = [make_row(8), make_row(8, selector=False), make_row(8, mode="decode"), make_row(8, dataset="mbpp")]
    names = slice_names(report(results(rows)))
    assert names == ["gsm8k · replay", "gsm8k · no selector · replay", "gsm8k · decode", "mbpp · replay"]
    assert slice_names(report(results(rows[:1]))) == ["gsm8k"]


def test_a_cell_in_numbers():
    row = make_row(8, categories=("math", "code"))
    cell = cell_wire(row)
    facts = {name: value for name, value, _ in cell["facts"]}
    low, high = row["interval"]
    assert facts["acceptance length"] == f"{row['mean_acceptance_length']:.2f} ({low:.2f} to {high:.2f})"
    assert facts["steps"] == f"{row['num_steps']:,} for {row['num_output_tokens']:,} tokens"
    assert len(cell["prompts"]) == 6
    assert [prompt["length"] for prompt in cell["prompts"]] == sorted(
        (p["length"] for p in cell["prompts"]), reverse=True
    )
    distance = {
        p["prompt"]: abs(p["mean_acceptance_length"] - row["mean_acceptance_length"]) for p in row["per_prompt"]
    }
    assert cell["typical"] == min(distance, key=distance.get)


def test_a_cell_whose_texts_have_one_token_has_nothing_to_open():
    row = make_row(8)
    prompts = [{**prompt, "num_steps": 0, "mean_acceptance_length": None} for prompt in row["per_prompt"]]
    nothing = dict.fromkeys(
        ("mean_acceptance_length", "interval", "best_path_acceptance_length", "acceptance_rate", "tok_s")
    )
    cell = cell_wire({**row, **nothing, "num_steps": 0, "per_prompt": prompts})
    assert cell["typical"] is None
    assert cell["facts"][0][1] == "–"


def test_without_a_script_the_grid_is_a_table(document):
    page = grid_html(document["grids"][0])
    assert page.count("<tr>") == 5
    assert page.count("★") == 2, "the best, and the legend"
    assert page.count(">not run<") == page.count(">failed<") == 1
    hostile = grid_html(report(results([make_row(8, dataset=HOSTILE)]))["grids"][0])
    assert "<img" not in hostile
