"""The exported page: one file that opens offline, whatever the tokens are."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_lab.core.errors import RequestError
from dflash_lab.ui.view.export import export_html, page_bytes, script_json
from tests.ui.toytraces import make_trace


@pytest.mark.browser
@pytest.mark.parametrize("hostile", [False, True])
def test_the_file_opens_offline(page, tmp_path, hostile):
    trace = make_trace(8, 6, 8, hostile=hostile)
    file = tmp_path / "übung.html"
    file.write_text(export_html(trace, step=3), encoding="utf-8")
    page.context.set_offline(True)
    page.goto(f"{file.as_uri()}?testing")
    page.evaluate("window.__dflashIdle()")
    assert page.locator(".dfl-counter").text_content() == "4 / 8"
    for key in ("ArrowRight", "End", "l"):
        page.keyboard.press(key)
        page.evaluate("window.__dflashIdle()")
    assert page.locator(".dfl-counter").text_content() == "8 / 8"
    assert page.evaluate("document.querySelector('.dfl-text .dfl-plain').textContent") == trace.header.text
    assert page.evaluate("window.__pwned") is None
    assert page.title() == "toy-dflash2 – dflash-lab"


def test_nothing_is_fetched():
    text = export_html(make_trace(2, 4, 4))
    assert re.findall(r"""(?:src|href)=["']""", text.split("<script", 1)[0]) == []
    assert "http://www.w3.org/2000/svg" in text
    assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)", text) == []


def test_the_name_of_a_trace_is_text_too():
    trace = make_trace(2, 4, 4)
    trace.name = "</title><script>alert(1)</script>"
    assert "<script>alert" not in export_html(trace)


@given(st.text(st.characters(exclude_categories=()), max_size=40))
def test_script_json_round_trips_and_cannot_end_its_element(text):
    encoded = script_json({"t": text})
    assert json.loads(encoded) == {"t": text}
    assert not set(encoded) & set("<>&\u2028\u2029")
    encoded.encode("utf-8")


def test_a_step_that_is_not_there():
    with pytest.raises(RequestError, match=r"--step must be in 0\.\.1 for this trace, got 2"):
        export_html(make_trace(2, 4, 4), step=2)


def test_a_trace_without_steps_is_a_page_that_says_so():
    assert '"n":0' in export_html(make_trace(0))


@pytest.mark.parametrize("trace", [make_trace(0), make_trace(1), make_trace(90, 8, 8), make_trace(30, kind="ar")])
def test_the_size_is_known_before_the_page_is_written(trace):
    written = len(export_html(trace).encode())
    assert page_bytes(trace) == pytest.approx(written, rel=0.1)
