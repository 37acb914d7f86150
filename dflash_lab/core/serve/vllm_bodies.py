"""What vLLM 0.32.0 says, as JSON values and as Prometheus text, for the fake server; see `sglang_bodies` for SGLang.

num_draft_tokens          proposals of all steps
mean_acceptance_length    1 + accepted / steps, not cut at stop or length
acceptance_histogram      dense: steps that accepted 0, 1, .. K drafts
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

VERSION = "0.32.0"
"""The release whose names these are."""

Body = dict[str, Any]


def speculative(histogram: Sequence[int], num_spec_tokens: int) -> Body:
    """`metrics.speculative_decoding` of a request; `histogram[a]` counts the steps that accepted `a` proposals."""
    steps = sum(histogram)
    accepted = sum(length * count for length, count in enumerate(histogram))
    proposed = steps * num_spec_tokens
    return {
        "mean_acceptance_length": 1 + accepted / steps if steps else None,
        "draft_acceptance_rate": accepted / proposed if proposed else None,
        "acceptance_histogram": [*histogram, *[0] * (num_spec_tokens + 1 - len(histogram))],
        "num_spec_steps": steps,
        "num_accepted_draft_tokens": accepted,
        "num_draft_tokens": proposed,
        "num_spec_tokens": num_spec_tokens,
        "per_step_accepted": None,
        "per_step_drafted": None,
    }


def chunk(request_id: str, model: str, delta: Mapping[str, Any] | None, **more: Any) -> Body:
    """A chunk of a stream; without a delta it is a closing one."""
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": more.pop("finish_reason", None)}
    choices = [] if delta is None else [choice]
    return {
        "id": request_id,
        "object": "chat.completion.chunk",
        "created": 0,
        "model": model,
        "choices": choices,
        **more,
    }


def whole(request_id: str, model: str, text: str, reasoning: str | None, finish_reason: str, **more: Any) -> Body:
    """An answer that is not streamed."""
    message = {"role": "assistant", "content": text, "refusal": None, "reasoning": reasoning}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason, "stop_reason": None}
    return {"id": request_id, "object": "chat.completion", "created": 0, "model": model, "choices": [choice], **more}


def server_info(model: str, config: Mapping[str, Any] | None, max_num_seqs: int, gpus: str | None) -> Body:
    """`/server_info?config_format=json` of a server in development mode; `config` is the speculative one."""
    return {
        "vllm_config": {
            "model_config": {"model": model, "dtype": "torch.bfloat16", "quantization": None, "enforce_eager": False},
            "speculative_config": None if config is None else dict(config),
            "parallel_config": {"tensor_parallel_size": 1, "pipeline_parallel_size": 1, "data_parallel_size": 1},
            "scheduler_config": {"max_num_seqs": max_num_seqs},
            "attention_config": {"backend": None},
            "cache_config": {"cache_dtype": "auto", "enable_prefix_caching": True},
            "device_config": {"device": "cuda"},
        },
        "vllm_env": {},
        "system_env": {"nvidia_gpu_models": gpus, "vllm_version": VERSION},
    }


def metrics_text(
    model: str, running: int, waiting: int, tokens: Mapping[str, int], histogram: Sequence[int] | None, finished: int
) -> str:
    """A Prometheus page: `tokens` counts `prompt`, `generation` and `cached`; no histogram, no speculation."""
    labels = f'engine="0",model_name="{model}"'
    values: dict[str, float] = {
        f"vllm:num_requests_running{{{labels}}}": running,
        f"vllm:num_requests_waiting{{{labels}}}": waiting,
        f"vllm:prompt_tokens_total{{{labels}}}": tokens["prompt"],
        f"vllm:generation_tokens_total{{{labels}}}": tokens["generation"],
        f"vllm:prefix_cache_hits_total{{{labels}}}": tokens["cached"],
        f"vllm:generation_tokens_created{{{labels}}}": 1.796e9,
        f'vllm:request_success_total{{engine="0",finished_reason="length",model_name="{model}"}}': finished,
        f"vllm:kv_cache_usage_perc{{{labels}}}": 0.1,
    }
    if histogram is not None:
        steps, depth = sum(histogram), len(histogram) - 1
        values |= {
            f"vllm:spec_decode_num_drafts_total{{{labels}}}": steps,
            f"vllm:spec_decode_num_drafts_created{{{labels}}}": 1.796e9,
            f"vllm:spec_decode_num_draft_tokens_total{{{labels}}}": steps * depth,
            f"vllm:spec_decode_num_accepted_tokens_total{{{labels}}}": sum(i * n for i, n in enumerate(histogram)),
        }
        for i in range(depth):
            name = f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{labels},position="{i}"}}'
            values[name] = sum(histogram[i + 1 :])
    return "".join(f"{name} {float(value)}\n" for name, value in values.items())
