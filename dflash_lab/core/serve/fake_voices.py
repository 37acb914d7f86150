"""How a fake server speaks: the same answers in the bodies and pages of SGLang, of vLLM, or of a plain server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from dflash_lab.core.serve import sglang_bodies, vllm_bodies
from dflash_lab.core.serve.fake_model import FakeModel, Ledger
from dflash_lab.core.serve.sglang_bodies import Family

Body = dict[str, Any]


@dataclass(frozen=True)
class Finished:
    """An answer that is to be put into bodies."""

    text: str
    """Content."""
    reasoning: str
    """Reasoning before it."""
    finish_reason: str
    """Why it ended."""
    histogram: tuple[int, ...]
    """Steps that accepted 0, 1, .. proposals."""
    completion_tokens: int
    """Tokens, reasoning included."""
    reasoning_tokens: int
    """Tokens of reasoning."""
    prompt_tokens: int
    """Tokens of the prompt."""
    cached_tokens: int
    """Those found in the cache."""
    asked: Mapping[str, Any]
    """The request's body."""


@dataclass(frozen=True)
class State:
    """What a server would tell of itself now."""

    running: int
    """Requests that run."""
    waiting: int
    """Requests that wait."""
    ledger: Ledger
    """What it did."""


class Voice(Protocol):
    """Bodies and pages of one kind of server."""

    def page(self, path: str, state: State) -> Any:
        """The page at `path`: text, or JSON, or None if there is none."""

    def piece(self, text: str, reasoning: bool) -> Body:
        """A chunk with text."""

    def closing(self, answer: Finished) -> list[Body]:
        """The chunks after the last text."""

    def whole(self, answer: Finished) -> Body:
        """The answer when it is not streamed."""


class SGLangVoice:
    """SGLang 0.5.23."""

    def __init__(self, model: FakeModel) -> None:
        self._model = model
        self._bodies = sglang_bodies.Answer("fake", model.name, 0)

    def page(self, path: str, state: State) -> Any:
        match path:
            case "/server_info":
                return self._info(state)
            case "/v1/loads":
                return self._loads(state)
            case "/metrics" if self._model.metrics:
                return self._metrics(state)
        return None

    def piece(self, text: str, reasoning: bool) -> Body:
        return self._bodies.piece(text, reasoning=reasoning)

    def closing(self, answer: Finished) -> list[Body]:
        events = [self._bodies.ending(answer.finish_reason)]
        if extension := self._extension(answer):
            events.append(self._bodies.extension(extension))
        if self._model.usage:
            events.append(self._bodies.counts(self._usage(answer)))
        return events

    def whole(self, answer: Finished) -> Body:
        meta = None
        if answer.asked.get("return_meta_info"):
            counts = {"prompt_tokens": answer.prompt_tokens, "completion_tokens": answer.completion_tokens}
            meta = {"id": "fake", **counts, "cached_tokens": answer.cached_tokens, **self._spec(answer)}
        body = self._bodies.whole(
            answer.text,
            answer.finish_reason,
            self._usage(answer),
            reasoning=answer.reasoning or None,
            meta_info=meta,
            extension=self._extension(answer),
        )
        return body if self._model.usage else {**body, "usage": None}

    def _spec(self, answer: Finished) -> Body:
        if self._model.acceptance is None or not self._model.per_request:
            return {}
        block_size = self._model.drafts_per_step + 1
        fields = sglang_bodies.spec_fields(answer.histogram, block_size, answer.completion_tokens)
        return self._model.distort(fields) if fields else {}

    def _extension(self, answer: Finished) -> Body:
        return sglang_bodies.spec_tokens_details(self._spec(answer)) if answer.asked.get(_DETAILS) else {}

    def _usage(self, answer: Finished) -> Body:
        counts = sglang_bodies.usage(answer.prompt_tokens, answer.completion_tokens, answer.reasoning_tokens)
        return {**counts, "prompt_tokens_details": {"cached_tokens": answer.cached_tokens}}

    def _info(self, state: State) -> Body:
        model = self._model
        rank: Body = {"effective_max_running_requests_per_dp": model.max_running, "last_gen_throughput": 0.0}
        steps = sum(state.ledger.histogram)
        if model.acceptance is not None and steps:
            rank["avg_spec_accept_length"] = 1 + _accepted(state.ledger) / steps
        drafts = model.acceptance is not None
        return {
            "model_path": model.name,
            "served_model_name": model.name,
            "dtype": "auto",
            "tp_size": 1,
            "pp_size": 1,
            "dp_size": 1,
            "device": "cuda" if model.accelerator else "cpu",
            "attention_backend": "trtllm_mha",
            "sampling_defaults": "model",
            "speculative_algorithm": model.algorithm if drafts else None,
            "speculative_draft_model_path": model.drafter if drafts else None,
            "speculative_draft_model_revision": "main" if drafts and model.drafter else None,
            "speculative_num_draft_tokens": model.drafts_per_step + 1 if drafts else None,
            "speculative_accept_threshold_single": 1.0,
            "speculative_accept_threshold_acc": 1.0,
            "max_running_requests": None,
            "version": sglang_bodies.VERSION,
            **model.settings,
            "internal_states": [rank],
        }

    def _loads(self, state: State) -> Body:
        rank = {"dp_rank": 0, "num_running_reqs": state.running, "num_waiting_reqs": state.waiting, "token_usage": 0.1}
        steps = sum(state.ledger.histogram)
        if self._model.acceptance is not None and steps:
            rank["speculative"] = {"accept_length": 1 + _accepted(state.ledger) / steps}
        accelerator = self._model.accelerator
        head = {"version": sglang_bodies.VERSION, "accelerator": accelerator, "num_accelerators": 1}
        return {**head, "loads": [rank]}

    def _metrics(self, state: State) -> str:
        ledger = state.ledger
        values: dict[str, tuple[str, float]] = {
            "num_running_reqs": ("gauge", state.running),
            "num_queue_reqs": ("gauge", state.waiting),
            "token_usage": ("gauge", 0.1),
            "prompt_tokens_total": ("counter", ledger.prompt_tokens),
            "cached_tokens_total": ("counter", ledger.cached_tokens),
            "generation_tokens_total": ("counter", ledger.output_tokens),
            "num_requests_total": ("counter", len(ledger.spans)),
        }
        if (steps := sum(ledger.histogram)) > 0:
            values["spec_verify_calls_total"] = ("counter", steps)
            values["spec_accept_length"] = ("gauge", 1 + _accepted(ledger) / steps)
        families = [
            Family(f"sglang:{name}", kind, (("", {}, float(value)),))
            for name, (kind, value) in values.items()
            if value or kind == "gauge"  # SGLang leaves a counter out until it is first used
        ]
        labels = {"model_name": self._model.name, "engine_type": "unified", "tp_rank": "0", "pp_rank": "0"}
        return sglang_bodies.metrics_text(families, labels)


