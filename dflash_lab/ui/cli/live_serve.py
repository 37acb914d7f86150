"""`dflash-lab live serve`: the local decoder as a server, for people without one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from dflash_lab.core.errors import BackendError
from dflash_lab.ui.cli.options import drafter_name, pair_options
from dflash_lab.ui.cli.output import Output, Result, story

if TYPE_CHECKING:
    from dflash_lab.ui.server.engine import Engine


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to serve at.")
@click.option("--port", type=click.IntRange(0, 65535), default=30000, show_default=True, help="0 takes a free one.")
@pair_options
@story
def serve(out: Output, host: str, port: int, **options: Any) -> Result:
    """Serve the local decoder: chat completions with SGLang's fields and metrics, one request at a time.

    A bench for a machine without a server, not a product. --max-new-tokens counts for requests that name no limit.
    DFLASH_LAB_API_KEY is the key that clients must give; a --host that other machines reach needs one.
    """
    try:
        from dflash_lab.ui.server.run import address_of, listen, model_name
        from dflash_lab.ui.server.run import serve as serve_until_stopped
    except ModuleNotFoundError as error:
        if error.name not in ("fastapi", "uvicorn"):
            raise
        raise BackendError(f"the server needs {error.name}; pip install 'dflash-lab[ui]'") from None
    from dflash_lab.core.generate import load_pair
    from dflash_lab.core.serve.endpoint import KEY_VARIABLE
    from dflash_lab.core.types import GenerateRequest, SamplingParams

    api_key = os.environ.get(KEY_VARIABLE) or None
    bound = listen(host, port, api_key)
    url = address_of(bound)
    sampling = SamplingParams(max_new_tokens=options.pop("max_new_tokens"))
    request = GenerateRequest(prompt="", sampling=sampling, drafter=drafter_name(options.pop("drafter")), **options)
    placed = {name: options[name] for name in options.keys() - {"target", "block_size", "num_candidates"}}
    with bound:
        pair = load_pair(request.target, request.drafter, **placed, notify=out.note)

        def ready(engine: Engine) -> None:
            for warning in engine.warnings:
                out.warn(warning)
            out.note(f"serving {model_name(request.target)} at {url}, {engine.description}; Ctrl-C ends it")

        engine = serve_until_stopped(bound, pair, request, api_key, ready)
    totals = engine.counters.totals
    text = f"answered {totals['num_requests']} requests with {totals['completion_tokens']} tokens"
    return Result({"url": url, **totals}, text)
