"""The page in a browser: what it opens on, links, sessions, runs, uploads, downloads, themes."""

from __future__ import annotations

import csv
import json
import re
import time

import pytest
from app_fakes import FakeEngine, query, wait_query
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect
from toytraces import make_trace

from dflash_lab.core.trace import store as trace_store
from dflash_lab.ui.app.run import Run
from dflash_lab.ui.app.session import trace_id

pytestmark = [
    pytest.mark.browser,
    # Not ours: gradio leaves event loops open, and asks pandas 3 for what it deprecates.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

INSPECTOR = "#dfa-inspector .dfa-slot > *"


def open_page(page: Page, url: str, **place: object) -> None:
    page.goto(url + "?" + "&".join(f"{key}={value}" for key, value in {"testing": 1, **place}.items()))
    page.locator(INSPECTOR).first.wait_for(state="attached")


def pick(page: Page, label: str) -> None:
    page.get_by_role("combobox", name="Trace").click()
    page.get_by_role("option", name=label).click()


def test_the_example_is_there_within_two_seconds(page, serve, store):
    url = serve(store)
    seconds = []
    # The best of three: the machine may be busy with something else.
    for _ in range(3):
        page.goto("about:blank")
        began = time.monotonic()
        page.goto(url)
        page.locator(INSPECTOR).first.wait_for(state="attached")
        seconds.append(time.monotonic() - began)
    assert min(seconds) < 2
    wait_query(page, trace=store.example.id, step=store.example.opening_step, v=1)


def test_twenty_steps_by_key_and_the_address_follows(page, serve, store):
    open_page(page, serve(store), step=0)
    page.locator("#dfa-inspector [role=slider]").first.focus()
    for _ in range(20):
        page.keyboard.press("ArrowRight")
    wait_query(page, step=20)
    page.reload()
    page.locator(INSPECTOR).first.wait_for(state="attached")
    wait_query(page, trace=store.example.id, step=20)


def test_a_link_restores_trace_step_position_and_tab(page, serve, store):
    other = store.add(make_trace(18, seed=4), "run")
    url = serve(store)
    open_page(page, url, trace=other.id, step=11, pos=5, tab="inspect", v=1)
    wait_query(page, trace=other.id, step=11, pos=5, tab="inspect")
    expect(page.get_by_role("combobox", name="Trace")).to_have_value(other.label)
    page.goto(f"{url}?trace={other.id}&step=3&tab=help")
    expect(page.get_by_role("tab", name="Help")).to_have_attribute("aria-selected", "true")
    expect(page.get_by_role("heading", name="How to read a step")).to_be_visible()


def test_an_unknown_trace_is_said(page, serve, store):
    open_page(page, serve(store), trace="0123456789", step=3)
    expect(page.get_by_role("alert").filter(has_text="no trace '0123456789'")).to_be_visible()
    wait_query(page, trace=store.example.id, step=store.example.opening_step)


@pytest.mark.parametrize("trace", [make_trace(0), make_trace(4, kind="ar"), make_trace(4, kind="dflash")])
def test_every_kind_of_trace_is_shown(page, serve, store, trace):
    entry = store.add(trace, "run")
    open_page(page, serve(store), trace=entry.id, step=3, pos=2)
    wait_query(page, trace=entry.id)
    said = entry.label if len(trace) else "This trace has no verification steps"
    expect(page.locator("#dfa-inspector").get_by_text(said)).to_be_visible()


def test_the_picker_changes_the_trace(page, serve, store):
    other = store.add(make_trace(9, seed=4), "run")
    open_page(page, serve(store), tab="generate")
    pick(page, other.label)
    wait_query(page, trace=other.id, step=other.opening_step)
    expect(page.get_by_role("tab", name="Inspect")).to_have_attribute("aria-selected", "true")


def test_an_upload_is_shown_and_a_bad_one_named(page, serve, store, tmp_path):
    good, bad = tmp_path / "good.safetensors", tmp_path / "bad.safetensors"
    trace = make_trace(7, seed=9)
    trace_store.save(trace, good)
    bad.write_bytes(b"\x00" * 40)
    open_page(page, serve(store))
    upload = page.locator("input[type=file]").first
    upload.set_input_files(bad)
    expect(page.get_by_role("alert").filter(has_text="bad.safetensors")).to_be_visible()
    assert query(page)["trace"] == store.example.id
    upload.set_input_files(good)
    wait_query(page, trace=trace_id(trace))
    expect(page.get_by_role("alert").filter(has_text="bad.safetensors")).to_be_hidden()
    expect(page.get_by_role("combobox", name="Trace")).to_have_value("good.safetensors")


def test_traces_of_another_schema_and_of_an_ended_run_are_told_apart(page, serve, store, tmp_path):
    newer, cancelled = tmp_path / "newer.safetensors", tmp_path / "cancelled.safetensors"
    trace = make_trace(5, seed=9, status="cancelled")
    trace_store.save(trace, cancelled)
    newer.write_bytes(cancelled.read_bytes().replace(b'\\"schema_version\\":1', b'\\"schema_version\\":9'))
    open_page(page, serve(store))
    upload = page.locator("input[type=file]").first
    upload.set_input_files(newer)
    said = page.get_by_role("alert").filter(has_text="expected trace schema 1, got 9; update dflash-lab")
    expect(said).to_be_visible()
    upload.set_input_files(cancelled)
    wait_query(page, trace=trace_id(trace))
    expect(page.locator("#dfa-inspector .dfl-warn")).to_have_text("cancelled")


def test_a_dropped_file_is_an_upload(page, serve, store, tmp_path):
    trace = make_trace(6, seed=11)
    trace_store.save(trace, tmp_path / "t.safetensors")
    open_page(page, serve(store), tab="generate")
    drop = """bytes => {
      const data = new DataTransfer();
      data.items.add(new File([new Uint8Array(bytes)], "dropped.safetensors"));
      document.body.dispatchEvent(new DragEvent("drop", {dataTransfer: data, bubbles: true, cancelable: true}));
    }"""
    page.evaluate(drop, list((tmp_path / "t.safetensors").read_bytes()))
    wait_query(page, trace=trace_id(trace), tab="inspect")
    expect(page.get_by_role("combobox", name="Trace")).to_have_value("dropped.safetensors")


def test_what_is_shown_can_be_saved(page, serve, store, tmp_path):
    open_page(page, serve(store), step=6)
    wait_query(page, step=6)
    files = {}
    for item in ("Trace file", "This step", "Steps", "Positions", "Offline page", ".svg", ".png"):
        page.locator("summary", has_text="Save").click()
        expect(page.locator(".dfa-page-size")).to_have_text(re.compile(r"\.html ≈ \d\.\d MB"))
        with page.expect_download() as waiting:
            page.locator(".dfa-menu-items button", has_text=item).click()
        files[item] = tmp_path / waiting.value.suggested_filename
        waiting.value.save_as(files[item])
    assert [file.suffix for file in files.values()] == [
        ".safetensors", ".json", ".csv", ".csv", ".html", ".svg", ".png",
    ]  # fmt: skip
    assert trace_id(trace_store.load(files["Trace file"])) == store.example.id
    assert json.loads(files["This step"].read_text())["i"] == 6
    assert len(list(csv.reader(files["Steps"].open(newline="")))) == 25
    assert len(list(csv.reader(files["Positions"].open(newline="")))) == 16
    assert files[".png"].read_bytes().startswith(b"\x89PNG")


def test_a_run_streams_and_opens_in_inspect(page, serve, store):
    played = make_trace(12, 8, 4, hostile=True)
    open_page(page, serve(store, FakeEngine(played, step_s=0.02)), tab="generate")
    page.get_by_role("button", name="Start").click()
    status = page.get_by_role("status")
    expect(status.filter(has_text="Finished: the most tokens asked for are there.")).to_be_visible()
    shown = page.locator(".dfa-output").evaluate("node => node.textContent")
    assert shown == played.header.text
    assert page.evaluate("window.__pwned") is None
    accepted = 1 + sum(step.num_accepted for step in played.steps) / len(played)
    expect(page.locator(".dfa-tile", has_text="acceptance length").locator("b")).to_have_text(f"{accepted:.2f}")
    page.get_by_role("button", name="Open in Inspect").click()
    expect(page.get_by_role("tab", name="Inspect")).to_have_attribute("aria-selected", "true")
    made = next(entry for entry in store.entries() if entry.source == "run")
    wait_query(page, trace=made.id, tab="inspect")
    expect(page.get_by_role("combobox", name="Trace")).to_have_value(made.label)


def test_stop_ends_within_a_step_and_the_next_run_starts_clean(page, serve, store):
    engine = FakeEngine(make_trace(400, 8, 4), step_s=0.05)
    open_page(page, serve(store, engine), tab="generate")
    page.get_by_role("button", name="Start").click()
    expect(page.locator(".dfa-output span").nth(6)).to_be_attached()
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("status").filter(has_text="Stopped after")).to_be_visible()
    (first,) = engine.made
    assert len(first.done) < 400
    entry = next(entry for entry in store.entries() if entry.source == "run")
    assert (entry.trace.header.status, len(entry.trace)) == ("cancelled", len(first.done))
    engine._step_s = 0
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_role("status").filter(has_text="Finished")).to_be_visible()
    assert len(engine.made[1].done) == 400


