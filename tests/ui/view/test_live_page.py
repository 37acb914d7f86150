"""The live view on a page of its own: zoom, Pause, hidden tabs, themes, text that is none."""

from __future__ import annotations

import json

import pytest

from dflash_lab.core.serve.fake_model import FakeModel
from dflash_lab.core.serve.records import Snapshot
from dflash_lab.ui.view.assets import module_text, plotly_js, style_text
from dflash_lab.ui.view.live_view import run_view, watch_view
from tests.ui.toyruns import CARD, fake_run
from tests.ui.view.test_live_figures import GB300

pytestmark = pytest.mark.browser
expect = pytest.importorskip("playwright.sync_api").expect

BASE = "http://inspector.localhost/"
PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>host</title>
<link rel="stylesheet" href="live.css"></head><body><main><div id="el"></div></main>
<script src="plotly.js"></script><script type="module">
import { mountLive } from "./live.js";
window.stops = 0;
window.live = mountLive(document.getElementById("el"), { plotly: async () => Plotly, onStop: () => { stops += 1; } });
</script></body></html>"""
HOSTILE = '<img src=x onerror="window.__pwned=1"><b>bold</b>${window.__pwned=1}'


@pytest.fixture
def show(page):
    """`show(view)` shows a view on the page, mounting it first."""
    files = {
        "": (PAGE, "text/html"),
        "live.js": (module_text("live"), "text/javascript"),
        "live.css": (style_text("live"), "text/css"),
        "plotly.js": (plotly_js().read_text(encoding="utf-8"), "text/javascript"),
    }

    def serve(route):
        body, kind = files.get(route.request.url.removeprefix(BASE), ("", "text/plain"))
        return route.fulfill(body=body, content_type=kind)

    page.route(BASE + "**", serve)
    page.goto(BASE)
    page.wait_for_function("window.live")
    return lambda view: page.evaluate("view => live.show(view)", json.loads(json.dumps({"id": "a", **view})))


def watched(count: int, state: str = "running"):
    """A view of a server that was looked at `count` times."""
    snapshots = [
        Snapshot(10.0 + i, "metrics", running=i % 5, output_tokens=300 * i, num_steps=100 * i, num_accepted=210 * i,
                 num_proposed=300 * i, accepted_by_position=(90 * i, 70 * i, 50 * i))
        for i in range(count)
    ]  # fmt: skip
    return watch_view(GB300, snapshots, 9.0, state, None) | {"stoppable": state == "running"}


def plot(page, name: str):
    return page.locator(f".dfl-live-{name} .dfl-live-plot")


def axis_range(page, name: str) -> list[float]:
    return plot(page, name).evaluate("node => [...node._fullLayout.xaxis.range]")


def drag(page, name: str) -> None:
    """Zoom into the middle of a chart with the mouse."""
    box = plot(page, name).locator(".nsewdrag").first.bounding_box()
    page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 0.2 * box["height"])
    page.mouse.down()
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 0.8 * box["height"], steps=4)
    page.mouse.up()


def points(page, name: str) -> int:
    return plot(page, name).evaluate("node => node.data[0].x.length")


def test_zoom_and_legend_stay_over_sixty_updates(page, show):
    show(watched(10))
    plot(page, "throughput").locator(".main-svg").first.wait_for()
    drag(page, "throughput")
    zoomed = axis_range(page, "throughput")
    assert zoomed[1] - zoomed[0] < 6
    plot(page, "throughput").locator(".legendtoggle").nth(1).click()
    page.wait_for_function(
        "document.querySelector('.dfl-live-throughput .dfl-live-plot').data[1].visible === 'legendonly'"
    )
    node = plot(page, "throughput").locator(".main-svg").first.element_handle()
    for count in range(11, 71):
        show(watched(count))
    page.wait_for_function("document.querySelector('.dfl-live-throughput .dfl-live-plot').data[0].x.length === 69")
    assert axis_range(page, "throughput") == zoomed
    assert plot(page, "throughput").evaluate("node => node._fullData[1].visible") == "legendonly"
    assert node.is_visible()
    # Another source is another chart.
    show(watched(20) | {"id": "b"})
    page.wait_for_function("document.querySelector('.dfl-live-throughput .dfl-live-plot').data[0].x.length === 19")
    assert axis_range(page, "throughput") != zoomed


def test_pause_freezes_the_view_and_not_the_state(page, show):
    show(watched(5))
    page.wait_for_function("document.querySelector('.dfl-live-throughput .dfl-live-plot').data")
    page.get_by_role("button", name="Pause").click()
    show(watched(9))
    show(watched(12, "stopped"))
    expect(page.locator(".dfl-state")).to_have_text("stopped, view paused")
    assert points(page, "throughput") == 4
    page.get_by_role("button", name="Resume").click()
    page.wait_for_function("document.querySelector('.dfl-live-throughput .dfl-live-plot').data[0].x.length === 11")
    expect(page.locator(".dfl-state")).to_have_text("stopped")
    expect(page.get_by_role("button")).to_have_count(page.locator(".modebar-btn:visible").count())


def test_stop_is_there_while_it_goes_on(page, show):
    show(watched(3))
    page.get_by_role("button", name="Stop").click()
    assert page.evaluate("stops") == 1
    show(watched(3, "stopped"))
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()


def test_charts_of_a_hidden_tab_fill_it_once_it_is_shown(page, show):
    page.evaluate("document.querySelector('main').style.display = 'none'")
    show(watched(8))
    page.evaluate("document.querySelector('main').style.display = ''")
    for name in ("throughput", "acceptance", "requests", "histogram", "survival"):
        plot(page, name).locator(".main-svg").first.wait_for()
        box, svg = (part.bounding_box() for part in (plot(page, name), plot(page, name).locator(".main-svg").first))
        assert svg["width"] >= 0.9 * box["width"]
        assert page.locator(f".dfl-live-{name}").bounding_box()["width"] > 250


def test_charts_follow_the_width_and_the_theme(page, show):
    show(watched(8))
    text = plot(page, "requests").locator(".xtick text").first
    text.wait_for()
    light = text.evaluate("node => getComputedStyle(node).fill")
    page.evaluate("document.body.classList.add('dark')")
    page.wait_for_function(
        "light => getComputedStyle(document.querySelector('.dfl-live-requests .xtick text')).fill !== light", arg=light
    )
    page.set_viewport_size({"width": 700, "height": 900})
    page.wait_for_function("document.querySelector('.dfl-live-throughput .main-svg').clientWidth < 700")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_no_button_uploads_and_the_overlay_names_its_source(page, show, tmp_path):
    show(run_view(fake_run(tmp_path, FakeModel(), **CARD)))
    plot(page, "throughput").locator(".main-svg").first.wait_for()
    assert page.locator("[data-title*=hare], [data-title*=loud]").count() == 0
    expect(plot(page, "throughput").locator(".textpoint").nth(2)).to_have_text("◇ DFlash 2 368.2")
    expect(plot(page, "throughput")).to_contain_text("◇ published, 1x NVIDIA GB300")
    said = page.get_by_role("region", name="Published numbers")
    expect(said).to_contain_text("Published on 1x NVIDIA GB300: block 4 (3 drafts per step)")
    expect(said).to_contain_text("Source: model card Qwen3.8-Flash-Next-DFlash2 (published). Made alike")


def test_text_of_any_kind_stays_text(page, show, tmp_path):
    model = FakeModel(name=HOSTILE, drafter=HOSTILE, failures={"gsm8k: what is 3 and 3?": "status"})
    view = run_view(fake_run(tmp_path, model, label=HOSTILE, num_prompts=60))
    view["warnings"].append(HOSTILE)
    show(view)
    plot(page, "throughput").locator(".main-svg").first.wait_for()
    assert page.evaluate("window.__pwned") is None
    assert page.locator(".dfl-live img").count() == 0
    expect(page.locator(".dfl-live-facts")).to_contain_text(HOSTILE)


def test_a_chart_is_told_in_words(page, show):
    show(watched(8))
    expect(plot(page, "histogram")).to_have_attribute(
        "aria-label", "Steps by accepted: 0: 10 %, 1: 20 %, 2: 20 %, 3: 50 %"
    )
    expect(plot(page, "survival")).to_have_attribute(
        "aria-label", "Survival by position: accepted up to here 0.50; accepted if reached 0.71"
    )
