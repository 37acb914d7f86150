"""The widgets without a browser: traits, messages, the static picture, what is freed."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import weakref

import pytest
from toytraces import HOSTILE, make_trace

from dflash_lab.core.errors import RequestError
from dflash_lab.ui.view.wire import step_wire

pytest.importorskip("anywidget")
from dflash_lab.ui.widgets import base
from dflash_lab.ui.widgets.grid import Grid
from dflash_lab.ui.widgets.inspector import inspect
from dflash_lab.ui.widgets.timeline import StepTimeline

KINDS = [inspect, Grid, StepTimeline]


@pytest.fixture
def sent(monkeypatch):
    """What a widget sends to its page, as (message, buffers)."""
    messages = []
    monkeypatch.setattr(Grid, "_send", lambda self, message, buffers=None: messages.append((message, buffers)))
    return messages


def ask(widget, content) -> None:
    """A custom message from the page."""
    widget._handle_msg({"content": {"data": {"method": "custom", "content": content}}, "buffers": []})


@pytest.mark.parametrize("make", KINDS)
def test_opens_on_a_mixed_step_and_stays_within_the_trace(make):
    trace = make_trace(12)
    with make(trace) as widget:
        record = trace.steps[widget.step]
        assert 0 < record.num_accepted < len(record.draft_ids)
        widget.step = 99
        assert widget.step == 11
        widget.step, widget.pos = -1, 99
        assert (widget.step, widget.pos) == (0, 15)
        widget.pos = None
        assert widget.pos is None
        assert widget.summary["n"] == 12
        json.dumps(widget.get_state(), allow_nan=False)


def test_the_page_moves_python_and_python_sees_one_change():
    seen = []
    with Grid(make_trace(12), step=2) as widget:
        widget.observe(lambda change: seen.append((widget.step, widget.pos)), ["step", "pos"])
        widget._handle_msg({"content": {"data": {"method": "update", "state": {"step": 7, "pos": 3}}}, "buffers": []})
    assert set(seen) == {(7, 3)}


def test_python_moves_the_page(sent):
    with Grid(make_trace(12), step=2) as widget:
        sent.clear()
        widget.step = 5
        assert [message["state"] for message, _ in sent] == [{"step": 5}]


def test_steps_go_out_one_at_a_time_as_buffers(sent):
    trace = make_trace(12)
    with Grid(trace) as widget:
        sent.clear()
        ask(widget, {"get": 4})
        ask(widget, {"get": 12})
    (first, (data,)), (second, none) = sent
    assert first == {"method": "custom", "content": {"step": 4}}
    assert json.loads(data) == step_wire(trace, 4)
    assert second["content"] == {"step": 12, "error": "step must be in 0..11, got 12"}
    assert not none


@pytest.mark.parametrize("leave_out", [(), ("candidate_ids", "unary", "edges", "path")])
def test_selected_names_the_token(leave_out):
    trace = make_trace(12, leave_out=leave_out)
    with Grid(trace) as widget:
        ask(widget, {"select": {"step": 3, "pos": 2, "rank": 1}})
        column = [trace.steps[3].draft_ids[1]] if leave_out else trace.tensor("candidate_ids", 3)[1]
        token = {"token_id": int(column[0]), "token": trace.token(int(column[0])).text}
        assert widget.selected == {"step": 3, "pos": 2, "rank": 1} | token


@pytest.mark.parametrize(
    "content",
    [
        None, [], {}, "get", {"get": "1"}, {"select": {}}, {"select": {"step": 99, "pos": 1, "rank": 1}},
        {"select": {"step": 1, "pos": 0, "rank": 1}}, {"select": {"step": 1, "pos": 1, "rank": 17}},
    ],
)  # fmt: skip
def test_a_message_that_means_nothing_changes_nothing(content):
    with Grid(make_trace(4)) as widget:
        widget._answer(widget, content, [])
        assert widget.selected == {}


@pytest.mark.parametrize("make", KINDS)
def test_the_static_picture_is_escaped_and_shows_the_same_step(make):
    trace = make_trace(12, hostile=True)
    with make(trace, step=6) as widget:
        data, _ = widget._repr_mimebundle_()
    html = data["text/html"]
    assert "application/vnd.jupyter.widget-view+json" in data
    assert "step 6 (of 12, from 0)" in html
    assert "<img" not in html
    assert "<script" not in html
    assert any(token.replace("<", "&lt;").replace(">", "&gt;") in html for token in HOSTILE if token.startswith("<"))


@pytest.mark.parametrize("trace", [make_trace(0), make_trace(0, status="cancelled"), make_trace(3, kind="ar")])
def test_traces_without_drafts_are_shown(trace):
    with inspect(trace) as widget:
        assert (widget.step, widget.pos) == (0, None)
        html = widget.still()
    assert ("no verification steps" in html) == (not len(trace))


def test_a_page_in_a_frame_needs_no_channel():
    page = inspect(make_trace(6, hostile=True), step=2, mode="html")._repr_html_()
    assert page.startswith('<iframe srcdoc="')
    assert page.count("<") == 2
    with pytest.raises(RequestError, match="mode must be widget or html, got 'svg'"):
        inspect(make_trace(1), mode="svg")


@pytest.mark.parametrize("make", KINDS)
def test_what_is_no_trace_is_named(make):
    with pytest.raises(RequestError, match=r"a widget shows a Trace, got str: open a file with load_trace\(path\)"):
        make("run.safetensors", step=0)


def test_closing_frees_everything():
    from ipywidgets.widgets import widget as registry

    gc.collect()
    before, alive = len(registry._instances), []
    for i in range(50):
        trace = make_trace(2)
        made = KINDS[i % 3](trace)
        alive += [weakref.ref(made), weakref.ref(trace)]
        made.close()
        made.close()
    del made, trace
    gc.collect()
    assert [ref() for ref in alive if ref() is not None] == []
    assert len(registry._instances) == before


def test_a_cell_that_runs_again_closes_what_it_made(monkeypatch):
    parent = {}
    shell = type("Shell", (), {"get_parent": lambda self: parent})()
    monkeypatch.setattr(base, "get_ipython", lambda: shell)
    trace = make_trace(2)

    def run(cell, message, count=1):
        parent.update(metadata={"cellId": cell}, header={"msg_id": message})
        return [Grid(trace) for _ in range(count)]

    first, second = run("a", "1", 2)
    (other,) = run("b", "2")
    assert all(widget.comm is not None for widget in (first, second, other))
    (third,) = run("a", "3")
    assert [widget.comm is None for widget in (first, second, other, third)] == [True, True, False, False]
    other.close()
    third.close()


def test_plain_python_without_a_display_raises_nothing():
    program = (
        "import dflash_lab as dl; trace = dl.example_trace(); w = dl.inspect(trace); w.step = 3; print(w); "
        "g = dl.Grid(trace, step=2, pos=1); g.close(); dl.StepTimeline(trace)"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=True)
    assert "Inspector" in done.stdout
    assert done.stderr == ""
