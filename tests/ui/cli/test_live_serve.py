"""`live serve`: says where it is, serves until Ctrl-C, refuses what it cannot serve."""

import json
import signal
import socket
import subprocess
import sys
import threading

import httpx
import pytest

PROGRAM = """
import sys
sys.path.insert(0, {tests!r})
from toy_pair import make_pair
from dflash_lab.core import generate
generate.load_pair = lambda *names, **options: make_pair()
from dflash_lab.ui.cli.main import main
main(["live", "serve", "--port", "0", "--max-new-tokens", "12", "--json"])
"""


def test_it_serves_until_interrupted_and_tells_what_it_did():
    from toy_pair import __file__ as toy

    program = PROGRAM.format(tests=toy.rsplit("/", 1)[0])
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    guard = threading.Timer(60, process.kill)
    guard.start()
    try:
        lines = [process.stderr.readline()]
        while lines[-1] and not lines[-1].startswith("serving "):
            lines.append(process.stderr.readline())
        assert lines[-1].startswith("serving SmolLM2-135M-Instruct at http://127.0.0.1:")
        assert lines[-1].endswith(", drafter toy drafter, block 4, 3 candidates; Ctrl-C ends it\n")
        assert "warning: the toy pair knows no words\n" in lines
        url = lines[-1].split()[3].rstrip(",")
        body = {"messages": [{"role": "user", "content": "the duck"}]}
        usage = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=20, trust_env=False).json()["usage"]
        assert usage["completion_tokens"] == 12, "the limit of the command line"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    finally:
        guard.cancel()
        process.kill()
    assert (process.returncode, err) == (0, "")
    found = json.loads(out)
    assert (found["url"], found["num_requests"], found["completion_tokens"]) == (url, 1, 12)
    assert found["verification_steps"] > 0


@pytest.mark.usefixtures("toy_pair")
def test_what_cannot_be_served_is_one_line(command, monkeypatch):
    monkeypatch.delenv("DFLASH_LAB_API_KEY", raising=False)
    done = command("live", "serve", "--host", "0.0.0.0")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert done.err.startswith("error: expected a loopback address or a key, got host '0.0.0.0' without one")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = command("live", "serve", "--port", port)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert done.err.startswith(f"error: cannot serve at 127.0.0.1 port {port} (Address already in use)")
    done = command("live", "serve", "--port", 0, "--block-size", 1)
    assert done.code == 2
    assert "block" in done.err.splitlines()[-1]


def test_without_fastapi_it_says_what_to_install(command, monkeypatch):
    monkeypatch.setitem(sys.modules, "fastapi", None)
    for name in [name for name in sys.modules if name.startswith("dflash_lab.ui.server")]:
        monkeypatch.delitem(sys.modules, name)
    done = command("live", "serve")
    assert done.code == 2
    assert done.err.endswith("the server needs fastapi; pip install 'dflash-lab[ui]'\n")
