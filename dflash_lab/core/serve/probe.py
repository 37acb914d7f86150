"""Who answers at a URL: backend, models, drafter, limits, hardware, and which acceptance statistics it gives.

SGLang tells everything at /server_info. vLLM tells it only in development mode; without, the drafter stays unknown and
the rest is inferred from its metrics and its fingerprint. What nothing tells is None.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Mapping
from typing import Any

from dflash_lab.core.errors import ServerError
from dflash_lab.core.provenance import provenance
from dflash_lab.core.serve.drafters import method_name, published_drafts, read_drafter
from dflash_lab.core.serve.endpoint import KEY_VARIABLE, Answer, Endpoint, RequestFailure
from dflash_lab.core.serve.hardware import gpu_names
from dflash_lab.core.serve.metrics import parse, snapshot_of, snapshot_of_loads
from dflash_lab.core.serve.records import ServerInfo, Snapshot
from dflash_lab.core.serve.stats import stats_of

_SGLANG_SETTINGS = (
    "dtype quantization kv_cache_dtype tp_size pp_size dp_size device attention_backend prefill_attention_backend "
    "decode_attention_backend speculative_draft_attention_backend speculative_attention_mode sampling_backend "
    "linear_attn_backend linear_attn_verify_backend mamba_ssm_dtype mamba_radix_cache_strategy disable_radix_cache "
    "speculative_draft_model_quantization speculative_num_steps speculative_eagle_topk sampling_defaults "
    "preferred_sampling_params speculative_accept_threshold_single speculative_accept_threshold_acc"
).split()
_VLLM_SETTINGS = {
    "model_config": ("dtype", "quantization", "enforce_eager", "generation_config"),
    "parallel_config": ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"),
    "attention_config": ("backend",),
    "cache_config": ("cache_dtype", "enable_prefix_caching"),
    "speculative_config": ("draft_sample_method", "rejection_sample_method", "attention_backend"),
    "device_config": ("device",),
}
_TEST_PROMPT = "Count from one to ten."
_SIMULATED = "SGLANG_SIMULATE_ACC_LEN"


_NO_ANSWER = Answer("", "", None, {}, 0.0)


async def probe(endpoint: Endpoint, model: str | None = None, ask: bool = True) -> ServerInfo:
    """Ask the server who it is and, with `ask`, for eight tokens to see what it reports. Raises ServerError."""
    card = await _model_card(endpoint, model)
    owner = str(card.get("owned_by") or "")
    backend = owner if owner in ("sglang", "vllm", "dflash-lab") else "other"
    info = ServerInfo(endpoint.url, backend, str(card["id"]), target=card.get("root"))
    info = dataclasses.replace(info, max_model_len=card.get("max_model_len"))
    answer = await _test_answer(endpoint, info) if ask else _NO_ANSWER
    if backend in ("sglang", "dflash-lab"):
        info = await _of_sglang(endpoint, info)
    elif backend == "vllm":
        info = await _of_vllm(endpoint, info, answer)
    info = _with_hardware(info, endpoint.local)
    snapshot = await read_snapshot(endpoint, info)
    info = dataclasses.replace(info, statistics=_statistics(answer, snapshot))
    warnings = [*_warnings(info, endpoint.local), *(_about_answer(info, answer) if ask else ())]
    return dataclasses.replace(info, warnings=tuple(warnings))


async def read_snapshot(endpoint: Endpoint, info: ServerInfo, in_flight: int | None = None) -> Snapshot | None:
    """The server's counters now; None if it publishes none. Raises ServerError if it does not answer."""
    response = await endpoint.page("/metrics")
    now = time.time()
    snapshot = snapshot_of(response.text, now, info.model) if response.status_code == 200 else None
    if snapshot is None and info.backend in ("sglang", "dflash-lab"):
        loads = await endpoint.json_page("/v1/loads?include=core,spec")
        snapshot = snapshot_of_loads(loads, now) if isinstance(loads, dict) else None
    return snapshot and dataclasses.replace(snapshot, in_flight=in_flight)


async def _model_card(endpoint: Endpoint, model: str | None) -> Mapping[str, Any]:
    """The entry of /v1/models to measure."""
    response = await endpoint.page("/v1/models")
    where = f"{endpoint.url}/v1/models"
    if response.status_code in (401, 403):
        raise ServerError(f"{where} wants a key (HTTP {response.status_code}); set {KEY_VARIABLE} to the server's key")
    if response.status_code == 503:
        raise ServerError(f"{where} says it is not ready (HTTP 503); wait until the server has started")
    try:
        cards = response.json()["data"] if response.status_code == 200 else None
        served = {str(card["id"]): card for card in cards}
    except (ValueError, KeyError, TypeError):
        raise ServerError(
            f"{where} gave HTTP {response.status_code} and no list of models; expected the base address of an "
            "OpenAI-style server such as http://127.0.0.1:30000"
        ) from None
    if not served:
        raise ServerError(f"{where} lists no model; load one first")
    if model is not None and model not in served:
        raise ServerError(f"{endpoint.url} does not serve {model!r}; it serves {', '.join(served)}")
    return served[model] if model is not None else next(iter(served.values()))


