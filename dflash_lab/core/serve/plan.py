"""What a run will send: prompts chosen from a set, the body of every request, and what to know before it begins."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dflash_lab.core.errors import DataError, RunError, ServerError
from dflash_lab.core.provenance import provenance
from dflash_lab.core.serve.recipes import pair_of
from dflash_lab.core.serve.records import LoadPlan, RunHeader, ServerInfo

WARMUP_TOKENS = 64
"""Most tokens of a warm-up request, as in z-lab's client."""

MIN_WARMUP = 8
"""Fewest warm-up requests by default: with one, as z-lab's client has it at concurrency 1, servers are still cold."""

FILLER = 0.5
"""Share of repeated 4-grams from which prompts count as filler."""

_WARMUP_TEXT = "Write a short story about the keeper of a lighthouse and storm number {}."


class PromptLike(Protocol):
    """A prompt of a set, such as `core.data.prompts` gives."""

    id: str
    text: str
    category: str
    dataset: str


@dataclass(frozen=True)
class Selection:
    """The prompts of a run."""

    measured: tuple[PromptLike, ...]
    """In the order in which they are sent."""
    warmup: tuple[str, ...]
    """Texts that are sent before and not measured."""
    repeated: int
    """Measured prompts that an earlier one equals."""
    overlapping: int
    """Warm-up texts that are measured too."""


def select(prompts: Sequence[PromptLike], plan: LoadPlan) -> Selection:
    """The first of `prompts`, a set already shuffled, as z-lab's client takes them; the next ones for the warm-up.

    Where the set is used up, the warm-up takes texts of its own. Raises DataError if the set holds too few prompts and
    the plan does not repeat them.
    """
    count, available = plan.num_prompts, len(prompts)
    if count > available and not plan.repeat:
        raise DataError(
            f"{plan.dataset} holds {available} prompts, asked for {count}; ask for {available} or fewer, or repeat "
            "them as z-lab's client does (--repeat), which measures the prefix cache too"
        )
    measured = tuple(prompts[index % available] for index in range(count))
    rest = [prompt.text for prompt in prompts[count : count + plan.num_warmup]]
    warmup = (*rest, *(_WARMUP_TEXT.format(number) for number in range(len(rest), plan.num_warmup)))
    texts = {prompt.text for prompt in measured}
    return Selection(measured, warmup, count - len(texts), sum(text in texts for text in warmup))


def request_body(plan: LoadPlan, info: ServerInfo) -> dict[str, Any]:
    """All of a request but its messages: what z-lab's client sends, and what makes the server tell its statistics."""
    body: dict[str, Any] = {
        "model": info.model,
        "max_tokens": plan.max_new_tokens,
        "temperature": plan.temperature,
        "top_p": plan.top_p,
    }
    if plan.top_k > 0:
        body["top_k"] = plan.top_k
    elif plan.temperature > 0 and info.backend != "other":
        body["top_k"] = -1  # said, or the model's generation_config.json decides
    if plan.reasoning is not None:
        body["chat_template_kwargs"] = template_arguments(plan.reasoning)
    if info.backend in ("sglang", "dflash-lab"):
        body["return_spec_tokens_details"] = True
        if not plan.stream:
            body["return_meta_info"] = True  # refused in a stream
    if plan.stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return body


def template_arguments(reasoning: str) -> dict[str, Any]:
    """`on`, `off` or a level as arguments of the chat template, under every name in use, as z-lab's client does."""
    if reasoning in ("on", "off"):
        return {"enable_thinking": reasoning == "on"}
    return {"enable_thinking": True, "reasoning_effort": reasoning, "reasoning_strength": reasoning}


def messages(text: str) -> list[dict[str, str]]:
    """A prompt as a conversation: one turn of the user, no system prompt."""
    return [{"role": "user", "content": text}]


