"""A server over the toy pair, on a free port, run for real in a thread."""

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import uvicorn
from toy_pair import make_pair

from dflash_lab.core.types import GenerateRequest, SamplingParams
from dflash_lab.ui.server.app import create_app
from dflash_lab.ui.server.engine import Engine
from dflash_lab.ui.server.run import address_of, facts_of, listen

TEMPLATE = GenerateRequest("", SamplingParams(max_new_tokens=40))


@dataclasses.dataclass
class Served:
    """A running server."""

    url: str
    engine: Engine
    client: httpx.Client

    def chat(self, **fields: Any) -> httpx.Response:
        """Answer to one chat completion; greedy unless told otherwise."""
        body = {"messages": [{"role": "user", "content": "the duck"}], "temperature": 0, **fields}
        return self.client.post("/v1/chat/completions", json=body)

    def metrics(self) -> dict[str, float]:
        """Samples of /metrics by name with labels, the common ones left out."""
        common = 'model_name="toy",engine_type="unified"'
        lines = [line for line in self.client.get("/metrics").text.splitlines() if not line.startswith("#")]
        pairs = (line.rsplit(" ", 1) for line in lines)
        return {name.replace(common, "").replace("{,", "{").replace("{}", ""): float(value) for name, value in pairs}

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Until `condition()` holds, five seconds at most."""
        end = time.monotonic() + 5
        while not condition():
            assert time.monotonic() < end, "it did not happen within five seconds"
            time.sleep(0.005)


@contextlib.contextmanager
def serving(template: GenerateRequest = TEMPLATE, api_key: str | None = None) -> Iterator[Served]:
    pair = make_pair()
    if template.drafter is None:
        pair = dataclasses.replace(pair, drafter=None)
    engine = Engine(pair, template)
    app = create_app(engine, "toy", facts_of(engine), api_key)
    with listen("127.0.0.1", 0, api_key) as bound:
        bound.listen()
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        try:
            with httpx.Client(base_url=address_of(bound), timeout=20, trust_env=False) as client:
                yield Served(address_of(bound), engine, client)
        finally:
            server.should_exit = True
            thread.join()
