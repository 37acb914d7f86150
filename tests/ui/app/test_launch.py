"""Starting the server: where it listens, who may ask, what it serves."""

from __future__ import annotations

import socket
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from toytraces import make_trace

from dflash_lab.core.errors import DataError, RequestError, RunError
from dflash_lab.core.trace import store as trace_store
from dflash_lab.ui.app import build
from tests.core.ablate.toy_rows import make_row
from tests.ui.toysweep import write_results

pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture(autouse=True)
def example(tidy, monkeypatch):
    monkeypatch.setattr("dflash_lab.ui.app.session.example_trace", lambda: make_trace(3))


def status(url: str, data: bytes | None = None) -> int:
    try:
        with urlopen(Request(url, data, {"Content-Type": "application/json"})) as answer:
            return answer.status
    except HTTPError as error:
        error.close()
        return error.code


def test_serves_the_traces_it_is_given_and_nothing_else(tmp_path, capsys):
    file = tmp_path / "mine.safetensors"
    trace_store.save(make_trace(4, seed=8), file)
    app = build.launch([file], open_browser=False, block=False)
    try:
        assert app.local_url.startswith("http://127.0.0.1:")
        assert app.local_url in capsys.readouterr().err
        assert status(f"{app.local_url}gradio_api/file={build.STATIC_DIR}/inspector.js") == 200
        for path in (file, build.STATIC_DIR.parent / "wire.py", build.PAGE_DIR / "page.js"):
            assert status(f"{app.local_url}gradio_api/file={path}") in (403, 404)
        assert status(f"{app.local_url}monitoring") in (403, 404)
        with pytest.raises(RequestError, match="--port"):
            build.launch([], port=app.server_port, open_browser=False, block=False)
    finally:
        app.close(verbose=False)


def test_folders_are_told_apart_by_what_they_hold(tmp_path):
    sweep, runs = write_results(tmp_path / "sweep", [make_row(8)]), tmp_path / "runs"
    runs.mkdir()
    with pytest.raises(RunError, match="holds no runs"):
        build.launch([sweep, runs], open_browser=False, block=False)
    (sweep / "results.jsonl").write_text("{}\n")
    for path in (sweep, sweep / "results.jsonl"):
        with pytest.raises(DataError, match="row 1: not a row of a sweep"):
            build.launch([path], open_browser=False, block=False)


def test_with_a_password_nothing_is_answered_without_it():
    app = build.launch([], open_browser=False, block=False, auth="ada:secret")
    try:
        for path in ("config", f"gradio_api/file={build.STATIC_DIR}/inspector.js"):
            assert status(app.local_url + path) == 401
        ask = b'{"session_hash": "x", "component_id": 0, "fn_name": "trace_summary", "data": {}}'
        assert status(app.local_url + "gradio_api/component_server", ask) == 401
    finally:
        app.close(verbose=False)


def test_a_network_address_is_refused_before_anything_starts():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(RequestError, match="0.0.0.0"):
        build.launch([], host="0.0.0.0", port=port, open_browser=False, block=False)
