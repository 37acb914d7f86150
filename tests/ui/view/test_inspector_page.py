"""The inspector on a fake host: what it shows, keys, focus, limits, accessibility."""

from __future__ import annotations

import dataclasses

import pytest

from dflash_lab.core.trace.schema import Trace
from dflash_lab.ui.view.text import visible
from tests.ui.toytraces import HOSTILE, make_trace, some_step

pytestmark = pytest.mark.browser
GLYPHS = {"accepted": "✓", "mismatch": "✗", "unchecked": "–"}


def state(record, j):
    if j < record.num_accepted:
        return "accepted"
    return "mismatch" if j == record.num_accepted else "unchecked"


GRID = """[...document.querySelectorAll('td[data-at]')].map((td) => [
    td.dataset.at, td.querySelector('.dfl-t').textContent, td.firstChild.className,
    td.querySelector('.dfl-n').textContent])"""


@pytest.mark.parametrize("wanted", ["zero", "mixed", "full"])
def test_the_grid_shows_the_step(inspect, wanted):
    trace = make_trace(30, 8, 8)
    i = some_step(trace, wanted)
    host = inspect(trace, initial={"step": i})
    record, ids, path = trace.steps[i], trace.tensor("candidate_ids", i), trace.tensor("path", i)
    for at, text, classes, number in host.page.evaluate(GRID):
        j, r = map(int, at.split(","))
        assert text == visible(trace.token(int(ids[j, r])).text)
        assert (f"dfl-p-{state(record, j)}" in classes) == (path[j] == r)
        ring = j == record.num_accepted and ids[j, r] == record.bonus_id
        assert ("dfl-ring" in classes.split()) == ring
        assert number not in ("", "·")
    heads = host.page.locator(".dfl-grid thead th").all_text_contents()[2:-1]
    assert heads == [f"{j + 1} {GLYPHS[state(record, j)]}" for j in range(7)]
    targets = host.page.locator(".dfl-grid tfoot td").all_text_contents()[1:]
    bonus = visible(trace.token(record.bonus_id).text)
    assert targets[: record.num_accepted] == ["= path"] * record.num_accepted
    if wanted == "full":
        assert targets[-1] == f"★\u2009{bonus}"
    else:
        assert targets[record.num_accepted].startswith(f"◆\u2009{bonus}")
        assert "".join(targets[record.num_accepted + 1 :]) == ""
    assert host.page.locator(".dfl-path").count() == 7
    assert host.page.locator(".dfl-path-accepted").count() == record.num_accepted


def test_twenty_steps_by_keyboard_keep_the_focus(inspect):
    host = inspect(make_trace(30))
    for target in ("slider", "grid"):
        host.page.get_by_role(target).focus()
        host.press("Home")
        for step in range(1, 21):
            host.press("ArrowRight")
            assert host.step == step
            assert host.focused() == target
    assert host.page.locator(".dfl-counter").text_content() == "21 / 30"
    spoken = host.page.get_by_role("status").text_content()
    assert spoken.startswith("Step 21 of 30 · ")
    host.press("ArrowLeft", "ArrowLeft", ",", ".")
    assert host.step == 18


def test_keys_move_and_switch(inspect):
    trace = make_trace(60, 8, 8, seed=3)
    host = inspect(trace)
    page, slider = host.page, host.page.get_by_role("slider")
    slider.focus()
    host.press("End")
    assert host.step == 59
    host.press("PageUp")
    assert host.step == 49
    host.press("Home", "PageDown")
    assert host.step == 10
    missed = [i for i, record in enumerate(trace.steps) if record.num_accepted < 7]
    host.press("n")
    assert host.step == min(i for i in missed if i > 10)
    host.press("Home", "PageDown", "Shift+N")
    assert host.step == max(i for i in missed if i < 10)
    host.press("g")
    page.keyboard.type("33")
    host.press("Enter")
    assert host.step == 32
    assert host.focused() == "slider"
    host.press("p")
    assert page.get_by_role("button", name="logit").get_attribute("aria-pressed") == "true"
    host.press("e")
    assert page.get_by_role("group", name="Edges").get_by_text("all").get_attribute("aria-pressed") == "true"
    host.press("d", "l", "l", "l")
    assert page.locator(".dfl-dense").count() == 1
    assert page.locator(".dfl-text .dfl-plain").text_content() == trace.header.text
    host.press("y")
    assert page.evaluate("links.at(-1).step") == 32
    host.press("?")
    assert page.get_by_role("dialog", name="Keys").is_visible()
    host.press("Escape")
    assert not page.get_by_role("dialog", name="Keys").is_visible()
    assert host.focused() == "slider"
    host.press("Space")
    page.wait_for_function("Number(document.querySelector('[role=slider]').getAttribute('aria-valuenow')) > 33")
    host.press("Space")
    assert page.get_by_role("button", name="Play").get_attribute("aria-pressed") == "false"
    host.press("Escape")
    assert host.focused() == "BODY"


