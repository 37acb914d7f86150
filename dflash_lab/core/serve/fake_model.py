"""What a fake server pretends to be, how its answers come about, and what it really did."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class FakeModel:
    """The settings of a fake server."""

    backend: str = "sglang"
    """`sglang` or `vllm`; any other name is that of a server without extensions."""
    name: str = "Qwen/Qwen3.8-Flash-Next-FP8"
    """Served name and path of the target."""
    drafter: str | None = "incoai/Qwen3.8-Flash-Next-DFlash2"
    """The drafter it says it has."""
    algorithm: str = "DFLASH"
    """How it says it drafts."""
    acceptance: tuple[float, ...] | None = (0.9, 0.8, 0.7)
    """Probability that each position is accepted given all before it; None drafts nothing."""
    output_tokens: int = 40
    """Tokens of an answer, unless `max_tokens` is less."""
    reasoning_tokens: int = 0
    """How many of them are reasoning."""
    prefill_s: float = 0.004
    """Time to the first token."""
    step_s: float = 0.001
    """Time of a verification step, however many requests run."""
    tokens_per_chunk: int | None = None
    """Tokens of a streamed chunk; None sends what a step committed."""
    max_running: int = 48
    """Requests that run at a time; the rest waits."""
    max_model_len: int = 32768
    """Longest prompt and output."""
    usage: bool = True
    """Whether answers carry usage."""
    tokenizer: bool = True
    """Whether it counts tokens at /tokenize."""
    per_request: bool = True
    """Whether answers carry verification statistics."""
    metrics: bool = True
    """Whether it has /metrics."""
    development: bool = True
    """vLLM: whether it has /server_info."""
    accelerator: str | None = "NVIDIA GB300"
    """The GPU it says it runs on."""
    api_key: str | None = None
    """The key it wants."""
    failures: Mapping[str, str] = field(default_factory=dict)
    """Prompt to the kind of failure it meets, a key of `records.FAILURES`, or `die`: the server stops for good."""
    slow: Mapping[str, float] = field(default_factory=dict)
    """Prompt to how many times longer its answer takes."""
    cached: Callable[[str, str | None], int] = lambda prompt, salt: 0
    """Prompt and cache salt to prompt tokens found in the cache."""
    text_of: Callable[[str, int, bool], str] = lambda prompt, index, alone: f" w{index}"
    """Prompt, token and whether no other request runs, to the token's text."""
    distort: Callable[[dict[str, Any]], dict[str, Any]] = lambda fields: fields
    """Last change to the verification statistics of an answer."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """SGLang: fields of /server_info beside or instead of the usual ones; vLLM: of the speculative configuration."""

    @property
    def drafts_per_step(self) -> int:
        """K."""
        return len(self.acceptance or ())

    @property
    def acceptance_length(self) -> float:
        """What a run of many steps tends to: 1 + the sum of survival."""
        length, survival = 1.0, 1.0
        for rate in self.acceptance or ():
            survival *= rate
            length += survival
        return length


@dataclass(frozen=True)
class Decoded:
    """An answer as tokens and steps."""

    commits: tuple[int, ...]
    """Tokens of prefill (1) and of each step, cut at the end."""
    histogram: tuple[int, ...]
    """Steps that accepted 0, 1, .. proposals, not cut."""
    finish_reason: str
    """`stop` or `length`."""

    @property
    def num_tokens(self) -> int:
        """Tokens of the answer."""
        return sum(self.commits)


@dataclass
class Ledger:
    """What a fake server really did: the truth that a measurement is held against."""

    bodies: list[Mapping[str, Any]] = field(default_factory=list)
    """Chat requests in the order they came."""
    spans: list[tuple[float, float, int]] = field(default_factory=list)
    """Arrival, end and tokens of each answer."""
    histogram: list[int] = field(default_factory=list)
    """Steps that accepted 0, 1, .. proposals; empty without drafts."""
    prompt_tokens: int = 0
    """Prompt tokens taken in."""
    cached_tokens: int = 0
    """Those found in the cache."""

    @property
    def output_tokens(self) -> int:
        """Tokens of all answers."""
        return sum(tokens for _, _, tokens in self.spans)

    def throughput_tok_s(self, last: int) -> float:
        """Tokens per second of the last so many answers, from their first arrival to their last end."""
        spans = self.spans[-last:]
        first, end = min(arrival for arrival, _, _ in spans), max(end for _, end, _ in spans)
        return sum(tokens for _, _, tokens in spans) / (end - first)


def decode(model: FakeModel, prompt: str, max_tokens: int) -> Decoded:
    """The answer to `prompt`: always the same steps for the same prompt."""
    length = min(model.output_tokens, max_tokens)
    draw = random.Random(prompt)
    commits, histogram = [min(1, length)], [0] * (model.drafts_per_step + 1)
    while (left := length - sum(commits)) > 0:
        accepted = 0
        while accepted < model.drafts_per_step and draw.random() < (model.acceptance or ())[accepted]:
            accepted += 1
        histogram[accepted] += 1
        commits.append(min(accepted + 1, left))
    return Decoded(tuple(commits), tuple(histogram), "stop" if model.output_tokens <= max_tokens else "length")


def chunks(
    commits: Sequence[int], due: Sequence[float], tokens_per_chunk: int | None
) -> Iterator[tuple[float, int, int]]:
    """When each chunk is sent, its first token and the one after its last; short of a whole chunk only at the end."""
    first = written = 0
    for moment, committed in zip(due, commits, strict=True):
        written += committed
        while written - first >= (tokens_per_chunk or 1):
            end = first + (tokens_per_chunk or written - first)
            yield moment, first, end
            first = end
    if written > first:
        yield due[-1], first, written
