"""Two traces side by side in a browser: linked by token, with what differs and what was published."""

from __future__ import annotations

import dataclasses

import pytest
from app_fakes import query, wait_query
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect
from toytraces import make_trace

from dflash_lab.core.trace import store as trace_store
from dflash_lab.core.trace.schema import Trace
from dflash_lab.ui.app.session import TraceStore, read_traces

pytestmark = [
    pytest.mark.browser,
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
SIDE = "#dfa-comparison .dfl-side"


def diverging(trace: Trace, index: int) -> Trace:
    """The same run with another token at `index` of its text."""
    ids = list(trace.header.output_ids)
    ids[index] = (ids[index] + 1) % 40
    return Trace(dataclasses.replace(trace.header, created="later", output_ids=tuple(ids)), trace.steps, trace.tensor)


def open_compare(page: Page, url: str, **place: object) -> None:
    place = {"testing": 1, "tab": "compare", **place}
    page.goto(url + "?" + "&".join(f"{key}={value}" for key, value in place.items()))
    page.locator(f"{SIDE} .dfl-grid").nth(1).wait_for()


def counters(page: Page) -> list[str]:
    return page.locator(f"{SIDE} .dfl-counter").all_text_contents()


def step_of(trace: Trace, token: int) -> int:
    """The step that committed output token `token`."""
    at = len(trace.header.prompt_ids) + token
    return next(i for i, r in enumerate(trace.steps) if r.start < at <= r.start + r.commit_length)


def test_traces_are_linked_by_token_not_by_step(page, serve, store):
    a, b = store.example.trace, make_trace(40, 6, 8, seed=7)
    other = store.add(b, "run")
    open_compare(page, serve(store), trace=store.example.id, step=12, pos=2, **{"with": other.id})
    token = a.steps[12].start - 40 + 2
    expect(page.locator(f"{SIDE} .dfl-counter").nth(1)).to_have_text(f"{step_of(b, token) + 1} / 40")
    page.locator(f"{SIDE} [role=grid]").nth(1).focus()
    page.keyboard.press("ArrowRight")
    moved = b.steps[step_of(b, token) + 1]
    # The step opens at its first mismatch, or at its last position.
    pos = min(moved.num_accepted, 4)
    at = min(moved.start - 40 + pos + 1, len(a.header.output_ids) - 1)
    expect(page.locator(f"{SIDE} .dfl-counter").nth(0)).to_have_text(f"{step_of(a, at) + 1} / 24")
    strip = page.get_by_role("slider", name="Output token")
    strip.focus()
    page.keyboard.press("Home")
    page.keyboard.press("PageDown")
    expect(strip).to_have_attribute("aria-valuenow", "10")
    for side, trace in enumerate((a, b)):
        said = f"{step_of(trace, 10) + 1} / {len(trace)}"
        expect(page.locator(f"{SIDE} .dfl-counter").nth(side)).to_have_text(said)


def test_the_first_divergence_is_one_click_away(page, serve, store):
    b = diverging(store.example.trace, 30)
    other = store.add(b, "run")
    open_compare(page, serve(store), trace=store.example.id, step=0, **{"with": other.id})
    card = page.locator(".dfl-finding", has_text="First divergence")
    expect(card).to_contain_text("Output token 30, after")
    expect(card.get_by_role("row")).to_have_count(3)
    card.get_by_role("button", name="Go there").click()
    expect(page.get_by_role("slider", name="Output token")).to_have_attribute("aria-valuenow", "30")
    step = step_of(b, 30)
    expect(page.locator(f"{SIDE} .dfl-counter").first).to_have_text(f"{step + 1} / 24")


def test_a_link_restores_both_traces(page, serve, store):
    others = [store.add(make_trace(8, seed=seed), "run") for seed in (4, 5)]
    open_compare(page, serve(store), trace=others[0].id, step=3, pos=2, **{"with": store.example.id})
    wait_query(page, tab="compare", trace=others[0].id, step=3, **{"with": store.example.id})
    assert counters(page)[0] == "4 / 8"
    page.get_by_role("tab", name="Inspect").click()
    wait_query(page, tab="inspect")
    assert "with" not in query(page)


def test_both_pickers_change_their_side_and_stay_on_the_tab(page, serve, store):
    first, second = (store.add(make_trace(n, seed=n), "run") for n in (8, 9))
    open_compare(page, serve(store))
    page.get_by_role("combobox", name="Compare with").click()
    page.get_by_role("option", name=first.label).nth(1).click()
    expect(page.locator(f"{SIDE} .dfl-counter").nth(1)).to_contain_text("/ 8")
    page.get_by_role("combobox", name="Trace").click()
    page.get_by_role("option", name=second.label).first.click()
    expect(page.locator(f"{SIDE} .dfl-counter").first).to_contain_text("/ 9")
    wait_query(page, tab="compare", trace=second.id, **{"with": first.id})


def test_an_unknown_partner_is_said(page, serve, store):
    store.add(make_trace(8, seed=4), "run")
    open_compare(page, serve(store), **{"with": "0123456789"})
    expect(page.get_by_role("alert").filter(has_text="no trace '0123456789'")).to_be_visible()


def test_one_trace_alone_says_what_to_do(page, serve, store):
    page.goto(serve(store) + "?tab=compare")
    expect(page.get_by_role("alert").filter(has_text="open another file, or decode a prompt")).to_be_visible()


def test_the_shipped_pair_is_there_and_nothing_is_claimed(page, serve):
    open_compare(page, serve(read_traces([])))
    expect(page.locator(".dfl-banner")).to_contain_text("Comparable")
    expect(page.locator(".dfl-finding", has_text="First divergence")).to_contain_text("identical")
    published = page.locator(".dfl-finding", has_text="Published beside measured")
    expect(published).to_contain_text("None of the published tables")
    expect(published.locator("details")).not_to_have_attribute("open", "")


def test_two_files_open_side_by_side(page, serve, tmp_path):
    for i in (1, 2):
        trace_store.save(make_trace(10 + i, seed=i), tmp_path / f"{i}.safetensors")
    store = read_traces([tmp_path / "1.safetensors", tmp_path / "2.safetensors"])
    page.goto(serve(store))
    expect(page.get_by_role("tab", name="Compare")).to_have_attribute("aria-selected", "true")
    expect(page.locator(f"{SIDE} .dfl-counter").first).to_contain_text("/ 11")
    expect(page.locator(f"{SIDE} .dfl-counter").nth(1)).to_contain_text("/ 12")


@pytest.mark.parametrize("trace", [make_trace(0), make_trace(4, kind="ar"), make_trace(4, kind="dflash", hostile=True)])
def test_traces_of_any_kind_stand_beside_another(page, serve, trace):
    store = TraceStore(make_trace(6, hostile=True))
    entry = store.add(trace, "run")
    page.goto(f"{serve(store)}?tab=compare&with={entry.id}&testing=1")
    expect(page.locator(SIDE)).to_have_count(2)
    page.locator(f"{SIDE} > .dfl").nth(1).wait_for()
    assert page.evaluate("window.__pwned") is None


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(page, serve, store, scheme):
    page.emulate_media(color_scheme=scheme)
    other = store.add(diverging(store.example.trace, 30), "run")
    open_compare(page, serve(store), **{"with": other.id})
    page.locator("summary", has_text="tables of other targets").click()
    found = Axe().run(page).response["violations"]
    grave = [violation for violation in found if violation["impact"] in ("serious", "critical")]
    assert [(violation["id"], node["html"][:200]) for violation in grave for node in violation["nodes"]] == []
