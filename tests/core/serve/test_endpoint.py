"""Answers whole and in pieces, and every way in which one can fail, told apart."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from dflash_lab.core.errors import ServerError
from dflash_lab.core.serve.endpoint import Answer, Endpoint, RequestFailure, base_address, is_local
from dflash_lab.core.serve.fake_http import HttpServer
from dflash_lab.core.serve.fake_model import FakeModel
from dflash_lab.core.serve.fake_server import FakeServer
from dflash_lab.core.serve.sse import EventDecoder
from dflash_lab.core.serve.stats import stats_of

STREAM = (Path(__file__).parent / "captures" / "vllm_0.32.0_chat_stream_ngram.txt").read_bytes()
NAME = FakeModel().name


def ask(url: str, timeout_s: float = 5.0, **body) -> Answer:
    async def go() -> Answer:
        async with Endpoint(url, timeout_s=timeout_s) as endpoint:
            usual = {"model": NAME, "max_tokens": 40, "messages": [{"role": "user", "content": "hello"}]}
            return await endpoint.complete(usual | body)

    return asyncio.run(go())


@pytest.mark.parametrize("size", [1, 7, 1000, 10**6])
def test_events_come_out_of_any_pieces(size):
    decoder, events = EventDecoder(), []
    for start in range(0, len(STREAM), size):
        events += decoder.feed(STREAM[start : start + size])
    assert len(events) == 14
    assert events[-1] == "[DONE]"
    assert json.loads(events[0])["object"] == "chat.completion.chunk"
    assert not decoder.rest


def test_events_of_every_spelling():
    decoder = EventDecoder()
    text = ": a comment\r\nevent: x\r\ndata: é\r\ndata:two\r\n\r\n\ndata: half".encode()
    assert decoder.feed(text[:23]) + decoder.feed(text[23:]) == ["é\ntwo"]
    assert decoder.rest


class Captured(HttpServer):
    """Serves the captured stream, in pieces that respect nothing."""

    async def handle(self, request, reply):
        await reply.begin_events()
        for start in range(0, len(STREAM), 333):
            piece = STREAM[start : start + 333]
            await reply.raw(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        await reply.end_events()


def test_a_captured_stream_of_vllm():
    with Captured() as server:
        answer = ask(server.url, stream=True)
    assert answer.text == " w" * 40
    assert answer.finish_reason == "length"
    assert len(answer.chunk_s) == 11
    assert answer.body["usage"]["completion_tokens"] == 40
    assert stats_of(answer.body, 40).num_steps == 9


@pytest.mark.parametrize("backend", ["sglang", "vllm", "llamacpp"])
@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_and_text_are_told_apart_under_both_names(backend, stream):
    with FakeServer(FakeModel(backend=backend, output_tokens=6, reasoning_tokens=2)) as server:
        answer = ask(server.url, stream=stream)
    assert (answer.reasoning, answer.text) == (" w0 w1", " w2 w3 w4 w5")
    assert answer.body["usage"]["completion_tokens"] == 6


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("kind", "complaint"),
    [
        ("connection", ""),
        ("timeout", "no complete answer within 0.3 s"),
        ("status", "HTTP 500: out of memory"),
        ("error", "the scheduler died"),
        ("cut", ""),
        ("malformed", "expected JSON"),
    ],
)
def test_each_failure_has_its_kind(kind, complaint, stream):
    with FakeServer(FakeModel(failures={"hello": kind})) as server, pytest.raises(RequestFailure) as caught:
        ask(server.url, timeout_s=0.3 if kind == "timeout" else 5, stream=stream)
    assert caught.value.kind == kind
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


class Raw(HttpServer):
    """Answers with bytes."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self.data = data

    async def handle(self, request, reply):
        await reply.raw(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(self.data) + self.data)


@pytest.mark.parametrize(
    ("data", "stream", "kind"),
    [
        (b"[]", False, "malformed"),
        (b'{"choices": []}', False, "malformed"),
        (b'{"choices": [5]}', False, "malformed"),
        (b"", False, "malformed"),
        (b"\xff\xfe", False, "malformed"),
        (b"data: 5\n\n", True, "malformed"),
        (b"data: {oops\n\n", True, "malformed"),
        (b"data: \xff\n\n", True, "malformed"),
        (b'data: {"choices": [5]}\n\n', True, "malformed"),
        (b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n', True, "cut"),
        (b'data: {"choices": [{"delta": {"content": "a"}}]}\n\ndata: {"cho', True, "cut"),
        (b"", True, "cut"),
        (b'data: {"error": "no"}\n\n', True, "error"),
        (b'{"error": {"message": "no"}}', False, "error"),
    ],
)
def test_what_is_not_the_protocol_is_a_failure_of_a_kind(data, stream, kind):
    with Raw(data) as server, pytest.raises(RequestFailure) as caught:
        ask(server.url, stream=stream)
    assert caught.value.kind == kind


def test_a_stream_without_done_but_with_a_reason_is_whole():
    data = b'data: {"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}]}\n\n'
    with Raw(data) as server:
        assert ask(server.url, stream=True).finish_reason == "stop"


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("http://localhost:30000", "http://localhost:30000"),
        ("http://localhost:30000/", "http://localhost:30000"),
        ("http://h:1/v1", "http://h:1"),
        ("https://h/proxy/v1/chat/completions", "https://h/proxy"),
        (" http://h:1/v1/ ", "http://h:1"),
        ("localhost:8000", "http://localhost:8000"),
        ("127.0.0.1:8000/v1", "http://127.0.0.1:8000"),
    ],
)
def test_addresses_are_taken_with_or_without_the_path(given, address):
    assert base_address(given) == address


@pytest.mark.parametrize("given", ["", "localhost", "ftp://h", "http://", "http://h:99999", "file:///etc/passwd"])
def test_what_is_no_address_is_refused(given):
    with pytest.raises(ServerError, match="expected a server's address"):
        base_address(given)


def test_this_machine_by_its_names():
    assert all(map(is_local, ("http://localhost:1", "http://127.0.0.1", "http://[::1]:5")))
    assert not any(map(is_local, ("http://example.org", "http://10.0.0.1:5")))


def test_a_prefix_in_the_address_is_kept():
    with FakeServer() as server:

        async def go():
            async with Endpoint(f"{server.url}/proxy") as endpoint:
                return (await endpoint.page("/v1/models")).request.url.path

        assert asyncio.run(go()) == "/proxy/v1/models"
