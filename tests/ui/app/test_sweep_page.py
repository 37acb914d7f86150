"""The Ablations tab in a browser: the heat map by mouse and key, a cell in Inspect, a sweep from the page."""

from __future__ import annotations

import re

import pytest
from app_fakes import FakeEngine, wait_query
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect
from toytraces import make_trace

from dflash_lab.ui.app import sweep_run
from dflash_lab.ui.app.sweep import SweepStore
from tests.core.ablate.toy_rows import make_row
from tests.ui.toysweep import HOSTILE, fake_program, toy_rows, toy_run, write_results

pytestmark = [
    pytest.mark.browser,
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
HEAT = "#dfa-sweep-view .dfl-heat tbody"


def toy_cell(row: dict, notify) -> object:
    """A pair for a cell, without models."""
    return FakeEngine().pair(notify)


@pytest.fixture
def sweeps(tmp_path) -> SweepStore:
    """Toy results over prompts that lie beside them."""
    changes = {"dataset": "p.txt"}
    folder = write_results(tmp_path / "toy", toy_rows(**changes), [toy_run(dataset=["p.txt"])])
    (folder / "p.txt").write_text("".join(f"prompt {i}\n" for i in range(6)))
    return SweepStore([folder], load_cell=toy_cell, own_folder=tmp_path / "own")


def open_tab(page: Page, url: str) -> None:
    page.goto(f"{url}?testing=1&tab=sweep")
    page.locator(f"{HEAT} td b").first.wait_for()


def cell(page: Page, name: str):
    return page.get_by_role("gridcell", name=re.compile(f"^{name}"))


def test_results_that_were_given_are_what_the_page_opens_on(page, serve, store, sweeps):
    page.goto(serve(store, sweeps=sweeps))
    expect(page.get_by_role("tab", name="Ablations")).to_have_attribute("aria-selected", "true")
    expect(page.locator(f"{HEAT} .dfl-heat-best")).to_be_visible()


def test_every_cell_says_what_it_is(page, serve, store, sweeps):
    open_tab(page, serve(store, sweeps=sweeps))
    expect(page.locator(f"{HEAT} td:not(.dfl-heat-none)")).to_have_count(6)
    expect(cell(page, "block 16, 4 candidates")).to_have_text("failed")
    expect(cell(page, "block 16, 1 candidates")).to_have_text("not run")
    best = page.locator(f"{HEAT} .dfl-heat-best")
    expect(best).to_have_count(1)
    expect(best).to_contain_text("★")
    expect(best).to_have_attribute("aria-label", re.compile(r"acceptance length .* n = 6 .* the best"))
    expect(best).to_have_attribute("aria-selected", "true")
    expect(page.locator(".dfl-sweep-head p")).to_have_text(
        "replayed along the target's texts, n = 6 prompts of up to 256 tokens, cpu float32"
    )
    expect(page.locator(".dfl-figures pre")).to_contain_text("dflash-lab sweep run --num-prompts 6 --out ")


def test_the_grid_is_one_stop_and_keys_move_in_it(page, serve, store, sweeps):
    open_tab(page, serve(store, sweeps=sweeps))
    best = page.locator(f"{HEAT} .dfl-heat-best")
    best.focus()
    expect(page.locator(f"{HEAT} td[tabindex='0']")).to_have_count(1)
    page.keyboard.press("Home")
    page.keyboard.press("ArrowUp")
    focused = page.locator(f"{HEAT} td:focus")
    expect(focused).to_have_attribute("aria-label", re.compile("^block 4, 1 candidates"))
    expect(page.locator(".dfl-sweep-cell h3")).to_have_text("block 4, 1 candidates")
    for _ in range(9):
        page.keyboard.press("ArrowDown")
    expect(focused).to_have_attribute("aria-label", "block 16, 1 candidates: not run")
    expect(page.locator(".dfl-sweep-cell")).to_contain_text("not run")
    expect(page.get_by_role("button", name="Open in Inspect")).to_be_hidden()


def test_another_metric_and_another_slice(page, serve, store, sweeps):
    open_tab(page, serve(store, sweeps=sweeps))
    page.get_by_role("button", name="ms per token").click()
    lowest = page.locator(f"{HEAT} .dfl-heat-best")
    values = [float(text.strip("★ ")) for text in page.locator(f"{HEAT} td:not(.dfl-heat-none) b").all_text_contents()]
    assert float(lowest.locator("b").text_content().strip("★ ")) == min(values)
    page.get_by_role("combobox", name="Slice").select_option("p.txt · no selector")
    expect(page.locator(f"{HEAT} td:not(.dfl-heat-none)")).to_have_count(2)
    # The number that was chosen stays.
    expect(page.get_by_role("button", name="ms per token")).to_have_attribute("aria-pressed", "true")


def test_a_cell_opens_its_trace_and_says_whether_it_is_what_the_sweep_has(page, serve, store, sweeps):
    engine = FakeEngine(make_trace(9, 8, 4, seed=5))
    open_tab(page, serve(store, engine, sweeps=sweeps))
    cell(page, "block 8, 4 candidates").click()
    page.get_by_role("button", name="p/3", exact=True).click()
    said = page.get_by_role("alert").filter(has_text="p/3, block 8, 4 candidates: 9 steps")
    expect(said).to_be_visible()
    expect(page.get_by_role("tab", name="Inspect")).to_have_attribute("aria-selected", "true")
    assert engine.made[0].request.prompt == "prompt 3"
    wait_query(page, tab="inspect")
    page.get_by_role("tab", name="Ablations").click()
    expect(page.locator(".dfl-sweep-cell h3")).to_have_text("block 8, 4 candidates")
    page.get_by_role("button", name="p/3", exact=True).click()
    expect(page.get_by_role("tab", name="Inspect")).to_have_attribute("aria-selected", "true")
    page.get_by_role("tab", name="Ablations").click()
    cell(page, "block 4, 4 candidates").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("tab", name="Inspect")).to_have_attribute("aria-selected", "true")
    assert len(engine.made) == 2
    assert engine.made[1].request.block_size == 4