async def _test_answer(endpoint: Endpoint, info: ServerInfo) -> Answer:
    """Eight tokens, with all statistics that a server may add to its answer."""
    body = {
        "model": info.model,
        "messages": [{"role": "user", "content": _TEST_PROMPT}],
        "max_tokens": 8,
        "temperature": 0.0,
    }
    extras = {"return_meta_info": True, "return_spec_tokens_details": True}
    try:
        try:
            return await endpoint.complete(body | extras)
        except RequestFailure as failure:
            if info.backend != "other" or failure.kind != "status":
                raise
            return await endpoint.complete(body)  # one that takes no field it does not know
    except RequestFailure as failure:
        raise ServerError(
            f"{endpoint.url} lists {info.model} but does not answer for it ({failure.kind}: {failure}); "
            "see the server's log"
        ) from failure


async def _of_sglang(endpoint: Endpoint, info: ServerInfo) -> ServerInfo:
    told = await endpoint.json_page("/server_info") or await endpoint.json_page("/get_server_info")
    if not isinstance(told, dict):
        return info
    states = [state for state in told.get("internal_states") or () if isinstance(state, dict)]
    state = states[0] if states else {}
    limit = told.get("max_running_requests") or state.get("effective_max_running_requests_per_dp")
    drafted = told.get("speculative_num_draft_tokens")
    algorithm = told.get("speculative_algorithm")
    loads = await endpoint.json_page("/v1/loads")
    loads = loads if isinstance(loads, dict) else {}
    environment = state.get("env_vars")
    synthetic = "not told" if not isinstance(environment, dict) else environment.get(_SIMULATED) or "off"
    return dataclasses.replace(
        info,
        version=told.get("version"),
        target=told.get("model_path") or info.target,
        speculation=algorithm is not None,
        algorithm=algorithm,
        drafter=told.get("speculative_draft_model_path"),
        drafter_revision=told.get("speculative_draft_model_revision"),
        drafts_per_step=drafted - 1 if algorithm and drafted else None,
        max_running_requests=limit * len(states) if limit and states else limit,
        hardware=loads.get("accelerator"),
        hardware_from="server" if loads.get("accelerator") else None,
        num_devices=loads.get("num_accelerators") if loads.get("accelerator") else None,
        settings={name: told[name] for name in _SGLANG_SETTINGS if told.get(name) is not None}
        | {"synthetic_acceptance": synthetic},
    )


async def _of_vllm(endpoint: Endpoint, info: ServerInfo, answer: Answer) -> ServerInfo:
    version = await endpoint.json_page("/version")
    fingerprint = answer.body.get("system_fingerprint")
    info = dataclasses.replace(
        info,
        version=version.get("version") if isinstance(version, dict) else None,
        fingerprint=fingerprint,
        num_devices=_devices_of(fingerprint),
    )
    told = await endpoint.json_page("/server_info?config_format=json")
    config = told.get("vllm_config") if isinstance(told, dict) else None
    if not isinstance(config, dict):
        return await _inferred(endpoint, info)
    groups = {name: config.get(name) or {} for name in (*_VLLM_SETTINGS, "scheduler_config")}
    speculative, parallel = groups["speculative_config"], groups["parallel_config"]
    target, method, drafter = (
        groups["model_config"].get("model") or info.target,
        speculative.get("method"),
        speculative.get("model"),
    )
    gpus = (told.get("system_env") or {}).get("nvidia_gpu_models")
    return dataclasses.replace(
        info,
        target=target,
        speculation=bool(speculative),
        algorithm=method,
        drafter=drafter if drafter not in (method, target) else None,
        drafter_revision=speculative.get("revision"),
        drafts_per_step=speculative.get("num_speculative_tokens"),
        max_running_requests=groups["scheduler_config"].get("max_num_seqs"),
        hardware=_one_name(gpus),
        hardware_from="server" if gpus else None,
        num_devices=(parallel.get("tensor_parallel_size") or 1) * (parallel.get("pipeline_parallel_size") or 1),
        settings={
            f"{group.removesuffix('_config')}.{name}": groups[group][name]
            for group, names in _VLLM_SETTINGS.items()
            for name in names
            if groups[group].get(name) is not None
        }
        | {"synthetic_acceptance": "on" if _synthetic(speculative) else "off"},
    )


