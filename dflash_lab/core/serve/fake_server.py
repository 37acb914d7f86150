"""A fake SGLang or vLLM server: true to the protocol, with an acceptance process and a clock that are known exactly.

For tests and demonstrations of everything that measures servers. Its text depends on the prompt alone, as that of a
lossless server does; how many proposals each step accepts is drawn from the configured process.

    with FakeServer(FakeModel(acceptance=(0.9, 0.8, 0.7))) as server:
        print(server.url, server.model.acceptance_length)
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Mapping
from typing import Any

from dflash_lab.core.serve import sglang_bodies
from dflash_lab.core.serve.fake_http import HttpServer, Reply, Request
from dflash_lab.core.serve.fake_model import Decoded, FakeModel, Ledger, chunks, decode
from dflash_lab.core.serve.fake_voices import Finished, State, voice_of

_OPEN = ("/metrics", "/health")
"""Pages that need no key."""


class FakeServer(HttpServer):
    """A server that behaves like `model`; its address is `url` inside the `with` block."""

    def __init__(self, model: FakeModel | None = None) -> None:
        super().__init__()
        self.model = model or FakeModel()
        drafts = self.model.drafts_per_step
        self.ledger = Ledger(histogram=[0] * (drafts + 1) if drafts else [])
        self._voice = voice_of(self.model)
        self._slots = asyncio.Semaphore(self.model.max_running)
        self._running = self._waiting = 0

    async def handle(self, request: Request, reply: Reply) -> None:
        """Answer one request."""
        model, path = self.model, request.path.partition("?")[0]
        key = request.headers.get("authorization")
        if model.api_key and path not in _OPEN and key != f"Bearer {model.api_key}":
            await reply.json(sglang_bodies.error("Unauthorized", 401), 401)
        elif path == "/v1/models":
            await reply.json(sglang_bodies.models(model.name, model.backend, 0, model.max_model_len))
        elif path == "/v1/chat/completions":
            await self._chat(request, reply)
        elif path == "/tokenize" and model.tokenizer:
            await reply.json({"count": len(str(request.body["prompt"]).split())})
        else:
            page = self._voice.page(path, State(self._running, self._waiting, self.ledger))
            if page is None:
                await reply.json({"detail": "Not Found"}, 404)
            else:
                await (reply.text(page) if isinstance(page, str) else reply.json(page))

    async def _chat(self, request: Request, reply: Reply) -> None:
        model, body = self.model, request.body
        if body["model"] != model.name:
            await reply.json(sglang_bodies.error(f"The model `{body['model']}` does not exist.", 404), 404)
            return
        if model.backend == "sglang" and body.get("stream") and body.get("return_meta_info"):
            await reply.json(sglang_bodies.error("return_meta_info is not supported with streaming.", 400), 400)
            return
        self.ledger.bodies.append(body)
        self._waiting += 1
        async with self._slots:
            self._waiting, self._running = self._waiting - 1, self._running + 1
            try:
                prompt = str(body["messages"][-1]["content"])
                kind = model.failures.get(prompt)
                if kind in (None, "aborted", "empty"):
                    await self._answer(request, prompt, kind, reply)
                else:
                    await self._fail(kind, body, prompt, reply)
            finally:
                self._running -= 1

    async def _answer(self, request: Request, prompt: str, kind: str | None, reply: Reply) -> None:
        """Write the answer in the time that it takes, and note it."""
        body = request.body
        model = self.model
        decoded = decode(
            dataclasses.replace(model, output_tokens=0) if kind == "empty" else model, prompt, body["max_tokens"]
        )
        began, slower = time.perf_counter(), model.slow.get(prompt, 1.0)
        due = [began + slower * (model.prefill_s + i * model.step_s) for i in range(len(decoded.commits))]
        pieces = [model.text_of(prompt, i, self._running == 1) for i in range(decoded.num_tokens)]
        answer = self._finished(body, prompt, kind, decoded, pieces)
        if not body.get("stream"):
            await _until(due[-1])
            self._note(answer, request)
            await reply.json(self._voice.whole(answer))
            self._note_end(request)
            return
        await reply.begin_events()
        for moment, first, end in chunks(decoded.commits, due, model.tokens_per_chunk):
            await _until(moment)
            await self._send_text(pieces, first, end, reply)
        self._note(answer, request)
        for event in self._voice.closing(answer):
            await reply.event(event)
        await reply.event("[DONE]")
        await reply.end_events()
        self._note_end(request)

    async def _send_text(self, pieces: list[str], first: int, end: int, reply: Reply) -> None:
        """The tokens from `first` to before `end`, reasoning and text apart."""
        border = min(max(self.model.reasoning_tokens, first), end)
        for start, stop, reasoning in ((first, border, True), (border, end, False)):
            if stop > start:
                await reply.event(self._voice.piece("".join(pieces[start:stop]), reasoning))

    def _finished(
        self, body: Mapping[str, Any], prompt: str, kind: str | None, decoded: Decoded, pieces: list[str]
    ) -> Finished:
        border = self.model.reasoning_tokens
        return Finished(
            text="".join(pieces[border:]),
            reasoning="".join(pieces[:border]),
            finish_reason="abort" if kind == "aborted" else decoded.finish_reason,
            histogram=decoded.histogram,
            completion_tokens=decoded.num_tokens,
            reasoning_tokens=min(border, decoded.num_tokens),
            prompt_tokens=len(prompt.split()),
            cached_tokens=self.model.cached(prompt, body.get("cache_salt")),
            asked=body,
        )

    def _note(self, answer: Finished, request: Request) -> None:
        """Count an answer when its last token is there, as SGLang does."""
        ledger = self.ledger
        ledger.spans.append((request.arrived_s, time.perf_counter(), answer.completion_tokens))
        ledger.prompt_tokens += answer.prompt_tokens
        ledger.cached_tokens += answer.cached_tokens
        if ledger.histogram:
            ledger.histogram = [a + b for a, b in zip(ledger.histogram, answer.histogram, strict=True)]

    def _note_end(self, request: Request) -> None:
        """Put off the end of an answer until it is written."""
        spans = self.ledger.spans
        index = next(i for i, span in enumerate(spans) if span[0] == request.arrived_s)
        spans[index] = (request.arrived_s, time.perf_counter(), spans[index][2])

    async def _fail(self, kind: str, body: Mapping[str, Any], prompt: str, reply: Reply) -> None:
        """Meet a request with a failure of this kind."""
        streamed = bool(body.get("stream"))
        first = self._voice.piece("w0", reasoning=False)
        if kind in ("die", "cut", "error", "malformed") and streamed:
            await reply.begin_events()
            await reply.event(first)
        match kind:
            case "die":
                self.die()
                reply.abort()
            case "connection":
                reply.abort()
            case "timeout":
                await asyncio.sleep(3600)
            case "status":
                await reply.json(sglang_bodies.error("out of memory", 500, "InternalServerError"), 500)
            case "cut":
                if not streamed:
                    await reply.raw(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{")
                reply.abort()
            case "error":
                failed = {"error": {"message": "the scheduler died", "code": 500}}
                await (reply.event(failed) if streamed else reply.json(failed))
            case "malformed":
                await (reply.event("{oops") if streamed else reply.text("<html>not JSON</html>"))
            case _:
                raise AssertionError(f"no such failure: {kind}")


async def _until(moment: float) -> None:
    """Sleep to a moment, so that lateness does not add up."""
    await asyncio.sleep(max(0.0, moment - time.perf_counter()))