def test_a_cell_whose_prompts_are_gone_says_so(page, serve, store, sweeps):
    (sweeps.opening().folder / "p.txt").unlink()
    open_tab(page, serve(store, sweeps=sweeps))
    page.get_by_role("button", name="Open in Inspect").click()
    expect(page.get_by_role("alert").filter(has_text="no prompt set 'p.txt'")).to_be_visible()
    expect(page.get_by_role("tab", name="Ablations")).to_have_attribute("aria-selected", "true")


def test_a_sweep_from_the_page_fills_the_grid_and_stops(page, serve, store, sweeps, tmp_path, monkeypatch):
    rows = [make_row(size, count) for size in (4, 8, 16) for count in (1, 4, 16)]
    monkeypatch.setattr(sweep_run, "PROGRAM", fake_program(tmp_path, rows, row_s=0.4))
    open_tab(page, serve(store, sweeps=sweeps))
    command = page.locator("#dfa-sweep-command textarea")
    expect(command).to_have_value(
        re.compile(r"^dflash-lab sweep run --block-size 4,8,16 --num-candidates 1,4,16 .*--out ")
    )
    page.get_by_role("button", name="Run", exact=True).click()
    work = page.locator(".dfa-sweep-work")
    expect(work).to_contain_text("Sweep running")
    expect(page.get_by_role("combobox", name="Results that are shown").locator("option:checked")).to_contain_text(
        "run · own-"
    )
    expect(page.locator(f"{HEAT} td:not(.dfl-heat-none)").nth(2)).to_be_visible()
    expect(page.get_by_role("progressbar", name="Cells that are done")).to_have_attribute("max", "9")
    work.get_by_role("button", name="Stop").click()
    expect(work).to_contain_text(re.compile(r"Stopped with \d of 9 cells; run the same sweep again"))
    expect(work.get_by_role("button", name="Stop")).to_be_hidden()
    monkeypatch.setattr(sweep_run, "PROGRAM", fake_program(tmp_path, rows))
    page.get_by_role("button", name="Run", exact=True).click()
    expect(work).to_contain_text("Finished: 9 of 9 cells.")
    expect(page.locator(f"{HEAT} td:not(.dfl-heat-none)")).to_have_count(9)


