"""Starting the server: its port, the pair behind it, what it tells of itself, until it is stopped."""

from __future__ import annotations

import contextlib
import shlex
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn

from dflash_lab import __version__
from dflash_lab.core.errors import RequestError
from dflash_lab.core.types import GenerateRequest
from dflash_lab.ui.server.address import is_loopback
from dflash_lab.ui.server.app import create_app
from dflash_lab.ui.server.engine import Engine

if TYPE_CHECKING:
    from dflash_lab.core.generate import Pair

STOP_S = 1
"""Longest wait, once stopped, for answers that are under way."""


def listen(host: str, port: int, api_key: str | None) -> socket.socket:
    """A bound socket, before anything slow is done; port 0 takes a free one. Raises RequestError."""
    if api_key is None and not is_loopback(host):
        raise RequestError(
            f"expected a loopback address or a key, got host {host!r} without one: the server would be open to the "
            "network; set DFLASH_LAB_API_KEY, or forward the port over ssh"
        )
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise RequestError(f"cannot serve at {host} port {port} ({error.strerror}): give another --port") from None
    return bound


def address_of(bound: socket.socket) -> str:
    """The base address of a bound socket."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(
    bound: socket.socket,
    pair: Pair,
    request: GenerateRequest,
    api_key: str | None,
    ready: Callable[[Engine], None],
) -> Engine:
    """Serve at `bound` until interrupted; `ready` is told when the first request may come.

    `request` holds what a client's request does not say. Gives the engine back for what it has counted.
    """
    engine = Engine(pair, request)
    app = create_app(engine, model_name(request.target), facts_of(engine), api_key)
    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=STOP_S)
    bound.listen()  # from here on a client waits, until then it is refused
    ready(engine)
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises it again once it has stopped
        uvicorn.Server(config).run(sockets=[bound])
    return engine


def model_name(target: str) -> str:
    """The name under which a target is served: of the model for the bundled one, of a folder its last part."""
    from dflash_lab.core.generate import BUNDLED
    from dflash_lab.core.target.bundled import NAME

    if target == BUNDLED:
        return NAME
    return Path(target).resolve().name if Path(target).is_dir() else target


def facts_of(engine: Engine) -> dict[str, Any]:
    """What does not change of SGLang's /server_info, and under `dflash_lab` what only this server has."""
    from dflash_lab.core.generate import BUNDLED, describe_drafter
    from dflash_lab.core.provenance import provenance
    from dflash_lab.core.target.bundled import drafter_folder

    pair, request = engine.pair, engine.template
    drafter = pair.drafter
    folder = str(drafter_folder()) if request.drafter == BUNDLED else request.drafter
    context = pair.target.info.max_context
    return {
        "model_path": str(pair.target_folder),
        "served_model_name": model_name(request.target),
        "tokenizer_path": str(pair.target_folder),
        "dtype": pair.backends["dtype"],
        "kv_cache_dtype": "auto",
        "quantization": None,
        "tp_size": 1,
        "pp_size": 1,
        "dp_size": 1,
        "device": pair.backends["device"],
        "attention_backend": pair.backends["forward"],
        "sampling_backend": "pytorch",
        "sampling_defaults": "openai",
        "disable_radix_cache": True,
        "speculative_algorithm": "DFLASH" if drafter else None,
        "speculative_draft_model_path": folder if drafter else None,
        "speculative_draft_model_revision": None,
        "speculative_num_draft_tokens": engine.block_size if drafter else None,
        "speculative_num_steps": 1 if drafter else None,
        "speculative_eagle_topk": 1 if drafter else None,
        "speculative_dflash_block_size": None,
        "speculative_accept_threshold_single": 1.0,
        "speculative_accept_threshold_acc": 1.0,
        "max_running_requests": 1,
        "max_total_num_tokens": context,
        "max_req_input_len": None if context is None else context - 1,
        "enable_metrics": True,
        "launch_command": shlex.join(sys.argv[1:]),
        "version": __version__,
        "frontend": "dflash-lab",
        "kv_events": None,
        "dflash_lab": {
            "drafter": describe_drafter(drafter) if drafter else None,
            "num_candidates": engine.num_candidates,
            "max_new_tokens": request.sampling.max_new_tokens,
            "backends": dict(pair.backends),
            "provenance": provenance(),
        },
    }
