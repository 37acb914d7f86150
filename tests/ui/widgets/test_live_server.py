"""A live server in a notebook: watched by its counters, or a run by its file; stopped, closed, kept as a picture."""

from __future__ import annotations

import gc
import gzip
import json
import time
import weakref

import pytest

from dflash_lab.core.errors import RunError, ServerError
from dflash_lab.core.serve.fake_model import FakeModel
from dflash_lab.core.serve.fake_server import FakeServer
from tests.ui.toyruns import measure_fake

pytest.importorskip("anywidget")
from dflash_lab.ui.widgets.server import LiveServer


@pytest.fixture
def sent(monkeypatch):
    """What a widget sends to its page, as (message, buffers)."""
    messages = []
    monkeypatch.setattr(LiveServer, "_send", lambda self, message, buffers=None: messages.append((message, buffers)))
    return messages


def wait_for(condition, seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.01)


def number(live: LiveServer, name: str) -> float | None:
    return next(item["value"] for item in live.view["numbers"] if item["name"] == name)


def figure(live: LiveServer, name: str) -> dict:
    return next(item for item in live.view["figures"] if item["id"] == name)


def counted(live: LiveServer) -> int:
    """Verification steps in the histogram."""
    return int((figure(live, "histogram")["note"] or "0").split()[0].replace(",", ""))


def test_a_server_is_watched_until_stopped(tmp_path):
    model = FakeModel(backend="vllm", acceptance=(0.9, 0.8, 0.7))
    with FakeServer(model) as server, LiveServer(server.url, interval_s=0.05) as live:
        wait_for(lambda: figure(live, "requests")["data"])
        assert live.view["state"] == "running"
        measure_fake(server.url, tmp_path / "run.jsonl", num_prompts=8)
        steps = sum(server.ledger.histogram)
        wait_for(lambda: counted(live) == steps)
        assert number(live, "acceptance length") == pytest.approx(model.acceptance_length, rel=0.1)
        live.stop()
        assert live.view["state"] == "stopped"
        assert live.view["stoppable"] is False
        assert counted(live) == steps
        json.dumps(live.get_state(), allow_nan=False)


def test_a_run_is_read_to_its_end(tmp_path):
    with FakeServer() as server:
        run = measure_fake(server.url, tmp_path / "run.jsonl", num_prompts=6)
    with LiveServer(run.path, interval_s=0.05) as live:
        assert live.view["state"] == "complete"
        assert live.view["message"] == "6 of 6 answered"
        assert [item["hardware"] for item in live.view["published"]] == ["1x NVIDIA GB300"]
        live._worker.join(5)
        assert not live._worker.is_alive()


def test_what_is_watched_may_come_later_and_go(tmp_path):
    with FakeServer() as server:
        url = server.url
    with LiveServer(url, interval_s=0.05) as live:
        wait_for(lambda: live.view["state"] == "failed")
        assert "no server answers" in live.view["message"]
        assert "no server answers" in live.still()


def test_wrong_sources_are_named(tmp_path):
    with pytest.raises(ServerError, match="expected a server's address"):
        LiveServer("nonsense")
    with pytest.raises(RunError, match="cannot read the run"):
        LiveServer(tmp_path / "nowhere.jsonl")


def test_the_page_gets_plotly_and_stops(tmp_path, sent):
    with FakeServer() as server:
        live = LiveServer(server.url, interval_s=0.05)
        sent.clear()
        live._handle_msg({"content": {"data": {"method": "custom", "content": {"plotly": True}}}, "buffers": []})
        ((message, (packed,)),) = [(m, b) for m, b in sent if m["method"] == "custom"]
        assert message["content"] == {"plotly": True}
        assert b"plotly.js v" in gzip.decompress(packed)[:200]
        live._handle_msg({"content": {"data": {"method": "custom", "content": {"stop": True}}}, "buffers": []})
        wait_for(lambda: live.view["state"] == "stopped")
        live.close()


def test_the_saved_notebook_keeps_numbers_and_survival_as_text(tmp_path):
    with FakeServer(FakeModel(name="<img src=x onerror=alert(1)>")) as server:
        run = measure_fake(server.url, tmp_path / "run.jsonl", num_prompts=4)
    with LiveServer(run.path) as live:
        live.view = live.view | {"title": "<img src=x onerror=alert(1)>"}
        data, _ = live._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in data
    assert "<img" not in data["text/html"]
    assert "acceptance length" in data["text/html"]
    assert "<polyline" in data["text/html"]


def test_closing_ends_and_frees_it():
    with FakeServer() as server:
        live = LiveServer(server.url, interval_s=0.05)
        alive = weakref.ref(live)
        live.close()
        del live
        gc.collect()
        assert alive() is None
