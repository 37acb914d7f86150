"""A sweep's grid in JupyterLab: cells by mouse and key, traits both ways, keys kept from the notebook."""

from __future__ import annotations

import pytest

from tests.ui.toysweep import toy_rows, toy_run, write_results
from tests.ui.widgets.test_jupyterlab import PATIENCE_MS, barriers, run_cell, said

pytestmark = [pytest.mark.browser, pytest.mark.slow]
expect = pytest.importorskip("playwright.sync_api").expect


def test_the_grid_goes_both_ways(lab, page, tmp_path):
    folder = write_results(tmp_path / "toy", toy_rows(), [toy_run()])
    source = f"import dflash_lab as dl\ngrid = dl.SweepGrid({str(folder)!r})\ngrid"
    lab.open(page, "sweep.ipynb", source)
    best = page.locator(".dfl-heat-best")
    expect(best).to_have_attribute("aria-selected", "true", timeout=PATIENCE_MS)
    expect(page.locator(".dfl-sweep-cell h3")).to_contain_text("block 8")
    cells = page.locator(".jp-Notebook .jp-Cell")
    count = cells.count()
    best.focus()
    page.keyboard.press("ArrowUp")
    page.keyboard.press("b")
    page.keyboard.press("d")
    page.keyboard.press("d")
    assert cells.count() == count
    expect(page.locator(".dfl-sweep-cell h3")).to_contain_text("block 4")
    run_cell(page, "print('at', grid.selected['block_size'], grid.row['block_size'])")
    expect(said(page)).to_have_text("at 4 4\n")
    run_cell(page, "grid.metric = 'tok_s'; grid.select(2, 1)")
    expect(page.locator(".dfl-sweep-cell h3")).to_have_text("block 2, 1 candidates")
    expect(page.get_by_role("button", name="tok/s")).to_have_attribute("aria-pressed", "true")
    page.get_by_role("combobox", name="Slice").select_option("gsm8k · no selector")
    expect(page.locator(".dfl-heat tbody td:not(.dfl-heat-none)")).to_have_count(2)
    run_cell(page, "print('slice', grid.slice, grid.metric)")
    expect(said(page)).to_have_text("slice 1 tok_s\n")
    assert barriers(page, ".dflw") == []