def test_keys_with_a_modifier_or_in_a_field_are_left_alone(inspect):
    host = inspect(make_trace(5, 8, 8))
    host.page.get_by_role("slider").focus()
    host.press("Control+ArrowRight", "Alt+n")
    assert host.step == 0
    host.press("/")
    host.page.keyboard.type("n,.p?")
    host.idle()
    assert host.step == 0
    assert host.page.get_by_label("Filter").input_value() == "n,.p?"
    assert host.page.locator(".dfl-found").text_content() == "0 of 5 steps"
    host.press("Enter")
    assert "No match after this step" in host.page.locator(".dfl-strip-note").text_content()


def test_find_a_token_and_click_one(inspect):
    trace = make_trace(40, 8, 8)
    host = inspect(trace)
    step = 25
    record = trace.steps[step]
    k = record.start - len(trace.header.prompt_ids) + 1 + record.num_accepted
    host.page.locator(f'[data-k="{k}"]').click()
    host.idle()
    assert host.step == step
    marked = host.page.locator(".dfl-now")
    assert marked.all_text_contents() == [visible(trace.token(i).text) for i in record.committed_ids]
    host.page.get_by_role("slider").focus()
    host.press("Home", "/")
    host.page.keyboard.type("boxed")
    host.press("Enter")
    committed = "".join(trace.token(i).text for i in trace.steps[host.step].committed_ids)
    assert "boxed" in committed


def test_hover_opens_a_card_and_pins_stay(inspect):
    trace = make_trace(10, 8, 8)
    host = inspect(trace)
    page = host.page
    page.locator('td[data-at="2,3"]').hover()
    card = page.get_by_role("tooltip")
    assert "position 3 · sequence" in card.text_content()
    assert "logit" in card.text_content()
    assert "cumulative" in card.text_content()
    page.locator('td[data-at="2,3"]').click()
    host.press("ArrowDown", "Enter", "Escape", "ArrowRight")
    pins = page.locator(".dfl-pin")
    assert pins.count() == 2
    assert "rank 4 of 8" in pins.nth(0).text_content()
    assert "rank 5 of 8" in pins.nth(1).text_content()
    page.mouse.move(5, 5)
    host.press("Escape")
    assert pins.count() == 0


def test_the_arithmetic_adds_up(inspect):
    trace = make_trace(10, 8, 8)
    i = some_step(trace, "mixed")
    host = inspect(trace, initial={"step": i, "pos": 2})
    path, unary, edges = (trace.tensor(name, i) for name in ("path", "unary", "edges"))
    total = edges[1, path[0], path[1]]
    numbers = [f"{unary[1, path[1]]:.2f}", f"{total - unary[1, path[1]]:+.2f}".replace("-", "−"), f"{total:.2f}"]
    cells = host.page.locator(".dfl-panel .dfl-sums tbody tr").first.locator("td").all_text_contents()
    assert cells[1:] == numbers


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("kind", ["dflash2", "dflash", "ar", "none"])
def test_axe_finds_nothing_serious(inspect, page, scheme, kind):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    page.emulate_media(color_scheme=scheme)
    host = inspect(None if kind == "none" else make_trace(12, 8, 8, kind=kind, status="cancelled"))
    if kind == "dflash2":
        page.locator('td[data-at="3,1"]').click()
        host.press("w", "?")
        page.get_by_role("button", name="Take the 6-step tour").dispatch_event("click")
        host.idle()
    violations = axe.Axe().run(page).response["violations"]
    grave = [v for v in violations if v["impact"] in ("serious", "critical")]
    assert [(v["id"], [node["target"] for node in v["nodes"]][:3]) for v in grave] == []