def test_two_sessions_do_not_mix_and_take_turns(page, serve, store):
    engine = FakeEngine(make_trace(60, 8, 4), step_s=0.05)
    url = serve(store, engine)
    open_page(page, url, tab="generate", step=2)
    second = page.context.new_page()
    open_page(second, url, tab="generate", step=9)
    page.get_by_role("button", name="Start").click()
    expect(page.locator(".dfa-output span").nth(2)).to_be_attached()
    second.get_by_label("Prompt").fill("another prompt")
    second.get_by_role("button", name="Start").click()
    expect(second.get_by_role("status").filter(has_text="Waiting for the model")).to_be_visible()
    assert len(engine.made) == 1
    second.get_by_role("button", name="Stop").click()
    expect(second.get_by_role("status").filter(has_text="Stopped before it began.")).to_be_visible()
    expect(page.get_by_role("status").filter(has_text="Finished")).to_be_visible(timeout=10_000)
    assert second.locator(".dfa-output span").count() == 0
    assert [generation.request.prompt for generation in engine.made] != ["another prompt"]
    second.close()
    assert query(page)["step"] == "2"


def test_closing_the_tab_ends_its_run(page, serve, store):
    engine = FakeEngine(make_trace(400, 8, 4), step_s=0.05)
    url = serve(store, engine)
    second = page.context.new_page()
    open_page(second, url, tab="generate")
    second.get_by_role("button", name="Start").click()
    expect(second.locator(".dfa-output span").nth(2)).to_be_attached()
    second.close()
    end = time.monotonic() + 5
    while engine.lock.locked():
        assert time.monotonic() < end, "the run went on"
        time.sleep(0.05)
    assert len(engine.made[0].done) < 300