def test_a_sweep_that_cannot_run_says_why(page, serve, store, sweeps, tmp_path, monkeypatch):
    monkeypatch.setattr(sweep_run, "PROGRAM", fake_program(tmp_path, error="prompts holds 2 prompts, asked for 9"))
    open_tab(page, serve(store, sweeps=sweeps))
    page.get_by_label("Block sizes").fill("4,four")
    expect(page.locator("#dfa-sweep-command textarea")).to_have_value(
        re.compile("^# the form: block_size must be whole numbers")
    )
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.get_by_role("alert").filter(has_text="block_size must be whole numbers")).to_be_visible()
    page.get_by_label("Block sizes").fill("4")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.locator(".dfa-sweep-work")).to_contain_text("prompts holds 2 prompts, asked for 9")


def test_results_are_uploaded_and_bad_ones_named(page, serve, store, sweeps, tmp_path):
    open_tab(page, serve(store, sweeps=sweeps))
    upload = page.locator("#dfa-sweep-form input[type=file]")
    bad = tmp_path / "bad.jsonl"
    bad.write_text("[]\n")
    upload.set_input_files(bad)
    expect(page.get_by_role("alert").filter(has_text="not a row of a sweep")).to_be_visible()
    folder = write_results(tmp_path / "one", [make_row(8, dataset=HOSTILE)])
    upload.set_input_files([folder / "results.jsonl", folder / "sweep.json"])
    expect(page.locator(f"{HEAT} td")).to_have_count(1)
    expect(page.get_by_role("combobox", name="Slice")).to_contain_text("<img src=x")
    expect(page.locator(".dfl-figure .js-plotly-plot").first).to_be_visible()
    assert page.evaluate("window.__pwned") is None


def test_figures_keep_their_zoom_while_rows_come_and_are_tables_as_well(page, serve, store, sweeps):
    open_tab(page, serve(store, sweeps=sweeps))
    figure = page.locator(".dfl-figure", has=page.get_by_role("heading", name="Acceptance length"))
    figure.locator(".js-plotly-plot").wait_for()
    plot = ".dfl-figure:nth-child(2) .js-plotly-plot"
    page.evaluate(f"Plotly.relayout(document.querySelector('{plot}'), {{'xaxis.range[0]': 3, 'xaxis.range[1]': 6}})")
    folder = sweeps.opening().folder
    write_results(folder, [*toy_rows(dataset="p.txt"), make_row(12, 4, dataset="p.txt")], [toy_run(dataset=["p.txt"])])
    page.get_by_role("tab", name="Help").click()
    page.get_by_role("tab", name="Ablations").click()
    expect(cell(page, "block 12, 4 candidates")).to_be_visible()
    assert page.evaluate(f"document.querySelector('{plot}').layout.xaxis.range") == [3, 6]
    figure.get_by_text("Numbers").click()
    expect(figure.get_by_role("columnheader").first).to_have_text("block size")
    expect(figure.get_by_role("rowheader")).to_have_text(["2", "4", "8", "12"])


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 1000])
def test_axe_finds_nothing_serious(page, serve, store, sweeps, scheme, width):
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 1000})
    open_tab(page, serve(store, sweeps=sweeps))
    page.locator(".js-plotly-plot").first.wait_for()
    found = Axe().run(page).response["violations"]
    grave = [violation for violation in found if violation["impact"] in ("serious", "critical")]
    assert [(violation["id"], node["html"][:200]) for violation in grave for node in violation["nodes"]] == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_shipped_example_is_there(page, serve, store, tmp_path):
    open_tab(page, serve(store, sweeps=SweepStore(own_folder=tmp_path)))
    expect(page.locator(f"{HEAT} td:not(.dfl-heat-none)")).to_have_count(25)
    expect(page.get_by_text("Recommended block size")).to_be_visible()