def test_hostile_tokens_stay_text(inspect):
    trace = make_trace(12, 8, 16, hostile=True)
    host = inspect(trace)
    columns = "[...document.querySelectorAll('.dfl-grid thead th')].map((th) => th.offsetWidth)"
    widths = host.page.evaluate(columns)
    shown = set()
    host.page.get_by_role("slider").focus()
    for i in range(12):
        ids = trace.tensor("candidate_ids", i)
        for at, text, _, _ in host.page.evaluate(GRID):
            j, r = map(int, at.split(","))
            assert text == visible(trace.token(int(ids[j, r])).text)
            shown.add(text)
        host.press("ArrowDown", "Enter")
        assert host.page.evaluate(columns) == widths
        host.press("ArrowRight")
    assert shown == {visible(text) for text in HOSTILE}
    assert host.page.evaluate("window.__pwned") is None
    assert host.page.locator("img").count() == 0
    host.press("l", "l", "l")
    assert host.page.evaluate("document.querySelector('.dfl-text .dfl-plain').textContent") == trace.header.text


def test_thousands_of_steps_are_fetched_as_needed(inspect):
    host = inspect(make_trace(5000, 4, 4))
    assert len(host.fetched) <= 9
    host.page.get_by_role("slider").focus()
    for _ in range(60):
        host.page.keyboard.press("ArrowRight")
    host.idle()
    assert host.step == 60
    assert len(host.fetched) == len(set(host.fetched))
    box = host.page.get_by_role("slider").bounding_box()
    host.page.mouse.move(box["x"] + 10, box["y"] + 10)
    host.page.mouse.down()
    host.page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 10, steps=40)
    host.page.mouse.up()
    host.idle()
    assert 2400 < host.step < 2600
    assert host.page.locator(".dfl-now").count() == host.trace.steps[host.step].commit_length
    assert len(host.fetched) < 1000


def test_a_step_that_cannot_be_read_says_so(inspect):
    host = inspect(make_trace(30, 8, 8))
    host.broken = {20}
    host.page.get_by_role("slider").focus()
    host.press("PageDown", "PageDown")
    alert = host.page.get_by_role("alert")
    assert "Step 21 could not be read" in alert.text_content()
    host.broken.clear()
    alert.get_by_role("button", name="Try again").click()
    host.idle()
    assert not alert.is_visible()
    assert host.page.locator(".dfl-headline").text_content()


def test_empty_states_say_what_to_do(inspect):
    text = inspect(None).page.locator(".dfl-empty").text_content()
    assert "No trace loaded." in text
    assert "Open a file" in text


def test_a_trace_without_steps_says_so(inspect):
    assert (
        "no verification steps (status: cancelled)"
        in inspect(make_trace(0, status="cancelled")).page.locator(".dfl-empty").text_content()
    )


@pytest.mark.parametrize(
    "options",
    [
        {"kind": "dflash"},
        {"kind": "ar"},
        {"leave_out": ("candidate_ids", "unary", "log_norm", "edges", "path", "target_ids", "target_logit")},
        {"leave_out": ("target_ids", "target_top2", "target_log_norm", "target_logit")},
        {"leave_out": ("log_norm", "path")},
        {"num_candidates": 1},
        {"block_size": 2},
        {"num_candidates": 40, "hostile": False},
    ],
)
def test_whatever_was_recorded_is_shown(inspect, options):
    trace = make_trace(6, **{"block_size": 6, "num_candidates": 4, **options})
    host = inspect(trace)
    host.page.get_by_role("slider").focus()
    for _ in range(5):
        host.press("ArrowRight", "ArrowDown", "Shift+ArrowRight", "e", "p", "Enter")
    assert host.step == 5
    assert host.page.locator(".dfl-headline").text_content()


def test_the_host_hears_of_moves_and_can_move_the_view(inspect):
    host = inspect(make_trace(20, 8, 8), initial={"step": 99, "pos": 40})
    page = host.page
    assert host.step == 19
    assert page.evaluate("selected") == []
    page.get_by_role("slider").focus()
    host.press("ArrowLeft", "ArrowLeft", "ArrowLeft")
    assert page.evaluate("selected.map((at) => at.step)") == [16]
    page.evaluate("dispose.show({ step: 4, pos: 3 })")
    host.idle()
    assert host.step == 4
    assert page.locator(".dfl-focus").get_attribute("data-at").startswith("2,")
    assert page.evaluate("selected.length") == 1
    host.press("ArrowRight")
    assert host.step == 5
    page.evaluate("dispose()")
    assert page.evaluate("document.getElementById('el').childNodes.length") == 0


