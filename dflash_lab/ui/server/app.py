"""The local decoder as a server with SGLang's routes and names. A bench for one machine, not a product."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse
from starlette.exceptions import HTTPException as StarletteHTTPException

from dflash_lab import __version__
from dflash_lab.core.errors import DFlashLabError
from dflash_lab.core.serve import sglang_bodies as sglang
from dflash_lab.core.types import StopReason
from dflash_lab.ui.server.engine import Engine, Failed, Finished, Job, Piece
from dflash_lab.ui.server.requests import ChatBody, parse_chat

OWNER = "dflash-lab"
"""`owned_by` of the model: by this a client tells the server from SGLang."""

FINISH = {StopReason.STOP: "stop", StopReason.LENGTH: "length", StopReason.CONTEXT: "length"}
"""Stop reasons in the protocol's words; a cancelled request says `abort`."""

CLOSED_REQUEST = 499
"""Status of an answer that nobody waits for any more."""

WORDS = f"""dflash-lab {__version__}: a bench for one decoder on one machine, not a product. One request at a time.

POST /v1/chat/completions
GET  /v1/models /server_info /model_info /v1/loads /metrics /health /ready
POST /flush_cache
"""


def create_app(engine: Engine, name: str, facts: Mapping[str, Any], api_key: str | None = None) -> FastAPI:
    """The server over `engine`, its model called `name`.

    `facts` are fields of /server_info that do not change. With `api_key` every route wants it but health, readiness
    and metrics.
    """

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(engine.close)

    app = FastAPI(title="dflash-lab", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.include_router(_open_routes(engine, name))
    keyed = [Depends(_key_check(api_key))] if api_key else []
    app.include_router(_info_routes(engine, name, facts), dependencies=keyed)
    app.include_router(_chat_route(engine, name), dependencies=keyed)
    app.add_exception_handler(DFlashLabError, lambda request, error: _refuse(str(error), 400))
    app.add_exception_handler(StarletteHTTPException, lambda request, error: _refuse(error.detail, error.status_code))
    app.add_exception_handler(Exception, lambda request, error: _refuse(f"{type(error).__name__}: {error}", 500))
    return app


def _key_check(api_key: str) -> Any:
    def check(request: Request) -> None:
        given = request.headers.get("authorization", "").encode()
        if not secrets.compare_digest(given, f"Bearer {api_key}".encode()):
            raise HTTPException(401, "this server wants its key: Authorization: Bearer KEY")

    return check


def _open_routes(engine: Engine, name: str) -> APIRouter:
    routes = APIRouter()

    @routes.get("/")
    def words() -> PlainTextResponse:
        return PlainTextResponse(WORDS)

    @routes.get("/health")
    @routes.get("/health_generate")
    @routes.get("/ready")
    def health() -> Response:
        # The model is loaded before the port answers.
        return Response(status_code=200)

    @routes.get("/metrics")
    def metrics() -> PlainTextResponse:
        labels = {"model_name": name, "engine_type": "unified"}
        text = sglang.metrics_text(engine.counters.families(), labels)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    return routes


def _info_routes(engine: Engine, name: str, facts: Mapping[str, Any]) -> APIRouter:
    routes = APIRouter()
    created = int(time.time())
    max_context = engine.pair.target.info.max_context

    @routes.get("/v1/models")
    def models() -> dict[str, Any]:
        return sglang.models(name, OWNER, created, max_context)

    @routes.get("/v1/models/{model:path}")
    def model(model: str) -> dict[str, Any]:
        _check_model(model, name)
        return sglang.models(name, OWNER, created, max_context)["data"][0]

    @routes.get("/server_info")
    @routes.get("/get_server_info")
    def server_info() -> dict[str, Any]:
        # No environment variable changes what is accepted, and this says so.
        state = {"effective_max_running_requests_per_dp": 1, "env_vars": {}, **engine.counters.state}
        return {**facts, "status": "ready", "internal_states": [state]}

    @routes.get("/model_info")
    @routes.get("/get_model_info")
    def model_info() -> dict[str, Any]:
        return {
            "model_path": facts["model_path"],
            "served_model_name": name,
            "tokenizer_path": facts["tokenizer_path"],
            "is_generation": True,
            "preferred_sampling_params": None,
            "weight_version": "default",
            "load_format": "auto",
            "reasoning_parser": None,
            "architectures": [engine.pair.target.info.architecture],
        }

    @routes.get("/v1/loads")
    def loads() -> dict[str, Any]:
        counters = engine.counters
        load = {
            "dp_rank": 0,
            "num_running_reqs": counters.running,
            "num_waiting_reqs": counters.waiting,
            "max_running_requests": 1,
            "max_total_num_tokens": max_context,
            "gen_throughput": counters.state["last_gen_throughput"],
        }
        if "avg_spec_accept_length" in counters.state:
            load["speculative"] = {"accept_length": counters.state["avg_spec_accept_length"]}
        device = facts["dflash_lab"]["provenance"]["device"]
        return {
            "timestamp": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "version": facts["version"],
            "accelerator": device,
            "num_accelerators": int(device is not None),
            "loads": [load],
        }

    @routes.api_route("/flush_cache", methods=["GET", "POST"])
    def flush_cache() -> Response:
        if engine.counters.flush():
            return PlainTextResponse("Cache flushed: the average acceptance length starts anew.\n")
        return PlainTextResponse("Not flushed: a request is running or waiting.\n", status_code=400)

    return routes


def _chat_route(engine: Engine, name: str) -> APIRouter:
    routes = APIRouter()

    @routes.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        body = parse_chat(await _json(request))
        if body.model and body.model != "default":  # what SGLang's clients say if they do not care
            _check_model(body.model, name)
        sampling = body.sampling(engine.template.sampling.max_new_tokens)
        job = engine.submit(body.conversation, sampling, body.seed, bool(body.stream))
        answer = sglang.Answer(secrets.token_hex(16), name, int(job.received_at_s))
        if body.stream:
            return StreamingResponse(_stream(job, body, answer, engine.block_size), media_type="text/event-stream")
        finished = await _unless_gone(job, request)
        if finished is None:
            return Response(status_code=CLOSED_REQUEST)
        if isinstance(finished, Failed):
            return _refuse(finished.message, 500)
        return JSONResponse(_whole(finished, body, answer, engine.block_size))

    return routes


async def _json(request: Request) -> Any:
    """The decoded body. The content type must say JSON: a page of another origin cannot then send it unasked."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise HTTPException(415, f"expected Content-Type application/json, got {kind or 'none'}")
    try:
        return json.loads(await request.body())
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HTTPException(400, f"the body is not JSON: {error}") from None


async def _unless_gone(job: Job, request: Request) -> Finished | Failed | None:
    """How the job ended; None, and the job is cancelled, if the client leaves first."""
    ended = asyncio.ensure_future(job.result())
    gone = asyncio.ensure_future(_disconnect(request))
    try:
        await asyncio.wait({ended, gone}, return_when=asyncio.FIRST_COMPLETED)
        return ended.result() if ended.done() else None
    finally:
        job.cancel()
        ended.cancel()
        gone.cancel()


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _stream(job: Job, body: ChatBody, answer: sglang.Answer, block_size: int) -> AsyncIterator[str]:
    """Server-sent events in SGLang's order: role, text, finish reason, statistics, usage, end."""
    options, num_prompt_tokens = body.stream_options, len(job.generation.prompt_ids)
    running = options is not None and options.continuous_usage_stats
    try:
        yield _event(answer.opening(sglang.usage(num_prompt_tokens, 0) if running else None))
        async for event in job.events():
            if isinstance(event, Piece):
                if event.text:
                    counts = sglang.usage(num_prompt_tokens, event.num_tokens) if running else None
                    yield _event(answer.piece(event.text, counts))
            elif isinstance(event, Failed):
                yield _event({"error": sglang.error(event.message, 500, "InternalServerError")})
            else:
                for closing in _closing(event, body, answer, block_size):
                    yield _event(closing)
        yield "data: [DONE]\n\n"
    finally:
        job.cancel()


def _closing(finished: Finished, body: ChatBody, answer: sglang.Answer, block_size: int) -> list[dict[str, Any]]:
    """The chunks after the last text."""
    chunks = [answer.ending(FINISH.get(finished.stop_reason, "abort"), _matched(finished))]
    if body.return_spec_tokens_details:
        extension = sglang.spec_tokens_details(_spec(finished, block_size))
        if extension:
            chunks.append(answer.extension(extension))
    if body.stream_options is not None and body.stream_options.include_usage:
        chunks.append(answer.counts(sglang.usage(finished.num_prompt_tokens, finished.num_tokens)))
    return chunks


def _whole(finished: Finished, body: ChatBody, answer: sglang.Answer, block_size: int) -> dict[str, Any]:
    """The body of an answer that is not streamed."""
    spec = _spec(finished, block_size)
    return answer.whole(
        finished.text,
        FINISH.get(finished.stop_reason, "abort"),
        sglang.usage(finished.num_prompt_tokens, finished.num_tokens),
        matched_stop=_matched(finished),
        meta_info=_meta_info(finished, answer.id, spec) if body.return_meta_info else None,
        extension=sglang.spec_tokens_details(spec) if body.return_spec_tokens_details else None,
    )


def _spec(finished: Finished, block_size: int) -> dict[str, Any]:
    return sglang.spec_fields(finished.histogram, block_size, finished.num_tokens)


def _meta_info(finished: Finished, request_id: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """SGLang's `meta_info` of a finished request on a server with --enable-metrics."""
    reason = FINISH.get(finished.stop_reason, "abort")
    detail = {"stop": {"matched": finished.last_id}, "length": {"length": finished.num_tokens}}.get(reason, {})
    after_first = finished.duration_s - finished.first_token_s
    speed = {"decode_throughput": (finished.num_tokens - 1) / after_first} if finished.num_tokens > 1 else {}
    return {
        "id": request_id,
        "finish_reason": {"type": reason, **detail},
        "prompt_tokens": finished.num_prompt_tokens,
        "completion_tokens": finished.num_tokens,
        "reasoning_tokens": 0,
        "cached_tokens": 0,
        "cached_tokens_details": None,
        "e2e_latency": finished.duration_s,
        "weight_version": "default",
        "num_retractions": 0,
        "dp_rank": None,
        "queue_time": finished.queue_s,
        "request_received_ts": finished.received_at_s,
        "first_token_latency": finished.first_token_s,
        "request_finished_ts": finished.received_at_s + finished.duration_s,
        **speed,
        **spec,
    }


def _matched(finished: Finished) -> int | None:
    return finished.last_id if finished.stop_reason is StopReason.STOP else None


def _check_model(asked: str, name: str) -> None:
    if asked != name:
        raise HTTPException(404, f"the model {asked!r} is not served here; this server has {name!r}")


def _refuse(message: str, code: int) -> JSONResponse:
    kinds = {400: "BadRequest", 401: "Unauthorized", 404: "NotFound", 500: "InternalServerError"}
    kind = kinds.get(code) or HTTPStatus(code).phrase.replace(" ", "")
    return JSONResponse(sglang.error(message, code, kind), status_code=code)


def _event(body: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(body, ensure_ascii=False, separators=(',', ':'))}\n\n"
