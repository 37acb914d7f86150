"""An OpenAI-style server as this side sees it: JSON pages, chat answers whole or streamed, failures by kind.

Every request opens a connection of its own, as z-lab's client does: a kept one may be closed by the server at the very
moment it is used again, which would count as a failure of the server's.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import urlsplit

import httpx

from dflash_lab.core.errors import ServerError
from dflash_lab.core.serve.records import FAILURES
from dflash_lab.core.serve.sse import EventDecoder

KEY_VARIABLE = "DFLASH_LAB_API_KEY"
"""Environment variable with the server's API key. Not an option: command lines are recorded."""

PAGE_TIMEOUT_S = 10.0
"""Longest wait for a page that is not an answer. SGLang's may take a second."""

_CLOSING = ("usage", "sglext", "metrics", "system_fingerprint", "meta_info")
"""Fields of an answer beside its choices; in a stream they come with its last chunks."""


class RequestFailure(Exception):
    """A request without a usable answer."""

    def __init__(self, kind: str, message: str) -> None:
        assert kind in FAILURES, kind
        super().__init__(" ".join(message.split())[:300])
        self.kind = kind


@dataclass(frozen=True)
class Answer:
    """What came back for one request."""

    text: str
    """The content."""
    reasoning: str
    """The reasoning before it, where the server tells them apart."""
    finish_reason: str | None
    """`stop`, `length`, `abort`, ..."""
    body: Mapping[str, Any]
    """Usage and statistics: the whole body, or the closing chunks of a stream put together."""
    duration_s: float
    """From sending to the last byte."""
    chunk_s: tuple[float, ...] = ()
    """When each chunk with text came; empty if not streamed."""


@dataclass
class _Parts:
    """A streamed answer under way."""

    began: float
    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    finish_reason: str | None = None
    body: dict[str, Any] = field(default_factory=dict)
    chunk_s: list[float] = field(default_factory=list)
    done: bool = False

    def answer(self) -> Answer:
        elapsed = time.perf_counter() - self.began
        text, reasoning = "".join(self.text), "".join(self.reasoning)
        return Answer(text, reasoning, self.finish_reason, self.body, elapsed, tuple(self.chunk_s))


