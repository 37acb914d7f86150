"""Who answers: both backends, with and without their extras, and every wrong address."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path

import pytest

from dflash_lab.core.errors import ServerError
from dflash_lab.core.serve.drafters import method_name, read_drafter
from dflash_lab.core.serve.endpoint import Endpoint
from dflash_lab.core.serve.fake_http import HttpServer
from dflash_lab.core.serve.fake_model import FakeModel
from dflash_lab.core.serve.fake_server import FakeServer
from dflash_lab.core.serve.probe import probe, read_snapshot
from dflash_lab.core.serve.records import ServerInfo, Snapshot

CAPTURES = Path(__file__).parent / "captures"
PLAIN = FakeModel(backend="llamacpp")
VLLM = FakeModel(backend="vllm")


def look(model: FakeModel, name: str | None = None, key: str | None = None, ask: bool = True) -> ServerInfo:
    async def go(url: str) -> ServerInfo:
        async with Endpoint(url, key) as endpoint:
            return await probe(endpoint, name, ask)

    with FakeServer(model) as server:
        return asyncio.run(go(server.url))


@pytest.mark.parametrize("backend", ["sglang", "vllm"])
def test_both_backends_tell_the_same_things(backend):
    found = look(FakeModel(backend=backend))
    assert found.backend == backend
    assert found.version == {"sglang": "0.5.23", "vllm": "0.32.0"}[backend]
    assert (found.model, found.target) == ("Qwen/Qwen3.8-Flash-Next-FP8",) * 2
    assert (found.speculation, found.method, found.drafter) == (True, "DFlash 2", "incoai/Qwen3.8-Flash-Next-DFlash2")
    assert found.drafts_per_step == 3, "SGLang says 4 with the anchor, vLLM 3"
    assert (found.max_model_len, found.max_running_requests) == (32768, 48)
    assert (found.hardware, found.hardware_from, found.num_devices) == ("NVIDIA GB300", "server", 1)
    assert (
        found.statistics == {"sglang": ("meta_info", "metrics", "sglext"), "vllm": ("metrics", "vllm_metrics")}[backend]
    )
    assert found.warnings == ()


def test_vllm_outside_development_mode_is_inferred():
    found = look(dataclasses.replace(VLLM, development=False))
    assert (found.speculation, found.drafts_per_step, found.num_devices) == (True, 3, 1)
    assert (found.drafter, found.hardware_from) != ("incoai/Qwen3.8-Flash-Next-DFlash2", "server")
    off = look(dataclasses.replace(VLLM, development=False, acceptance=None))
    assert (off.speculation, off.method) == (False, "Autoregressive")
    silent = look(dataclasses.replace(VLLM, development=False, metrics=False, per_request=False))
    assert silent.speculation is None, "not known is not off"


def test_another_server_is_measured_without_statistics():
    found = look(PLAIN)
    assert (found.backend, found.speculation, found.method) == ("other", None, "unknown")
    assert found.statistics == ()


@pytest.mark.parametrize("backend", ["sglang", "vllm"])
def test_speculation_off_is_not_an_acceptance_of_one(backend):
    found = look(FakeModel(backend=backend, acceptance=None))
    assert (found.speculation, found.method, found.drafts_per_step) == (False, "Autoregressive", None)
    assert found.warnings == ()


def test_nothing_is_asked_when_only_watching():
    with FakeServer() as server:

        async def go():
            async with Endpoint(server.url) as endpoint:
                return await probe(endpoint, ask=False)

        found = asyncio.run(go())
        assert server.ledger.bodies == []
    assert found.drafts_per_step == 3
    assert found.warnings == ()


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (FakeModel(settings={"speculative_accept_threshold_single": 0.8}), "accept_threshold_single is 0.8"),
        (dataclasses.replace(VLLM, settings={"rejection_sample_method": "synthetic"}), "makes its acceptance up"),
        (dataclasses.replace(VLLM, settings={"synthetic_acceptance_length": 4.0}), "makes its acceptance up"),
        (FakeModel(acceptance=(0.5,) * 7), "7 drafts per step; the published numbers"),
        (FakeModel(metrics=False, per_request=False), "reports no acceptance"),
        (FakeModel(usage=False), "no usage"),
    ],
)
def test_what_falsifies_a_measurement_is_said(model, words):
    assert any(words in text for text in look(model).warnings)


def test_sglangs_simulated_acceptance_is_seen_where_the_environment_is_shown():
    class Simulated(FakeServer):
        async def handle(self, request, reply):
            if request.path != "/server_info":
                return await super().handle(request, reply)
            state = {"env_vars": {"SGLANG_SIMULATE_ACC_LEN": "4"}}
            await reply.json({"speculative_algorithm": "DFLASH", "internal_states": [state]})

    async def go(url):
        async with Endpoint(url) as endpoint:
            return await probe(endpoint)

    with Simulated() as server:
        found = asyncio.run(go(server.url))
    assert any("makes its acceptance up" in text for text in found.warnings)
    assert look(FakeModel()).settings["synthetic_acceptance"] == "not told"


class Pages(HttpServer):
    """Serves captured pages beside a fake chat."""

    def __init__(self, pages: dict, owner: str) -> None:
        super().__init__()
        self.pages = pages | {"/v1/models": {"data": [{"id": "tiny", "owned_by": owner, "max_model_len": 512}]}}

    async def handle(self, request, reply):
        path = request.path.partition("?")[0]
        if path == "/v1/chat/completions":
            answer = {"choices": [{"message": {"content": "one"}}], "usage": {"completion_tokens": 1}}
            await reply.json(answer)
        elif path in self.pages:
            page = self.pages[path]
            await (reply.text(page) if isinstance(page, str) else reply.json(page))
        else:
            await reply.json({}, 404)


def captured(owner: str, **pages) -> ServerInfo:
    async def go(url):
        async with Endpoint(url) as endpoint:
            return await probe(endpoint)

    with Pages({f"/{name}": page for name, page in pages.items()}, owner) as server:
        return asyncio.run(go(server.url))


def test_a_captured_server_info_of_sglang():
    found = captured("sglang", server_info=json.loads((CAPTURES / "sglang_0.5.23_server_info.json").read_text()))
    assert (found.version, found.speculation, found.method) == ("0.5.23", False, "Autoregressive")
    assert found.max_running_requests == 4096
    assert found.settings["attention_backend"] == "torch_native"
    assert found.hardware_from == "this machine", "it says it runs on the CPU, and it is here"


def test_a_captured_server_info_of_vllm():
    info = json.loads((CAPTURES / "vllm_0.32.0_server_info.json").read_text())
    metrics = (CAPTURES / "vllm_0.32.0_metrics.txt").read_text()
    found = captured("vllm", server_info=info, metrics=metrics, version={"version": "0.32.0"})
    assert (found.version, found.algorithm, found.method, found.drafts_per_step) == ("0.32.0", "ngram", "n-gram", 4)
    assert found.drafter is None
    assert found.max_running_requests == 4
    assert found.statistics == ("metrics",)


@pytest.mark.parametrize(
    ("algorithm", "drafter", "method"),
    [
        ("DFLASH", "z-lab/Qwen3.8-27B-DFlash2", "DFlash 2"),
        ("dflash", "incoai/Qwen3.6-35B-A3B-DFlash-2", "DFlash 2"),
        ("DFLASH", "z-lab/Qwen3.8-27B-DFlash", "DFlash"),
        ("EAGLE", None, "MTP"),
        ("NEXTN", "target", "MTP"),
        ("mtp", None, "MTP"),
        ("qwen3_next_mtp", None, "MTP"),
        ("EAGLE3", "someone/eagle3", "EAGLE-3"),
        ("EAGLE", "someone/eagle", "EAGLE"),
        ("ngram", None, "n-gram"),
        ("suffix", None, "suffix"),
        (None, None, "unknown"),
    ],
)
def test_methods_have_the_tables_names(algorithm, drafter, method):
    info = ServerInfo(
        "http://h", "sglang", "m", target="target", speculation=True, algorithm=algorithm, drafter=drafter
    )
    assert method_name(info, local=False) == method


def test_a_drafter_on_this_machine_says_itself_what_it_is(tmp_path):
    config = {"architectures": ["DFlash2DraftModel"], "block_size": 16, "dflash_config": {"block_size": 8}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_drafter(str(tmp_path)).block_size == 8
    model = FakeModel(drafter=str(tmp_path))
    found = look(model)
    assert found.method == "DFlash 2"
    assert any("3 drafts per step, but the drafter's block of 8 has 7" in text for text in found.warnings)
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["DFlashDraftModel"], "block_size": 4}))
    found = look(model)
    assert (found.method, found.warnings) == ("DFlash", ())
    assert read_drafter(str(tmp_path / "nothing")) is None


def test_wrong_addresses_and_servers_are_one_line(unused_port):
    def refused(url: str, name: str | None = None) -> str:
        async def go():
            async with Endpoint(url) as endpoint:
                await probe(endpoint, name)

        with pytest.raises(ServerError) as caught:
            asyncio.run(go())
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "no server answers" in refused(f"http://127.0.0.1:{unused_port}")
    with FakeServer() as server:
        assert "gave HTTP 404 and no list of models" in refused(f"{server.url}/wrong")
        assert "does not serve 'gpt'; it serves Qwen/" in refused(server.url, "gpt")
    with FakeServer(FakeModel(api_key="secret")) as server:
        assert "set DFLASH_LAB_API_KEY" in refused(server.url)
    with Pages({"/v1/models": {"data": []}}, "x") as server:
        server.pages["/v1/models"] = {"data": []}
        assert "lists no model" in refused(server.url)
        server.pages["/v1/models"] = "<html>hello</html>"
        assert "expected the base address of an OpenAI-style server" in refused(server.url)
    with FakeServer(FakeModel(failures={"Count from one to ten.": "status"})) as server:
        assert "does not answer for it (status: HTTP 500: out of memory)" in refused(server.url)


def test_the_key_opens():
    assert look(FakeModel(api_key="secret"), key="secret").backend == "sglang"


def test_a_server_without_metrics_is_read_by_its_loads():
    async def go(url) -> Snapshot | None:
        async with Endpoint(url) as endpoint:
            return await read_snapshot(endpoint, await probe(endpoint), 3)

    with FakeServer(FakeModel(metrics=False)) as server:
        found = asyncio.run(go(server.url))
    assert (found.source, found.running, found.in_flight) == ("loads", 0, 3)
    assert found.gauge_length > 1
    with FakeServer(dataclasses.replace(VLLM, metrics=False)) as server:
        assert asyncio.run(go(server.url)) is None