def test_a_bad_field_is_said_and_nothing_starts(page, serve, store):
    engine = FakeEngine()
    open_page(page, serve(store, engine), tab="generate")
    page.get_by_label("Block size").fill("1")
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_role("status").filter(has_text="block size must be 2 or more")).to_be_visible()
    assert engine.made == []


def test_the_command_follows_the_form(page, serve, store):
    open_page(page, serve(store), tab="generate")
    page.get_by_label("Candidates", exact=True).fill("5")
    page.get_by_label("Seed").click()
    command = page.locator("#dfa-command textarea")
    end = time.monotonic() + 5
    while "--num-candidates 5 " not in command.input_value():
        assert time.monotonic() < end, command.input_value()
        page.wait_for_timeout(20)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_serious_finding_of_axe_on_any_tab(page, serve, store, scheme):
    page.emulate_media(color_scheme=scheme)
    open_page(page, serve(store))
    for tab in ("Inspect", "Generate", "Compare", "Help"):
        page.get_by_role("tab", name=tab).click()
        found = Axe().run(page).response["violations"]
        bad = [(v["id"], n["html"][:200]) for v in found if v["impact"] in ("serious", "critical") for n in v["nodes"]]
        assert not bad, (tab, bad)


def test_the_theme_follows_the_system_until_it_is_chosen(page, serve, store):
    page.emulate_media(color_scheme="dark")
    url = serve(store)
    open_page(page, url)
    body, button = page.locator("body"), page.locator("[data-do=theme]")
    expect(body).to_have_class("dark")
    page.emulate_media(color_scheme="light")
    expect(body).not_to_have_class("dark")
    button.click()
    button.click()
    expect(button).to_have_text("Dark")
    expect(body).to_have_class("dark")
    page.reload()
    expect(body).to_have_class("dark")


def test_hostile_tokens_stay_text(page, serve, store):
    entry = store.add(make_trace(12, hostile=True, seed=3), "run")
    open_page(page, serve(store), trace=entry.id)
    wait_query(page, trace=entry.id)
    page.wait_for_timeout(300)
    assert page.evaluate("window.__pwned") is None


def test_every_tab_fills_the_width(page, serve, store):
    open_page(page, serve(store), tab="help")
    for tab in ("Inspect", "Generate", "Compare", "Help"):
        page.get_by_role("tab", name=tab).click()
        panel = page.locator("[role=tabpanel]:visible")
        expect(panel).to_have_count(1)
        assert panel.bounding_box()["width"] >= 0.9 * 1440


def test_a_run_is_followed_until_the_reader_moves(page, serve, store, monkeypatch):
    monkeypatch.setattr(Run, "LIVE_S", 0.2)
    open_page(page, serve(store, FakeEngine(make_trace(120, 8, 4), step_s=0.05)), tab="generate")
    page.get_by_role("button", name="Start").click()
    page.get_by_role("button", name="Watch in Inspect").click()
    counter = page.locator("#dfa-inspector .dfl-counter")
    expect(page.locator("#dfa-inspector .dfl-warn")).to_have_text("running")
    follow = page.get_by_role("button", name="Go along with the run")
    expect(follow).to_have_attribute("aria-pressed", "true")
    seen = {counter.text_content()}
    for _ in range(2):
        expect(counter).not_to_have_text(list(seen)[-1])
        seen.add(counter.text_content())
    assert all(here == last for here, last in (text.split(" / ") for text in seen))
    slider = page.locator("#dfa-inspector [role=slider]").first
    slider.focus()
    page.keyboard.press("Home")
    expect(follow).to_have_attribute("aria-pressed", "false")
    length = counter.text_content().split(" / ")[1]
    expect(counter).not_to_have_text(f"1 / {length}")
    assert counter.text_content().startswith("1 / ")
    assert slider.evaluate("node => node === document.activeElement")
    expect(counter).to_have_text("1 / 120", timeout=15_000)
    expect(follow).to_be_hidden()
    made = next(entry for entry in store.entries() if entry.source == "run")
    wait_query(page, trace=made.id, step=0)
    expect(page.locator("#dfa-inspector .dfl-warn")).to_have_count(0)