def prompt_hash(text: str, body: Mapping[str, Any]) -> str:
    """Of what the server renders into the prompt: messages and template arguments."""
    sent = {"messages": messages(text), "chat_template_kwargs": body.get("chat_template_kwargs") or {}}
    return short_hash(json.dumps(sent, sort_keys=True, ensure_ascii=False))


def short_hash(text: str) -> str:
    """16 digits of the SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def make_header(
    plan: LoadPlan, info: ServerInfo, selection: Selection, source: str, available: int, label: str | None = None
) -> RunHeader:
    """The header of a run, with what is odd about it. Raises ServerError if the server cannot do what is planned."""
    if info.max_model_len is not None and plan.max_new_tokens >= info.max_model_len:
        raise ServerError(
            f"{info.model} takes {info.max_model_len} tokens, prompt included, and {plan.max_new_tokens} new ones are "
            "asked for; ask for fewer (--max-new-tokens)"
        )
    repetition = prompt_repetition([prompt.text for prompt in selection.measured])
    return RunHeader(
        label=label or info.method,
        server=info,
        plan=plan,
        body=request_body(plan, info),
        source=source,
        available=available,
        prompt_ids=tuple(prompt.id for prompt in selection.measured),
        repeated=selection.repeated,
        prompt_repetition=repetition,
        warnings=(*info.warnings, *_warnings(plan, info, selection, repetition)),
        provenance=provenance(),
    )


def check_same(old: RunHeader, new: RunHeader) -> None:
    """Raises RunError, naming the first difference, unless a run that began as `old` can go on as `new`."""
    pairs = [
        (f"plan {field.name}", getattr(old.plan, field.name), getattr(new.plan, field.name))
        for field in dataclasses.fields(LoadPlan)
    ]
    same = ("model", "backend", "version", "target", "algorithm", "drafter", "drafts_per_step", "hardware")
    pairs += [(f"server {name}", getattr(old.server, name), getattr(new.server, name)) for name in same]
    pairs += [("prompts", old.prompt_ids, new.prompt_ids), ("label", old.label, new.label)]
    for name, before, now in pairs:
        if before != now:
            what = "are others" if name == "prompts" else f"was {before!r}, now {now!r}"
            raise RunError(f"the run that is there cannot go on: {name} {what}; give another --out")


def prompt_repetition(texts: Sequence[str]) -> float:
    """Share of word 4-grams that occurred before in the same prompt, averaged over prompts; 0 for short ones."""
    shares = []
    for text in texts:
        words = text.split()
        grams = [tuple(words[i : i + 4]) for i in range(len(words) - 3)]
        shares.append(1 - len(set(grams)) / len(grams) if grams else 0.0)
    return sum(shares) / len(shares) if shares else 0.0


def _warnings(plan: LoadPlan, info: ServerInfo, selection: Selection, repetition: float) -> list[str]:
    found = []
    limit = info.max_running_requests
    if limit is not None and plan.concurrency is not None and plan.concurrency > limit:
        found.append(
            f"concurrency {plan.concurrency} is above the server's limit of {limit}: the rest waits in its queue"
        )
    if selection.repeated:
        found.append(
            f"{selection.repeated} of {plan.num_prompts} prompts repeat an earlier one: the prefix cache holds them"
        )
    if selection.overlapping:
        found.append(f"{selection.overlapping} warm-up prompts are measured too")
    if repetition > FILLER:
        found.append(
            f"the prompts repeat themselves ({repetition:.0%} of their 4-grams): acceptance on filler is no guide"
        )
    pair = pair_of(info)
    thinks = None if plan.reasoning is None else plan.reasoning != "off"
    if pair is not None and None not in (pair.thinking, thinks) and pair.thinking != thinks:
        made = "reasoning answers" if pair.thinking else "answers without reasoning"
        found.append(f"--reasoning {plan.reasoning}, but the drafter was made for {made}: acceptance will be lower")
    if not plan.num_warmup:
        found.append("no warm-up: the first answers of a server are slow")
    return found
