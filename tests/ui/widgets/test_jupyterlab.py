"""The widgets in JupyterLab: traits both ways, keys kept from the notebook, nothing asked of another machine."""

from pathlib import Path

import pytest

from dflash_lab.core.serve.fake_model import FakeModel
from dflash_lab.core.serve.fake_server import FakeServer
from tests.ui.toyruns import measure_fake

pytestmark = [pytest.mark.browser, pytest.mark.slow]
expect = pytest.importorskip("playwright.sync_api").expect

TRACE = "import dflash_lab as dl\ntrace = dl.example_trace()"
PATIENCE_MS = 60_000
ROOT = Path(__file__).parents[3]


def run_cell(page, source: str) -> None:
    """Append a cell to the notebook and run it."""
    page.locator(".jp-Notebook .jp-Cell").last.locator(".cm-content").click()
    page.keyboard.press("Escape")
    page.keyboard.press("b")
    page.keyboard.press("Enter")
    page.keyboard.insert_text(source)
    page.keyboard.press("Control+Enter")


def said(page):
    """What the last cell printed."""
    return page.locator(".jp-Cell").last.locator(".jp-OutputArea-output")


def barriers(page, place: str) -> list[str]:
    """What axe finds serious or critical inside `place`."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    found = axe.run(page, context=place).response["violations"]
    return [rule["id"] for rule in found if rule["impact"] in ("serious", "critical")]


def at_step(view, step: int, timeout: int = 10_000) -> None:
    """Wait until `view` stands on `step` and shows it."""
    expect(view.locator(".dfl-strip")).to_have_attribute("aria-valuenow", str(step + 1), timeout=timeout)


def test_traits_go_both_ways(lab, page):
    lab.open(page, "traits.ipynb", TRACE, "w = dl.inspect(trace, step=3)\nw")
    view = page.locator(".dflw-inspector")
    at_step(view, 3, PATIENCE_MS)
    expect(view.locator("table").first).to_be_visible()
    view.locator(".dfl-strip").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    page.wait_for_timeout(300)
    run_cell(page, "print('at', w.step, sorted(w.selected), w.pos == w.selected['pos'])")
    expect(said(page)).to_have_text("at 4 ['pos', 'rank', 'step', 'token', 'token_id'] True\n")
    run_cell(page, "w.step = 7; w.pos = 2")
    at_step(view, 7)
    assert barriers(page, ".dflw-inspector") == []
    expect(view.locator(".dfl-main")).to_contain_text("Path at position 2")


def test_linked_views_move_together_in_the_browser(lab, page):
    lab.open(
        page, "links.ipynb", TRACE,
        "import ipywidgets as W\na, b = dl.StepTimeline(trace, step=2), dl.Grid(trace, step=5)\n"
        "link = W.jslink((a, 'step'), (b, 'step'))\nW.VBox([a, b])",
    )  # fmt: skip
    timeline, grid = page.locator(".dflw-timeline"), page.locator(".dflw-grid")
    expect(timeline.locator(".dfl-strip")).to_be_visible(timeout=PATIENCE_MS)
    expect(timeline.locator(".dfl-main")).to_be_hidden()
    expect(grid.locator(".dfl-main")).to_be_visible()
    expect(grid.locator(".dfl-strip")).to_be_hidden()
    timeline.locator(".dfl-strip").focus()
    page.keyboard.press("End")
    last = timeline.locator(".dfl-strip").get_attribute("aria-valuemax")
    expect(grid.locator(".dfl-bar")).to_contain_text(f"{last} / {last}")


def test_keys_inside_leave_the_notebook_alone(lab, page):
    lab.open(page, "keys.ipynb", TRACE, "w = dl.Grid(trace)\nw")
    view = page.locator(".dflw-grid")
    expect(view.locator(".dfl-main")).to_be_visible(timeout=PATIENCE_MS)
    cells = page.locator(".jp-Notebook .jp-Cell").count()
    view.locator("[role=gridcell], td").nth(20).click()
    for key in ("d", "d", "b", "a", "x", "m", "Shift+M", "0", "0"):
        page.keyboard.press(key)
    page.wait_for_timeout(300)
    assert page.locator(".jp-Notebook .jp-Cell").count() == cells
    assert page.locator(".jp-Notebook .jp-MarkdownCell").count() == 0
    expect(page.locator(".jp-Dialog")).to_have_count(0)


def test_running_a_cell_again_closes_what_it_made(lab, page):
    count = "from ipywidgets.widgets import widget\nprint(len(widget._instances))"
    lab.open(page, "again.ipynb", TRACE, "w = dl.Grid(trace)\nw", count)
    expect(page.locator(".dflw-grid .dfl-main")).to_be_visible(timeout=PATIENCE_MS)
    before = said(page).inner_text()
    for _ in range(3):
        lab.run_all(page)
    expect(page.locator(".jp-Cell").last.locator(".jp-InputPrompt")).to_have_text("[12]:")
    assert said(page).inner_text() == before


LIVE = """\
import sys, time
sys.path.insert(0, {folder!r})
from toy_pair import make_pair
from dflash_lab.core.hooks import Hooks
hooks = Hooks()
hooks.add("path", lambda path: time.sleep(0.05))
request = dl.GenerateRequest("hello", dl.SamplingParams(max_new_tokens={tokens}), record="scores")
live = dl.Live(dl.generate(make_pair(), request, hooks))
live"""


def test_a_decode_is_watched_and_stopped(lab, page):
    lab.open(page, "stop.ipynb", TRACE, LIVE.format(folder=str(ROOT / "tests/ui"), tokens=5000))
    view = page.locator(".dflw-live")
    expect(view.get_by_role("status")).to_have_text("running", timeout=PATIENCE_MS)
    expect(view).to_contain_text("tok/s", timeout=20_000)
    assert barriers(page, ".dflw-live") == []
    run_cell(page, "print('the kernel is free:', live.state)")
    expect(said(page)).to_have_text("the kernel is free: running\n")
    view.get_by_role("button", name="Stop").click()
    expect(view.get_by_role("status").first).to_have_text("cancelled")
    expect(view.get_by_role("button", name="Stop")).to_be_hidden()
    expect(view.locator(".dfl-main")).to_be_visible()


def test_a_figure_has_no_button_that_uploads(lab, page):
    lab.open(page, "figure.ipynb", TRACE, "dl.AcceptanceCurve(trace)")
    figure = page.locator(".js-plotly-plot")
    expect(figure.locator(".modebar")).to_be_attached(timeout=PATIENCE_MS)
    expect(figure.locator("[data-title*=hare]")).to_have_count(0)


def test_a_page_in_a_frame_works_without_the_kernel(lab, page):
    lab.open(page, "frame.ipynb", TRACE, "dl.inspect(trace, step=2, mode='html')")
    frame = page.frame_locator("iframe[title=Inspector]")
    expect(frame.locator(".dfl-strip")).to_have_attribute("aria-valuenow", "3", timeout=PATIENCE_MS)
    frame.locator(".dfl-strip").focus()
    page.keyboard.press("ArrowRight")
    expect(frame.locator(".dfl-strip")).to_have_attribute("aria-valuenow", "4")


def test_a_live_server_is_drawn_and_stopped(lab, page, tmp_path):
    with FakeServer(FakeModel(backend="vllm")) as server:
        cell = f"import dflash_lab as dl\nlive = dl.LiveServer({server.url!r}, interval_s=0.2)\nlive"
        lab.open(page, "server.ipynb", cell)
        view = page.locator(".dfl-live")
        expect(view.locator(".dfl-live-requests .main-svg").first).to_be_visible(timeout=PATIENCE_MS)
        expect(view.locator(".dfl-state")).to_have_text("running")
        expect(view.locator(".dfl-live-facts")).to_contain_text("NVIDIA GB300")
        expect(view.locator(".dfl-live-histogram")).to_contain_text("No verification step was counted yet.")
        measure_fake(server.url, tmp_path / "run.jsonl", num_prompts=4)
        expect(view.locator(".dfl-live-histogram .bars .point")).to_have_count(4)
        view.get_by_role("button", name="Stop").click()
        expect(view.locator(".dfl-state")).to_have_text("stopped")
        assert barriers(page, ".dfl-live") == []
