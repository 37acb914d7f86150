"""The Live tab in a browser: over runs on a server that says it is a GB300, watching one, measuring one."""

from __future__ import annotations

import re

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from dflash_lab.core.serve.fake_model import FakeModel
from dflash_lab.core.serve.fake_server import FakeServer
from dflash_lab.core.serve.runfile import read_run
from dflash_lab.ui.app.live import LiveStore
from tests.ui.toyruns import CARD, fake_run, gb300_runs, measure_fake

pytestmark = [
    pytest.mark.browser,
    # Not ours: gradio leaves event loops open, and asks pandas 3 for what it deprecates.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

CHARTS = ("throughput", "acceptance", "requests", "histogram", "survival")


@pytest.fixture(scope="module")
def card(tmp_path_factory):
    """Runs on a fake GB300 with the card's settings: autoregressive, MTP, DFlash 2."""
    return gb300_runs(tmp_path_factory.mktemp("card"))


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder to work in, without prompt sets."""
    monkeypatch.delenv("DFLASH_LAB_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def plot(page: Page, name: str):
    return page.locator(f".dfl-live-{name} .dfl-live-plot")


def drawn(page: Page) -> None:
    for name in CHARTS:
        plot(page, name).locator(".main-svg").first.wait_for()


def state(page: Page):
    return page.locator(".dfl-state")


def overlay(page: Page):
    """Names of the published values in the first chart."""
    return plot(page, "throughput").locator(".textpoint", has_text="◇")


def cell(page: Page, title: str, row: str, column: str):
    """A cell of a card's table."""
    heading = page.get_by_role("heading", name=title, exact=True)
    table = page.locator(".dfl-card-grid").first.locator(".dfl-card-table", has=heading)
    columns = table.locator("thead th").all_inner_texts()
    return table.locator("tbody tr", has_text=row).locator("td").nth(columns.index(column))


def test_a_run_on_a_gb300_beside_the_published_table(page, serve, store, card):
    page.goto(serve(store, servers=LiveStore(card)) + "?testing=1")
    expect(page.get_by_role("tab", name="Live")).to_have_attribute("aria-selected", "true")
    page.get_by_label("What is shown").select_option("DFlash 2 · gsm8k-c1 · NVIDIA GB300")
    drawn(page)
    expect(page.locator(".dfl-live .dfl-title strong")).to_have_text("DFlash 2 · GSM8K, concurrency 1")
    expect(page.locator(".dfl-live-facts")).to_contain_text("1x NVIDIA GB300 (the server's word)")
    expect(page.locator(".dfl-live-tile", has_text="throughput")).to_contain_text("◇ 368.2 on 1x NVIDIA GB300")
    expect(plot(page, "throughput")).to_contain_text("◇ published, 1x NVIDIA GB300")
    assert overlay(page).all_text_contents() == [
        "◇ Autoregressive 205.4", "◇ MTP 326.0", "◇ DFlash 2 368.2",
    ]  # fmt: skip
    said = page.get_by_role("region", name="Published numbers")
    expect(said).to_contain_text("Source: model card Qwen3.8-Flash-Next-DFlash2 (published). Made alike")
    for name in CHARTS:
        box, svg = (part.bounding_box() for part in (plot(page, name), plot(page, name).locator(".main-svg").first))
        assert svg["width"] >= 0.9 * box["width"]
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_cards_tables_of_the_same_runs(page, serve, store, card):
    page.goto(serve(store, servers=LiveStore(card)) + "?testing=1&tab=live")
    tables = page.locator(".dfl-card-grid").first.locator("h3")
    expect(tables).to_have_text(
        ["Acceptance length", "Throughput, concurrency 1", "Throughput, concurrency 8", "Throughput, concurrency 32"]
    )
    expect(page.locator(".dfl-card-key")).to_have_text(
        "● measured on 1x NVIDIA GB300◇ published on 1x NVIDIA GB300, model card Qwen3.8-Flash-Next-DFlash2"
    )
    expect(cell(page, "Throughput, concurrency 1", "GSM8K", "DFlash 2")).to_have_text(
        re.compile(r"^[\d,.]+ \(\d\.\d\d×\)\d\.\d\d\.\.\d\.\d\d · \d+% of ◇◇ 368\.2 \(1\.79×\)$")
    )
    expect(cell(page, "Acceptance length", "GSM8K", "MTP")).to_have_text(
        re.compile(r"^\d\.\d\d\d\.\d\d\.\.\d\.\d\d◇ 3\.08$")
    )
    expect(cell(page, "Throughput, concurrency 32", "MBPP", "Autoregressive")).to_have_text("◇ 2,044.0")
    page.locator("summary", has_text="3 other targets").click()
    other = page.locator(".dfl-card-others section", has_text="Qwen/Qwen3.6-35B-A3B")
    expect(other).to_contain_text("the settings are known and the numbers are not")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Qwen/Qwen3.6-35B-A3B", "None are shown rather than guessed ones."),
        ("nobody/Knows-1B", "Nothing is published of nobody/Knows-1B that is known here."),
    ],
)
def test_what_is_not_known_is_an_empty_state(page, serve, store, tmp_path, name, said):
    run = fake_run(tmp_path, FakeModel(name=name))
    page.goto(serve(store, servers=LiveStore([run.path])) + "?testing=1")
    drawn(page)
    expect(page.locator(".dfl-card-tables > .dfl-live-empty")).to_contain_text(said)
    expect(page.locator(".dfl-live-published")).to_contain_text(said)
    assert overlay(page).count() == 0