async def _inferred(endpoint: Endpoint, info: ServerInfo) -> ServerInfo:
    """vLLM outside development mode: its counters tell whether and how far it speculates, not with which drafter."""
    response = await endpoint.page("/metrics")
    if response.status_code != 200:
        return info
    positions, speculates = set(), False
    for sample in parse(response.text):
        speculates = speculates or sample.name == "vllm:spec_decode_num_drafts_total"
        if sample.name == "vllm:spec_decode_num_accepted_tokens_per_pos_total":
            positions.add(sample.labels["position"])
    return dataclasses.replace(
        info,
        speculation=speculates,
        drafts_per_step=len(positions) or None,
        settings={"synthetic_acceptance": "not told"},
    )


def _with_hardware(info: ServerInfo, local: bool) -> ServerInfo:
    """The server's own word where it has one; else, on this machine, the driver's or the processor's name."""
    info = dataclasses.replace(info, method=method_name(info, local))
    if info.hardware is not None or not local:
        return info
    device = str(info.settings.get("device") or info.settings.get("device.device") or "")
    names = gpu_names() if device != "cpu" else ()
    if names:
        return dataclasses.replace(info, hardware=_one_name(names), hardware_from="nvml")
    if device == "cpu":
        return dataclasses.replace(info, hardware=str(provenance()["cpu"]), hardware_from="this machine")
    return info


def _statistics(answer: Answer, snapshot: Snapshot | None) -> tuple[str, ...]:
    """Sources of acceptance statistics that really gave some."""
    body = answer.body
    rest = {key: value for key, value in body.items() if key != "choices"}
    found = {stats.source for part in (body, rest) if (stats := stats_of(part, None)) is not None}
    if snapshot is not None and snapshot.num_steps is not None:
        found.add("metrics")
    return tuple(sorted(found))


def _about_answer(info: ServerInfo, answer: Answer) -> list[str]:
    found = []
    if info.speculation and not info.statistics:
        found.append(
            "the server drafts but reports no acceptance: start SGLang with --enable-metrics, "
            "vLLM with --per-request-spec-decode-metrics summary"
        )
    if not isinstance(answer.body.get("usage"), dict):
        found.append("answers carry no usage: tokens can only be estimated with the server's tokenizer")
    return found


def _warnings(info: ServerInfo, local: bool) -> list[str]:
    found = []
    if info.settings.get("synthetic_acceptance") not in (None, "off", "not told"):
        found.append("the server makes its acceptance up (synthetic acceptance): its numbers are no measurement")
    for name in ("speculative_accept_threshold_single", "speculative_accept_threshold_acc"):
        if info.settings.get(name, 1.0) != 1.0:
            found.append(f"{name} is {info.settings[name]}: drafts are accepted that the target would not write")
    drafts = info.drafts_per_step
    if drafts is None or not info.drafter:
        return found
    checkpoint = read_drafter(info.drafter) if local else None
    if checkpoint and checkpoint.block_size and checkpoint.block_size != drafts + 1:
        found.append(
            f"{drafts} drafts per step, but the drafter's block of {checkpoint.block_size} has "
            f"{checkpoint.block_size - 1}: it was not trained for this"
        )
    elif (published := published_drafts(info.drafter)) is not None and published != drafts:
        found.append(f"{drafts} drafts per step; the published numbers of {info.drafter} are for {published}")
    return found


def _synthetic(speculative: Mapping[str, Any]) -> bool:
    names = ("synthetic_acceptance_rates", "synthetic_acceptance_length")
    return speculative.get("rejection_sample_method") == "synthetic" or any(speculative.get(name) for name in names)


def _devices_of(fingerprint: Any) -> int | None:
    """Devices of one copy by vLLM's fingerprint: `vllm-<version>[-tpN][-ppN]...-<hash>`."""
    if not isinstance(fingerprint, str) or not fingerprint.startswith("vllm-"):
        return None
    sizes = [re.search(rf"-{kind}(\d+)", fingerprint) for kind in ("tp", "pp")]
    return (int(sizes[0][1]) if sizes[0] else 1) * (int(sizes[1][1]) if sizes[1] else 1)


def _one_name(names: Any) -> str | None:
    """Equal names as one, different ones side by side."""
    if isinstance(names, str):
        names = [line.split(":", 1)[-1].strip() for line in names.splitlines() if line.strip()]
    return " / ".join(dict.fromkeys(str(name) for name in names)) if names else None
