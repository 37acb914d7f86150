"""A small HTTP/1.1 server for the fake ones, on the standard library: it can also break the protocol."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

_REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 500: "Internal Server Error"}


@dataclass(frozen=True)
class Request:
    """What a client asked."""

    method: str
    """`GET` or `POST`."""
    path: str
    """With its query."""
    headers: Mapping[str, str]
    """By lower-case name."""
    body: Mapping[str, Any]
    """Its JSON; empty if it had none."""
    arrived_s: float
    """When its connection was made, by `time.perf_counter`."""


class Reply:
    """The answer to one request."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    async def json(self, body: Any, status: int = 200) -> None:
        """A whole answer in JSON."""
        await self.text(json.dumps(body), status, "application/json")

    async def text(self, text: str, status: int = 200, kind: str = "text/plain") -> None:
        """A whole answer."""
        data = text.encode()
        await self.raw(_head(status, kind, f"Content-Length: {len(data)}") + data)

    async def begin_events(self) -> None:
        """The head of a stream of server-sent events."""
        await self.raw(_head(200, "text/event-stream", "Transfer-Encoding: chunked"))

    async def event(self, data: Any) -> None:
        """One event: text as it is, anything else as JSON."""
        text = data if isinstance(data, str) else json.dumps(data)
        payload = f"data: {text}\n\n".encode()
        await self.raw(f"{len(payload):x}\r\n".encode() + payload + b"\r\n")

    async def end_events(self) -> None:
        """The proper end of a stream."""
        await self.raw(b"0\r\n\r\n")

    async def raw(self, data: bytes) -> None:
        """Bytes as they are, sent at once."""
        self._writer.write(data)
        await self._writer.drain()

    def abort(self) -> None:
        """Cut the connection without a word."""
        self._writer.transport.abort()


class HttpServer:
    """Serves on a free port of this machine from a thread of its own, for as long as its `with` block lasts."""

    def __init__(self) -> None:
        self.url = ""
        self._connections: set[asyncio.Task] = set()
        self._server: asyncio.Server | None = None

    async def handle(self, request: Request, reply: Reply) -> None:
        """Answer one request; to be given by the server that is faked."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        # Not before: a server that is never entered would leave its loop open.
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fake server", daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)
        return self

    def __exit__(self, *error: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def die(self) -> None:
        """Stop listening and cut every connection, as a server that crashes; called from within a handler."""
        assert self._server is not None
        self._server.close()
        for task in self._connections - {asyncio.current_task()}:
            task.cancel()

    async def _start(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _stop(self) -> None:
        if self._server is not None:
            self._server.close()
        tasks = list(self._connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self.handle(await _read(reader), Reply(writer))
        except asyncio.CancelledError:
            writer.transport.abort()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client went away
        finally:
            self._connections.discard(task)
            writer.close()
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()


def _head(status: int, kind: str, length: str) -> bytes:
    reason = _REASONS.get(status, "Status")
    lines = (f"HTTP/1.1 {status} {reason}", f"Content-Type: {kind}", length, "Connection: close", "", "")
    return "\r\n".join(lines).encode()


async def _read(reader: asyncio.StreamReader) -> Request:
    arrived = time.perf_counter()
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.strip().split("\r\n")
    method, path, _ = first.split(" ", 2)
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    data = await reader.readexactly(int(headers.get("content-length", 0)))
    return Request(method, path, headers, json.loads(data) if data else {}, arrived)