class VllmVoice:
    """vLLM 0.32.0; with `plain` a server that has nothing but chat completions."""

    def __init__(self, model: FakeModel, plain: bool = False) -> None:
        self._model = model
        self._plain = plain

    def page(self, path: str, state: State) -> Any:
        model = self._model
        match path:
            case _ if self._plain:
                return None
            case "/version":
                return {"version": vllm_bodies.VERSION}
            case "/server_info" if model.development:
                gpus = model.accelerator and f"GPU 0: {model.accelerator}"
                return vllm_bodies.server_info(model.name, self._config(), model.max_running, gpus)
            case "/metrics" if model.metrics:
                ledger = state.ledger
                tokens = {
                    "prompt": ledger.prompt_tokens,
                    "generation": ledger.output_tokens,
                    "cached": ledger.cached_tokens,
                }
                histogram = None if model.acceptance is None else ledger.histogram
                return vllm_bodies.metrics_text(
                    model.name, state.running, state.waiting, tokens, histogram, len(ledger.spans)
                )
        return None

    def piece(self, text: str, reasoning: bool) -> Body:
        return vllm_bodies.chunk("fake", self._model.name, {"reasoning" if reasoning else "content": text})

    def closing(self, answer: Finished) -> list[Body]:
        events = [vllm_bodies.chunk("fake", self._model.name, {}, finish_reason=answer.finish_reason)]
        if self._model.usage:
            events.append(vllm_bodies.chunk("fake", self._model.name, None, **self._counts(answer)))
        return events

    def whole(self, answer: Finished) -> Body:
        return vllm_bodies.whole(
            "fake",
            self._model.name,
            answer.text,
            answer.reasoning or None,
            answer.finish_reason,
            **self._counts(answer),
        )

    def _counts(self, answer: Finished) -> Body:
        model = self._model
        usage: Body = {
            "prompt_tokens": answer.prompt_tokens,
            "total_tokens": answer.prompt_tokens + answer.completion_tokens,
            "completion_tokens": answer.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": answer.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": answer.reasoning_tokens}
            if model.reasoning_tokens
            else None,
        }
        counts: Body = {"usage": usage if model.usage else None}
        if self._plain:
            return counts
        counts["system_fingerprint"] = f"vllm-{vllm_bodies.VERSION}-tp1-a46aefdf"
        if model.acceptance is not None and model.per_request:
            fields = vllm_bodies.speculative(answer.histogram, model.drafts_per_step)
            counts["metrics"] = {"time_to_first_token_ms": 1000 * model.prefill_s}
            counts["metrics"]["speculative_decoding"] = model.distort(fields)
        return counts

    def _config(self) -> Body | None:
        model = self._model
        if model.acceptance is None:
            return None
        return {
            "method": model.algorithm.lower(),
            "model": model.drafter,
            "num_speculative_tokens": model.drafts_per_step,
            "rejection_sample_method": "standard",
            **model.settings,
        }


_DETAILS = "return_spec_tokens_details"


def voice_of(model: FakeModel) -> Voice:
    """The voice of a backend."""
    return SGLangVoice(model) if model.backend == "sglang" else VllmVoice(model, plain=model.backend != "vllm")


def _accepted(ledger: Ledger) -> int:
    return sum(length * count for length, count in enumerate(ledger.histogram))