class Endpoint:
    """One server. Use it as an async context manager."""

    def __init__(self, url: str, api_key: str | None = None, timeout_s: float = 3600.0) -> None:
        """`url`: base address, with or without `/v1`. Raises ServerError if it is not an address."""
        self.url = base_address(url)
        self.local = is_local(self.url)
        self._timeout_s = timeout_s
        self._client = httpx.AsyncClient(
            base_url=self.url,
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=httpx.Timeout(None, connect=PAGE_TIMEOUT_S),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
            trust_env=not self.local,  # a proxy has no business between us and this machine
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._client.aclose()

    async def page(self, path: str) -> httpx.Response:
        """A page, whatever its status. Raises ServerError if there is no answer at all."""
        try:
            async with asyncio.timeout(PAGE_TIMEOUT_S):
                return await self._client.get(path)
        except (httpx.HTTPError, TimeoutError) as error:
            raise ServerError(
                f"no server answers at {self.url} ({_reason(error)}); start one, or mend the address"
            ) from error

    async def json_page(self, path: str) -> Any:
        """A page's JSON, or None if the server has no such page or it is not JSON. Raises ServerError as `page`."""
        response = await self.page(path)
        if response.status_code != 200:
            return None
        try:
            return response.json()
        except ValueError:
            return None

    async def alive(self) -> bool:
        """Whether the server answers anything at all."""
        try:
            await self.page("/v1/models")
        except ServerError:
            return False
        return True

    async def complete(self, body: Mapping[str, Any]) -> Answer:
        """The answer to a chat request, streamed if the body says so. Raises RequestFailure."""
        streamed = bool(body.get("stream"))
        answering = False
        try:
            async with asyncio.timeout(self._timeout_s):
                began = time.perf_counter()
                async with self._client.stream("POST", "/v1/chat/completions", json=body) as response:
                    answering = True
                    if response.status_code != 200:
                        await response.aread()
                        raise RequestFailure("status", f"HTTP {response.status_code}: {_complaint(response)}")
                    return await (_streamed if streamed else _whole)(response, began)
        except TimeoutError:
            raise RequestFailure("timeout", f"no complete answer within {self._timeout_s:g} s") from None
        except httpx.HTTPError as error:
            raise RequestFailure("cut" if answering else "connection", _reason(error)) from error

    async def count_tokens(self, model: str, text: str) -> int | None:
        """Tokens of `text` by the server's own tokenizer; None if it does not offer it."""
        try:
            async with asyncio.timeout(PAGE_TIMEOUT_S):
                response = await self._client.post(
                    "/tokenize", json={"model": model, "prompt": text, "add_special_tokens": False}
                )
            count = response.json().get("count") if response.status_code == 200 else None
        except (httpx.HTTPError, TimeoutError, ValueError, AttributeError):
            return None
        return count if isinstance(count, int) else None


def base_address(url: str) -> str:
    """`url` without its path to the API; a bare `host:port` is taken as http. Raises ServerError."""
    text = url.strip()
    if re.fullmatch(r"[\w.-]+:\d+(/.*)?", text):
        text = f"http://{text}"
    try:
        parts = urlsplit(text)
        valid = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        valid = False
    if not valid:
        raise ServerError(f"expected a server's address such as http://127.0.0.1:30000, got {url!r}")
    return re.sub(r"(/v1(/chat/completions|/models)?)?/*$", "", text)


def is_local(url: str) -> bool:
    """Whether `url` is on this machine, by its name."""
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def _whole(response: httpx.Response, began: float) -> Answer:
    """An answer in one piece."""
    data = await response.aread()
    elapsed = time.perf_counter() - began
    try:
        body = json.loads(data)
    except ValueError:
        raise RequestFailure("malformed", f"expected JSON, got {data[:60]!r}") from None
    if isinstance(body, dict) and body.get("error"):
        raise RequestFailure("error", _error_text(body["error"]))
    try:
        choice = body["choices"][0]
        message = choice["message"]
        text, reasoning = _text(message.get("content")), _reasoning(message)
    except (KeyError, IndexError, TypeError, AttributeError):
        raise RequestFailure("malformed", "the answer has no choices[0].message") from None
    return Answer(text, reasoning, _finish_reason(choice), body, elapsed)


async def _streamed(response: httpx.Response, began: float) -> Answer:
    """An answer in chunks, each with the time at which it came."""
    parts, decoder = _Parts(began), EventDecoder()
    try:
        async for data in response.aiter_raw():
            now = time.perf_counter() - began
            for event in decoder.feed(data):
                _take(parts, event, now)
    except UnicodeDecodeError as error:
        raise RequestFailure("malformed", f"the stream is not UTF-8: {error.reason}") from None
    if decoder.rest:
        raise RequestFailure("cut", "the stream ended within an event")
    if not parts.done and parts.finish_reason is None:
        raise RequestFailure("cut", "the stream ended without a finish reason and without [DONE]")
    return parts.answer()


def _take(parts: _Parts, event: str, now: float) -> None:
    """One event of a stream. Raises RequestFailure."""
    if event.strip() == "[DONE]":
        parts.done = True
        return
    try:
        chunk = json.loads(event)
    except ValueError:
        raise RequestFailure("malformed", f"expected JSON in a stream's event, got {event[:60]!r}") from None
    if not isinstance(chunk, dict):
        raise RequestFailure("malformed", f"expected a JSON object in a stream's event, got {event[:60]!r}")
    if chunk.get("error"):
        raise RequestFailure("error", _error_text(chunk["error"]))
    parts.body |= {name: chunk[name] for name in _CLOSING if chunk.get(name) is not None}
    try:
        for choice in (chunk.get("choices") or ())[:1]:  # closing chunks have none
            _take_choice(parts, choice, now)
    except (AttributeError, TypeError):
        raise RequestFailure("malformed", f"expected a choice with a delta, got {event[:60]!r}") from None


def _take_choice(parts: _Parts, choice: Mapping[str, Any], now: float) -> None:
    delta = choice.get("delta") or {}
    text, reasoning = _text(delta.get("content")), _reasoning(delta)
    if text or reasoning:
        parts.text.append(text)
        parts.reasoning.append(reasoning)
        parts.chunk_s.append(now)
    parts.finish_reason = _finish_reason(choice) or parts.finish_reason


def _reasoning(message: Mapping[str, Any]) -> str:
    """SGLang and vLLM have different names for it."""
    return _text(message.get("reasoning_content")) or _text(message.get("reasoning"))


def _text(value: Any) -> str:
    """A text, empty if there is none. Raises TypeError for anything else."""
    if value is not None and not isinstance(value, str):
        raise TypeError(f"expected a text, got {type(value).__name__}")
    return value or ""


def _finish_reason(choice: Mapping[str, Any]) -> str | None:
    reason = choice.get("finish_reason")
    return reason.get("type") if isinstance(reason, dict) else reason


def _complaint(response: httpx.Response) -> str:
    """What the server says of its error, in whichever form."""
    try:
        body = response.json()
    except ValueError:
        return response.text or response.reason_phrase
    if isinstance(body, dict):
        return _error_text(body.get("error") or body.get("message") or body.get("detail") or body)
    return str(body)


def _error_text(error: Any) -> str:
    return str(error.get("message") or error) if isinstance(error, dict) else str(error)


def _reason(error: Exception) -> str:
    """A transport's error in a few words."""
    if isinstance(error, TimeoutError | httpx.TimeoutException):
        return "no answer in time"
    if isinstance(error, httpx.ConnectError):
        return "connection refused or unknown host"
    return str(error) or type(error).__name__
