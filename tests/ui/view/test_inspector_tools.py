"""What one does with the inspector beyond looking: what-if, filter, layers, choices, tour, a trace that grows."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from dflash_lab.core.trace.metrics import step_analysis
from dflash_lab.core.trace.schema import Trace
from dflash_lab.core.trace.whatif import what_if
from dflash_lab.ui.view.layers import token_layers
from dflash_lab.ui.view.wire import trace_summary
from tests.ui.toytraces import make_trace, some_step

pytestmark = pytest.mark.browser


def test_what_if_another_candidate_had_been_taken(inspect):
    """The token the target wanted, taken instead: at least as much is accepted, and the page says how much."""
    trace = make_trace(30, 8, 8, seed=1)
    missed = [i for i in range(30) if step_analysis(trace, i).cause == "selector"]
    better = {i: what_if(trace, i, *wanted_at(trace, i)).num_accepted - trace.steps[i].num_accepted for i in missed}
    i = next(i for i, more in better.items() if more > 1)
    host = inspect(trace, initial={"step": i})
    page, (j, r) = host.page, wanted_at(trace, i)
    page.locator(f'td[data-at="{j},{r}"]').click()
    page.get_by_role("grid").focus()
    host.press("w")
    found = what_if(trace, i, j, r)
    text = f"{found.num_accepted} of 7 accepted, {better[i]} more than the {trace.steps[i].num_accepted} it was."
    assert text in page.locator(".dfl-whatif").text_content()
    assert page.locator(".dfl-strip-note").text_content() == text
    marked = page.locator("td:has(.dfl-w)").evaluate_all("nodes => nodes.map((td) => td.dataset.at)")
    assert sorted(marked) == [f"{k},{found.path[k]}" for k in range(j, 7)]
    assert page.locator(".dfl-path-whatif").count() == 7 - j
    assert page.locator(".dfl-w-accepted").count() == found.num_accepted
    page.mouse.move(5, 5)
    host.press("Escape", "Escape")
    assert page.locator(".dfl-w").count() == 0
    page.get_by_role("button", name=f"at {j + 1}").click()
    assert page.locator(".dfl-w").count() == 7 - j
    page.get_by_role("grid").focus()
    host.press("ArrowRight", "ArrowLeft")
    assert page.locator(".dfl-w").count() == 0


def wanted_at(trace, i):
    analysis = step_analysis(trace, i)
    return analysis.num_accepted, analysis.target_rank - 1


def test_what_if_says_where_the_target_is_not_known(inspect):
    """At the last step, with the token the target wanted: right as far as the text goes, and nobody knows further."""
    traces = (make_trace(n, 8, 8) for n in range(2, 30))
    ends = [(t, step_analysis(t, len(t) - 1)) for t in traces]
    trace = next(t for t, end in ends if end.cause == "selector" and end.num_accepted < 5)
    last = len(trace) - 1
    j, r = wanted_at(trace, last)
    host = inspect(trace, initial={"step": last})
    host.page.locator(f'td[data-at="{j},{r}"]').click()
    host.press("w")
    said = host.page.locator(".dfl-whatif").text_content()
    assert f"At least {j + 1} of 7 accepted" in said
    assert f"after position {j + 1} is not known" in said
    assert host.page.locator(".dfl-w-unknown").count() == 6 - j


def test_a_filter_pales_the_strip_and_steers_n(inspect):
    trace = make_trace(60, 8, 8, seed=3)
    host = inspect(trace)
    page, zero = host.page, [i for i, record in enumerate(trace.steps) if record.num_accepted == 0]
    pixels = "document.querySelector('.dfl-strip canvas').getContext('2d').getImageData(0, 0, 900, 56).data"
    ink = f"{pixels}.reduce((a, b) => a + b)"
    page.get_by_role("slider").focus()
    before = page.evaluate(ink)
    host.press("/")
    page.keyboard.type("accepted = 0")
    host.idle()
    assert page.evaluate(ink) < before
    assert page.locator(".dfl-found").text_content() == f"{len(zero)} of 60 steps"
    host.press("Enter", "Enter")
    after = [i for i in zero if i > 0]
    assert host.step == after[1]
    host.press("Shift+Enter")
    assert host.step == after[0]
    host.press("Escape")
    assert (host.focused(), page.evaluate(ink)) == ("slider", before)


def test_rows_in_the_order_the_walk_sees(inspect):
    """By selector score the path of a greedy walk is the top row; keys move through the rows as they stand."""
    trace = make_trace(10, 8, 8)
    i = some_step(trace, "mixed")
    host = inspect(trace, initial={"step": i})
    page = host.page
    page.get_by_role("grid").focus()
    host.press("r")
    top = page.locator(".dfl-grid tbody tr").first.locator("td[data-at]")
    assert top.evaluate_all("cells => cells.map((td) => td.dataset.at)") == [
        f"{j},{r}" for j, r in enumerate(trace.tensor("path", i))
    ]
    path, edges = trace.tensor("path", i), trace.tensor("edges", i)
    host.press("Shift+ArrowRight", "Shift+ArrowLeft", "ArrowDown")
    j = int(page.locator(".dfl-focus").get_attribute("data-at").split(",")[0])
    second = np.argsort(-edges[j, path[j - 1] if j else 0], kind="stable")[1]
    assert page.locator(".dfl-focus").get_attribute("data-at") == f"{j},{second}"
    assert f"rank {second + 1} of 8" in page.get_by_role("tooltip").text_content()
    assert page.locator(".dfl-path").count() == 7


def test_text_layers_show_what_the_target_found(inspect):
    trace = make_trace(12, 8, 8)
    p, margin = token_layers(trace)
    host = inspect(trace)
    page = host.page
    page.get_by_role("slider").focus()
    host.press("l")
    assert page.locator(".dfl-text").get_attribute("data-layer") == "p"
    red = "Number(node.style.backgroundColor.match(/\\d+/)?.[0])"
    shades = page.evaluate(f"[...document.querySelectorAll('.dfl-text [data-k]')].map((node) => {red})")
    order = [shade for _, shade in sorted(zip(p[1:], shades[1:], strict=True))]
    assert order == sorted(order)
    host.press("l")
    ties = page.locator(".dfl-text .dfl-tie").evaluate_all("nodes => nodes.map((n) => Number(n.dataset.k))")
    assert ties == [k for k, value in enumerate(margin) if value < 0.25]
    assert f"top-2 margin {margin[3]:.2f}" in page.locator('[data-k="3"]').get_attribute("title")
    host.press("l", "l")
    assert page.locator('[data-k="3"]').evaluate("node => node.style.backgroundColor") == ""


def test_without_the_targets_scores_there_is_no_such_layer(inspect):
    host = inspect(make_trace(5, 8, 8, leave_out=("target_top2",)))
    assert host.page.get_by_role("group", name="Text").get_by_role("button").all_text_contents() == ["origin", "plain"]


def test_choices_are_remembered_and_nonsense_is_not(inspect, page):
    host = inspect(make_trace(5, 8, 8))
    page.get_by_role("slider").focus()
    host.press("p", "d", "r", "e", "l")
    page.reload()
    page.evaluate("window.ready")
    pressed = page.locator("[aria-pressed=true]").all_text_contents()
    assert pressed == ["logit", "score", "all", "dense", *[t for t in pressed if "→" in t], "probability"]
    page.evaluate("localStorage.setItem('dflash-lab-inspector', JSON.stringify({ fill: 'x', dense: 7 }))")
    page.reload()
    page.evaluate("window.ready")
    assert "p" in page.locator("[aria-pressed=true]").all_text_contents()
    assert page.locator(".dfl-dense").count() == 0


def test_a_trace_that_grows_keeps_the_place_and_the_focus(inspect):
    whole = make_trace(60, 8, 8, seed=2)
    short = cut(whole, 10)
    host = inspect(short)
    page = host.page
    running = trace_summary(short) | {"status": "running"}
    page.evaluate("dispose()")
    page.evaluate("summary => start({}, summary)", running)
    page.get_by_role("slider").focus()
    host.press("End", "Shift+ArrowRight", "Shift+ArrowRight")
    last = host.page.locator(".dfl-focus").get_attribute("data-at")
    text = page.locator(".dfl-text").text_content()
    host.trace = whole
    page.evaluate("summary => dispose.update(summary)", trace_summary(cut(whole, 40)) | {"status": "running"})
    host.idle()
    assert (host.step, host.focused()) == (9, "slider")
    assert page.locator(".dfl-focus").get_attribute("data-at") == last
    assert page.locator(".dfl-counter").text_content() == "10 / 40"
    assert len(page.locator(".dfl-text").text_content()) > len(text)
    assert page.locator(".dfl-text [data-k]").count() == len(cut(whole, 40).header.output_ids)
    page.get_by_role("button", name="Go along with the run").click()
    host.idle()
    assert host.step == 39
    page.evaluate("summary => dispose.update(summary)", trace_summary(whole))
    host.idle()
    assert host.step == 39
    assert not page.get_by_role("button", name="Go along with the run").is_visible()


def cut(trace, steps):
    """The beginning of a run."""
    end = trace.steps[steps - 1]
    length = end.start + end.commit_length + 1 - len(trace.header.prompt_ids)
    header = dataclasses.replace(trace.header, output_ids=trace.header.output_ids[:length])
    return Trace(header, trace.steps[:steps], trace.tensor, trace.name)


def test_the_tour_waits_for_each_action(inspect):
    trace = make_trace(40, 8, 8, seed=3)
    host = inspect(trace, initial={"step": 1})
    page, card = host.page, host.page.get_by_role("dialog", name="Tour")
    page.get_by_role("button", name="Take the 6-step tour").click()

    def at(number):
        host.idle()
        assert card.text_content().startswith(f"{number} of 6")

    grid = page.get_by_role("grid")
    grid.focus()
    at(1)
    host.press("ArrowDown")
    at(1)
    host.press("ArrowRight")
    at(2)
    host.press("ArrowDown")
    at(2)
    host.press("Shift+ArrowLeft")
    at(3)
    accepted = next(i for i in range(40) if i > host.step and trace.steps[i].num_accepted)
    for _ in range(host.step, accepted):
        at(3)
        host.press("ArrowRight")
    at(4)
    selector = next(i for i in range(40) if step_analysis(trace, i).cause == "selector")
    assert host.step == selector
    page.locator("td:has(.dfl-ring)").click()
    at(5)
    grid.focus()
    host.press("e")
    at(6)
    host.press("n")
    assert not card.is_visible()
    page.get_by_role("button", name="Take the 6-step tour").click()
    at(1)
    card.get_by_role("button", name="Skip").click()
    at(2)
    grid.focus()
    host.press("Escape")
    assert not card.is_visible()


def test_full_screen_by_key_and_back(inspect):
    host = inspect(make_trace(5, 8, 8))
    page = host.page
    page.get_by_role("slider").focus()
    page.keyboard.press("f")
    page.wait_for_function("document.fullscreenElement?.classList.contains('dfl')")
    host.press("ArrowRight")
    assert host.step == 1
    page.keyboard.press("f")
    page.wait_for_function("!document.fullscreenElement")


def test_forced_colours_keep_the_marks(inspect, page):
    """Where the system replaces colours, fills go and outlines, glyphs and the focus ring stay."""
    page.emulate_media(forced_colors="active")
    trace = make_trace(10, 8, 8)
    host = inspect(trace, initial={"step": some_step(trace, "mixed")})
    style = "(node) => { const s = getComputedStyle(node); return [s.outlineStyle, s.outlineWidth]; }"
    assert page.locator(".dfl-c.dfl-p-accepted").first.evaluate(style) == ["solid", "3px"]
    assert page.locator(".dfl-c.dfl-p-mismatch").evaluate(style) == ["dashed", "3px"]
    # A ring drawn as a shadow would be gone.
    ring = "document.querySelector('.dfl-c.dfl-ring') ?? document.querySelector('.dfl-key.dfl-ring')"
    assert page.evaluate(f"getComputedStyle({ring}).borderTopStyle") == "double"
    canvas = "(node) => getComputedStyle(node).forcedColorAdjust"
    assert page.locator(".dfl-strip canvas").first.evaluate(canvas) == "none"
    page.get_by_role("slider").focus()
    assert host.focused() == "slider"