def test_the_theme_follows_the_page(inspect, page):
    host = inspect(make_trace(5, 8, 8))
    dark = page.locator(".dfl-dark")
    assert dark.count() == 0
    page.evaluate("document.body.classList.add('dark')")
    host.idle()
    assert dark.count() == 1
    page.evaluate("document.body.classList.remove('dark')")
    page.emulate_media(color_scheme="dark")
    host.idle()
    assert dark.count() == 1


def test_mounted_in_a_hidden_tab_it_is_whole_once_shown(inspect):
    host = inspect(make_trace(5))
    page = host.page
    page.evaluate("dispose(); document.getElementById('el').style.display = 'none'")
    page.evaluate("json => start({}, json.summary)", page.evaluate("fetch('setup').then((r) => r.json())"))
    page.evaluate("document.getElementById('el').style.display = ''")
    host.idle()
    assert page.locator(".dfl-path").count() == 15
    share = page.evaluate(
        "document.querySelector('.dfl-grid').clientWidth / document.querySelector('.dfl-left').clientWidth"
    )
    assert share > 0.9


@pytest.mark.parametrize("width", [1440, 1000, 720])
def test_nothing_runs_off_the_page(inspect, page, width):
    page.set_viewport_size({"width": width, "height": 900})
    inspect(make_trace(40))
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_blocks_of_other_lengths_keep_the_focus(inspect):
    """The last block of a run may be shorter: the table is made anew, the focused node is not."""
    long, short = make_trace(2, 8, 8), make_trace(2, 4, 6)
    last = dataclasses.replace(short.steps[1], start=long.steps[1].start)
    trace = Trace(long.header, (long.steps[0], last), lambda name, i: (short if i else long).tensor(name, i))
    host = inspect(trace)
    host.page.get_by_role("grid").focus()
    for key, columns in (("ArrowRight", 3), ("ArrowLeft", 7)):
        host.press(key)
        assert host.focused() == "grid"
        assert host.page.locator(".dfl-grid thead th").count() == columns + 3


def test_text_cut_inside_a_block(inspect):
    trace = make_trace(30, 8, 8)
    i = some_step(trace, "full")
    record = dataclasses.replace(trace.steps[i], committed_ids=trace.steps[i].committed_ids[:3], truncated=5)
    host = inspect(Trace(trace.header, (*trace.steps[:i], record), trace.tensor), initial={"step": i})
    heads = host.page.locator(".dfl-grid thead th").all_text_contents()[2:-1]
    assert heads == ["1 ✓", "2 ✓", "3 ✓", "4 ✂", "5 ✂", "6 ✂", "7 ✂"]
    assert "5 tokens were cut off" in host.page.locator(".dfl-panel").text_content()


def test_byte_pieces_and_special_tokens_are_pills(inspect):
    trace = make_trace(3, 8, 8)
    output = (trace.header.output_ids[0], 900, 901, 902, 999, 901)
    header = dataclasses.replace(trace.header, output_ids=output)
    host = inspect(Trace(header, trace.steps[:1], trace.tensor))
    assert host.page.locator(".dfl-pill").all_text_contents() == ["⟨E2 80 99⟩ → ’", "<|im_end|>", "⟨80⟩"]


def test_a_sampled_rejection_is_not_called_an_error(inspect):
    trace = make_trace(30, 8, 8)
    i = some_step(trace, "mixed")
    record, target = trace.steps[i], trace.tensor("target_ids", i).copy()
    target[record.num_accepted] = record.draft_ids[record.num_accepted]
    header = dataclasses.replace(trace.header, request={"sampling": {"temperature": 1.0}, "seed": 7})
    sampled = Trace(
        header, trace.steps, lambda name, s: target if (name, s) == ("target_ids", i) else trace.tensor(name, s)
    )
    host = inspect(sampled, initial={"step": i})
    assert "rejected by sampling" in host.page.locator(".dfl-headline").text_content()
    assert "the draw rejected it" in host.page.locator(".dfl-panel").text_content()
    assert "seed 7" in host.page.locator(".dfl-title").text_content()