def test_other_hardware_is_told_and_drawn_on_demand(page, serve, store, tmp_path):
    run = fake_run(tmp_path, FakeModel(accelerator="NVIDIA H200"), **CARD)
    page.goto(serve(store, servers=LiveStore([run.path])) + "?testing=1")
    drawn(page)
    expect(page.locator(".dfl-live-published")).to_contain_text(
        "Other hardware: beside, not to be divided by (hardware 1x NVIDIA GB300 there, 1x NVIDIA H200 here)."
    )
    assert overlay(page).count() == 0
    plot(page, "throughput").locator(".legendtoggle").last.click()
    expect(overlay(page)).to_have_count(3)
    cells = page.locator(".dfl-card-grid").first.locator("td").all_inner_texts()
    assert not any("%" in text for text in cells)


def test_a_run_grows_on_the_page_and_keeps_its_zoom(page, serve, store, tmp_path):
    lines = fake_run(tmp_path, FakeModel(output_tokens=400), num_prompts=12).path.read_bytes().splitlines(True)
    grows = tmp_path / "grows.jsonl"
    grows.write_bytes(b"".join(lines[:8]))
    page.goto(serve(store, servers=LiveStore([grows])) + "?testing=1")
    expect(state(page)).to_have_text("running")
    drawn(page)
    box = plot(page, "acceptance").locator(".nsewdrag").first.bounding_box()
    page.mouse.move(box["x"] + 0.2 * box["width"], box["y"] + 5)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.7 * box["width"], box["y"] + box["height"] - 5, steps=4)
    page.mouse.up()
    ranges = "node => JSON.stringify([node._fullLayout.xaxis.range, node._fullLayout.yaxis.range])"
    zoomed = plot(page, "acceptance").evaluate(ranges)
    with grows.open("ab") as file:
        file.write(b"".join(lines[8:]))
    expect(state(page)).to_have_text("complete")
    expect(page.locator(".dfl-live .dfl-title")).to_contain_text("12 of 12 answered")
    assert plot(page, "acceptance").evaluate(ranges) == zoomed
    plot(page, "acceptance").locator(".nsewdrag").first.dblclick()
    page.wait_for_function(
        f"before => ({ranges})(document.querySelector('.dfl-live-acceptance .dfl-live-plot')) !== before", arg=zoomed
    )


def test_a_server_is_watched_paused_and_let_go(page, serve, store, here, monkeypatch):
    asked = set()
    send = httpx.AsyncClient.send

    async def noted(self, request, **options):
        asked.add(request.url.netloc.decode())
        return await send(self, request, **options)

    with FakeServer(FakeModel(backend="vllm")) as server:
        monkeypatch.setattr(httpx.AsyncClient, "send", noted)
        page.goto(serve(store) + "?testing=1&tab=live")
        page.get_by_label("Server address").fill(server.url)
        expect(page.locator("#dfa-live-command textarea")).to_have_value(f"dflash-lab live watch {server.url}")
        page.get_by_role("button", name="Watch", exact=True).click()
        plot(page, "requests").locator(".main-svg").first.wait_for()
        measure_fake(server.url, here / "load.jsonl", num_prompts=4)
        expect(page.locator(".dfl-live-histogram .bars .point")).to_have_count(4)
        page.get_by_label("Published data set").select_option("MT-Bench")
        page.get_by_label("Published concurrency").select_option("32")
        expect(overlay(page).last).to_have_text("◇ DFlash 2 2,695.5")
        page.get_by_role("button", name="Pause").click()
        expect(state(page)).to_have_text("running, view paused")
        page.get_by_role("button", name="Stop").click()
        expect(state(page)).to_have_text("stopped, view paused")
        page.get_by_role("button", name="Resume").click()
        expect(state(page)).to_have_text("stopped")
        monkeypatch.undo()
    assert asked == {server.url.removeprefix("http://")}


def test_wrong_addresses_and_servers_that_are_down_are_said(page, serve, store, here):
    page.goto(serve(store) + "?testing=1&tab=live")
    address = page.get_by_label("Server address")
    address.fill("ftp://somewhere")
    expect(page.locator("#dfa-live-command textarea")).to_have_value(re.compile("^# expected a server's address"))
    page.get_by_role("button", name="Watch", exact=True).click()
    expect(page.get_by_role("alert").filter(has_text="got 'ftp://somewhere'")).to_be_visible()
    with FakeServer() as server:
        url = server.url
    address.fill(url)
    page.get_by_role("button", name="Watch", exact=True).click()
    expect(state(page)).to_have_text("failed")
    expect(page.locator(".dfl-live .dfl-title")).to_contain_text("no server answers at")


