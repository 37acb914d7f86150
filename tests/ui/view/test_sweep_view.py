"""A sweep in pictures: cells as they are drawn, hostile names, one page that opens without a network."""

import json

import pytest

from dflash_lab.core.ablate.report import report
from dflash_lab.core.errors import BackendError
from dflash_lab.ui.view import sweep_page
from dflash_lab.ui.view.sweep import colour, grid_cells, grid_svg, shown, slice_figures
from dflash_lab.ui.view.sweep_page import sweep_html
from tests.core.ablate.toy_rows import failed, make_row, make_run, results

HOSTILE = '<img src=x onerror="alert(1)">&</script>'


@pytest.fixture
def document():
    """A sweep with everything in it: both modes, a contrast, a failure, a missing cell, a hostile name."""
    rows = [make_row(size, count, categories=("a", "b")) for size in (2, 4, 8) for count in (1, 4)]
    rows += [make_row(size, 4, selector=False, right=0.7) for size in (4, 8)]
    rows += [make_row(8, 4, mode="decode"), make_row(4, 4, dataset=HOSTILE), failed(16, 4)]
    return report(results(rows, [make_run(), make_run(mode="decode")]))


def test_a_grid_says_what_is_best_and_what_is_missing(document):
    cells = {(cell["block_size"], cell["num_candidates"]): cell for cell in grid_cells(document["grids"][0], "tok_s")}
    assert cells[16, 4]["status"] == "failed"
    assert cells[16, 1]["status"] == "missing"
    assert cells[16, 1]["hover"] == "block 16, 1 candidates: not run"
    (best,) = [cell for cell in cells.values() if cell["best"]]
    assert best["value"] == max(cell["value"] for cell in cells.values() if cell["value"])
    assert best["text"] == shown(best["value"])
    assert "n = 6" in best["hover"]
    assert " to " in best["hover"]


def test_figures_are_json_with_titles_on_every_axis(document):
    for index in range(len(document["grids"])):
        figures = slice_figures(document, index)
        json.dumps(figures, allow_nan=False)
        for figure in figures:
            assert figure["data"]
            assert figure["layout"]["xaxis"]["title"]["text"]
            assert figure["layout"]["yaxis"]["title"]["text"]
    titles = [figure["title"].split(",")[0] for figure in slice_figures(document, 0)]
    assert titles[:3] == ["acceptance length", "tok/s", "Cost"]
    assert {"Three lengths", "Accepted so far", "Accepted", "Recall", "Selector's lift"} < set(titles)


def test_one_cell_is_drawn_whole():
    (grid,) = (found := report(results([make_row(8)])))["grids"]
    assert len(slice_figures(found, 0)) >= 6
    assert grid_svg(grid).count("<rect") == 2, "the cell and its ring"


def test_names_are_escaped(document):
    index = next(i for i, grid in enumerate(document["grids"]) if grid["dataset"] == HOSTILE)
    for text in (json.dumps(slice_figures(document, index)), grid_svg(document["grids"][index])):
        assert "<img" not in text
        assert "&lt;img" in text or "onerror" not in text
    page = sweep_html(document)
    page = page.replace(sweep_page.plotly_js().read_text(encoding="utf-8"), "")
    assert "<img" not in page
    assert page.count("</script>") == 3


def test_a_grid_as_a_picture(document):
    svg = grid_svg(document["grids"][0])
    assert svg.startswith("<svg ")
    assert svg.count('stroke="#D55E00"') == 1
    assert svg.count("<path") == 2, "what did not run is crossed out"
    assert "<title>block 8, 4 candidates · acceptance length" in svg
    slow = grid_svg(document["grids"][0], "ms_per_token")
    assert slow.count('stroke="#D55E00"') == 1
    assert colour(0) == "rgb(0,32,77)"
    assert colour(1) == "rgb(253,234,69)"


def test_without_plotly_the_extra_is_named(document, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BackendError, match="pip install 'dflash-lab"):
        sweep_html(document)


@pytest.mark.browser
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_page_opens_offline_and_draws(document, page, tmp_path, theme):
    file = tmp_path / "r.html"
    file.write_text(sweep_html(document), encoding="utf-8")
    page.context.set_offline(True)
    page.emulate_media(color_scheme=theme)
    page.goto(file.as_uri())
    page.wait_for_selector(".plot .main-svg")
    drawn = page.locator(".plot .plot-container")
    assert drawn.count() == page.locator(".plot").count() == len(slice_figures(document, 0))
    assert page.locator(".plot").first.locator(".heatmaplayer text").count() > 0
    page.select_option("#slice", "1")
    assert drawn.count() == len(slice_figures(document, 1))
    assert page.locator("table").count() == len(document["tables"])
    assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
