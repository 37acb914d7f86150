"""What SGLang 0.5.23 says, as JSON values and as Prometheus text: for our own server and for the fake one.

Nothing is counted here: the callers give numbers, these functions give them SGLang's names and places. Its definitions,
which differ from ours:

    spec_num_proposed_drafts   steps * (block size - 1), also where the last block had less room than that
    spec_accept_length         completion tokens / steps, the first token included and cut at stop or length
    histogram                  steps that accepted 0, 1, .. drafts, no longer than the most accepted
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

VERSION = "0.5.23"
"""The release whose names these are."""

Body = dict[str, Any]


def spec_fields(histogram: Sequence[int], block_size: int, completion_tokens: int) -> Body:
    """The `spec_*` fields of a finished request; empty without a verification step, as SGLang leaves them out.

    `histogram[a]` counts the steps that accepted `a` proposals; `block_size` counts the anchor.
    """
    steps = sum(histogram)
    if not steps:
        return {}
    accepted = sum(length * count for length, count in enumerate(histogram))
    proposed = steps * (block_size - 1)
    most = max(length for length, count in enumerate(histogram) if count)
    return {
        "spec_accept_rate": accepted / proposed if proposed else 0.0,
        "spec_accept_length": completion_tokens / steps,
        "spec_num_correct_drafts": accepted,
        "spec_num_proposed_drafts": proposed,
        "spec_verify_ct": steps,
        "spec_correct_drafts_histogram": list(histogram[: most + 1]),
    }


def spec_tokens_details(spec: Mapping[str, Any]) -> Body:
    """`sglext` with the `spec_*` fields of a request, as `return_spec_tokens_details` asks for; empty without them."""
    if not spec:
        return {}
    dspark = {"spec_cap_length": 0.0, "spec_block_accept_length": 0.0, "spec_cap_lens_histogram": []}
    return {"sglext": {"spec_tokens_details": {**spec, **dspark}}}


def usage(prompt_tokens: int, completion_tokens: int, reasoning_tokens: int = 0) -> Body:
    """Token counts of a request."""
    details = {"reasoning_tokens": reasoning_tokens} if reasoning_tokens else None
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
        "prompt_tokens_details": None,
        "reasoning_tokens": reasoning_tokens,
        "completion_tokens_details": details,
    }


@dataclass(frozen=True)
class Answer:
    """What all bodies of one chat completion have in common."""

    id: str
    """Of the request."""
    model: str
    """The served name."""
    created: int
    """Unix time, whole seconds."""

    def whole(
        self,
        text: str,
        finish_reason: str,
        counts: Mapping[str, Any],
        *,
        matched_stop: int | str | None = None,
        reasoning: str | None = None,
        meta_info: Mapping[str, Any] | None = None,
        extension: Mapping[str, Any] | None = None,
    ) -> Body:
        """The body of an answer that is not streamed; `counts` is `usage`, `extension` is `spec_tokens_details`."""
        message = {"role": "assistant", "content": text, "reasoning_content": reasoning, "tool_calls": None}
        choice = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": finish_reason,
            "matched_stop": matched_stop,
        }
        if meta_info is not None:
            choice["meta_info"] = dict(meta_info)
        body = self._body("chat.completion", [choice], counts)
        return {**body, "metadata": {"weight_version": "default"}, **(extension or {})}

    def opening(self, counts: Mapping[str, Any] | None = None) -> Body:
        """The first chunk of a stream: the role, no text."""
        return self._chunk({"role": "assistant", "content": ""}, None, None, counts)

    def piece(self, text: str, counts: Mapping[str, Any] | None = None, *, reasoning: bool = False) -> Body:
        """A chunk with text; `counts` if usage was asked for in every chunk."""
        return self._chunk({"reasoning_content" if reasoning else "content": text}, None, None, counts)

    def ending(self, finish_reason: str, matched_stop: int | str | None = None) -> Body:
        """The chunk that says why it ended."""
        return self._chunk({}, finish_reason, matched_stop, None)

    def extension(self, extension: Mapping[str, Any]) -> Body:
        """The chunk that carries `sglext`."""
        return {**self._body("chat.completion.chunk", [], None), **extension}

    def counts(self, counts: Mapping[str, Any]) -> Body:
        """The last chunk, if usage was asked for."""
        return self._body("chat.completion.chunk", [], counts)

    def _chunk(self, delta: Body, finish: str | None, stop: int | str | None, counts: Mapping[str, Any] | None) -> Body:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish, "matched_stop": stop}
        return self._body("chat.completion.chunk", [choice], counts)

    def _body(self, kind: str, choices: list[Body], counts: Mapping[str, Any] | None) -> Body:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
            "usage": None if counts is None else dict(counts),
        }


def error(message: str, code: int, kind: str = "BadRequest", param: str | None = None) -> Body:
    """The body of an HTTP error."""
    return {"object": "error", "message": message, "type": kind, "param": param, "code": code}


def models(name: str, owner: str, created: int, max_model_len: int | None) -> Body:
    """`/v1/models` of a server with one model."""
    card = {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": owner,
        "root": name,
        "parent": None,
        "max_model_len": max_model_len,
    }
    return {"object": "list", "data": [card]}


@dataclass(frozen=True)
class Family:
    """One metric of a Prometheus page with its samples."""

    name: str
    """SGLang's name, `sglang:` included."""
    kind: str
    """`gauge`, `counter` or `histogram`."""
    samples: tuple[tuple[str, Mapping[str, str], float], ...] = field(default_factory=tuple)
    """Suffix of the name, labels beside the common ones, value."""


def histogram_samples(
    edges: Sequence[float], counts: Sequence[int], total: float, labels: Mapping[str, str]
) -> tuple[tuple[str, Mapping[str, str], float], ...]:
    """Samples of a `histogram` family. `counts` has one entry for each bucket and one for values past the last edge."""
    names = [f"{edge:g}" for edge in edges] + ["+Inf"]
    buckets = zip(names, itertools.accumulate(counts), strict=True)
    cumulative = tuple(("_bucket", {**labels, "le": name}, float(count)) for name, count in buckets)
    return (*cumulative, ("_sum", labels, total), ("_count", labels, float(sum(counts))))


def metrics_text(families: Iterable[Family], labels: Mapping[str, str]) -> str:
    """A Prometheus page; `labels` are on every sample. A family without samples is left out, as SGLang does."""
    lines = []
    for family in families:
        if family.samples:
            lines.append(f"# TYPE {family.name} {family.kind}")
        for suffix, own, value in family.samples:
            pairs = ",".join(f'{key}="{_escape(text)}"' for key, text in {**labels, **own}.items())
            lines.append(f"{family.name}{suffix}{{{pairs}}} {value!r}")
    return "\n".join(lines) + "\n"


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