def test_an_answer_that_comes_late_does_not_turn_the_view_back(page, serve, store, card):
    page.goto(serve(store, servers=LiveStore(card)) + "?testing=1")
    title = page.locator(".dfl-live .dfl-title strong")
    picker = page.get_by_label("What is shown")
    picker.select_option("Autoregressive · gsm8k-c1 · NVIDIA GB300")
    expect(title).to_have_text("Autoregressive · GSM8K, concurrency 1")
    page.evaluate(
        """() => {
          const fetch = window.fetch;
          window.fetch = async (...asked) => {
            const answer = await fetch(...asked);
            await new Promise((done) => setTimeout(done, 500));
            return answer;
          };
        }"""
    )
    with page.expect_request("**/component_server/"):
        pass
    picker.select_option("DFlash 2 · gsm8k-c1 · NVIDIA GB300")
    expect(title).to_have_text("DFlash 2 · GSM8K, concurrency 1")
    page.wait_for_timeout(1500)
    expect(title).to_have_text("DFlash 2 · GSM8K, concurrency 1")


def test_own_prompts_are_measured_and_what_is_stopped_is_kept(page, serve, store, here):
    prompts = [f"what is {i}?" for i in range(9)]
    slow = FakeModel(step_s=0.005, slow=dict.fromkeys(prompts, 20.0))
    with FakeServer() as server, FakeServer(slow) as other:
        page.goto(serve(store) + "?testing=1&tab=live")
        page.get_by_label("Server address").fill(server.url)
        page.get_by_label("Measure").check()
        page.get_by_label("Own prompts, one a line").fill("\n".join(prompts))
        page.get_by_label("Concurrency", exact=True).fill("1,3")
        page.get_by_label("Settings as in").click()
        page.get_by_role("option", name="Qwen3.8-Flash-Next-FP8, 1x NVIDIA GB300").click()
        expect(page.get_by_label("Reasoning")).to_have_value("xhigh")
        expect(page.locator("#dfa-live-command textarea")).to_have_value(
            re.compile(r"--dataset prompts\.txt \\\n  --concurrency 1,3 \\\n  --max-new-tokens 4096")
        )
        page.get_by_role("button", name="Measure", exact=True).click()
        measured = re.compile("prompts, concurrency 3.*9 of 9 answered")
        expect(page.locator(".dfl-live .dfl-title")).to_contain_text(measured, timeout=20_000)
        expect(state(page)).to_have_text("complete")
        expect(page.locator(".dfl-card-grid").first).to_contain_text("prompts")
        page.get_by_label("Server address").fill(other.url)
        page.get_by_role("button", name="Measure", exact=True).click()
        expect(page.locator(".dfl-live .dfl-title")).to_contain_text(re.compile("run 1 of 2 · [1-6] of 9 answered"))
        page.get_by_role("button", name="Stop").click()
        expect(state(page)).to_have_text("interrupted")
        expect(page.locator(".dfl-live .dfl-title")).to_contain_text("to go on, add --out live-runs/")
    runs = sorted(here.glob("live-runs/*/*.jsonl"))
    assert [read_run(path).status for path in runs] == ["complete", "complete", "interrupted"]
    assert read_run(runs[1]).header.plan.reasoning == "xhigh"


def test_runs_are_opened_from_the_browser_and_wrong_files_named(page, serve, store, here):
    run = fake_run(here)
    (here / "wrong.jsonl").write_text("nonsense\n")
    page.goto(serve(store) + "?testing=1&tab=live")
    upload = page.locator("#dfa-live-form input[type=file]")
    upload.set_input_files([here / "wrong.jsonl"])
    expect(page.get_by_role("alert").filter(has_text="wrong.jsonl, line 1: expected a JSON object")).to_be_visible()
    upload.set_input_files([run.path])
    expect(page.locator(".dfl-live .dfl-title")).to_contain_text("8 of 8 answered")
    expect(page.get_by_role("alert").filter(has_text="wrong.jsonl")).to_be_hidden()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(page, serve, store, card, scheme):
    page.emulate_media(color_scheme=scheme)
    page.goto(serve(store, servers=LiveStore(card)) + "?testing=1")
    drawn(page)
    page.get_by_label("Measure").check()
    page.locator("summary", has_text="3 other targets").click()
    page.wait_for_timeout(300)
    found = Axe().run(page).response["violations"]
    grave = [violation for violation in found if violation["impact"] in ("serious", "critical")]
    assert [(violation["id"], node["html"][:200]) for violation in grave for node in violation["nodes"]] == []
