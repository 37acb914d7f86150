"""Decoding speed of several arms over the same prompts: interleaved, checked for equal text, then compared in pairs.

An arm is a callable; nothing here knows what is behind it. The machine's load drifts, so every prompt is decoded by
all arms in turn, each prompt starting with another arm, and ratios are taken prompt by prompt.
"""

from __future__ import annotations

import dataclasses
import resource
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING

from dflash_lab.core.errors import BackendError, RequestError

if TYPE_CHECKING:
    from pathlib import Path

    from dflash_lab.core.generate import Pair
    from dflash_lab.core.types import GenerateRequest

EXACT_MARGIN = 1e-3
"""Largest top-2 margin of logits that rounding explains in float32."""
HALF_MARGIN = 0.5
"""The same in half precision: four steps of bfloat16 at the logits' size, for every layer before them rounds too."""


@dataclass(frozen=True)
class ArmRun:
    """One prompt decoded by one arm."""

    output_ids: tuple[int, ...]
    """Committed tokens, the one from prefill included."""
    decode_s: float
    """Seconds from the first token to the last."""
    num_steps: int
    """Verification steps."""

    @property
    def mean_commit_length(self) -> float:
        """Tokens that a step appended on average."""
        return (len(self.output_ids) - 1) / self.num_steps

    @property
    def decode_tok_s(self) -> float:
        """Tokens after the first per second."""
        return (len(self.output_ids) - 1) / self.decode_s


Arm = Callable[[str], ArmRun]
"""Decodes a prompt's text, greedily."""


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of one value per prompt."""

    median: float
    """The middle."""
    q1: float
    """First quartile."""
    q3: float
    """Third quartile; q3 - q1 is the spread."""
    per_prompt: tuple[float, ...]
    """The values in the prompts' order."""

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one value."""
        q1, median, q3 = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
        return cls(median, q1, q3, tuple(values))


@dataclass(frozen=True)
class Difference:
    """Where an arm's text first leaves the autoregressive one."""

    prompt: int
    """Number of the prompt, from 0."""
    arm: str
    """The arm that differs."""
    index: int
    """First output token that differs."""
    expected_id: int | None
    """The autoregressive token; None if that text has ended."""
    found_id: int | None
    """The arm's token; None if its text has ended."""
    margin: float
    """Difference of the target's two largest logits there."""
    rounding: bool
    """Whether rounding explains a flip at this margin."""


@dataclass(frozen=True)
class Memory:
    """Peak memory of decoding against what the weights need."""

    weights_bytes: int
    """Parameters of target and drafter as loaded."""
    peak_bytes: int
    """Most memory at a time: on a GPU what torch allocated, else what the process had beyond that before loading."""

    @property
    def peak_over_weights(self) -> float:
        """How many times the weights."""
        return self.peak_bytes / self.weights_bytes


def interleave(
    arms: Mapping[str, Arm], prompts: Sequence[str], warmup: str, advance: Callable[[], None] = lambda: None
) -> dict[str, tuple[ArmRun, ...]]:
    """Decode `warmup` once with each arm, unmeasured, then every prompt with all arms in turn.

    `advance` is called after each prompt. An interrupt ends it with the prompts that all arms have decoded, if any.
    Raises RequestError if a text has only one token: no speed.
    """
    names = list(arms)
    for name in names:
        arms[name](warmup)
    finished: list[dict[str, ArmRun]] = []
    try:
        for number, prompt in enumerate(prompts):
            first = number % len(names)
            runs = {name: arms[name](prompt) for name in names[first:] + names[:first]}
            for name, run in runs.items():
                if len(run.output_ids) < 2:
                    raise RequestError(f"prompt {number} gave one token with {name}: no speed to measure")
            finished.append(runs)
            advance()
    except KeyboardInterrupt:
        if not finished:
            raise
    return {name: tuple(runs[name] for runs in finished) for name in names}


def find_differences(
    runs: Mapping[str, Sequence[ArmRun]],
    baseline: str,
    dtype: str,
    margin_at: Callable[[int, tuple[int, ...]], float],
) -> tuple[Difference, ...]:
    """Each text that is not the baseline's, at its first difference.

    `margin_at(prompt, output_ids)` gives the target's top-2 margin after the prompt and these tokens.
    """
    limit = EXACT_MARGIN if dtype == "float32" else HALF_MARGIN
    found = []
    for name, done in runs.items():
        for number, (run, reference) in enumerate(zip(done, runs[baseline], strict=True)):
            ours, theirs = run.output_ids, reference.output_ids
            if ours == theirs:
                continue
            shared = zip(ours, theirs, strict=False)
            index = next((i for i, (a, b) in enumerate(shared) if a != b), min(len(ours), len(theirs)))
            margin = margin_at(number, theirs[:index])
            expected, got = (ids[index] if index < len(ids) else None for ids in (theirs, ours))
            # Texts that agree as far as both go and end apart are not a matter of rounding.
            rounding = margin <= limit and None not in (expected, got)
            found.append(Difference(number, name, index, expected, got, margin, rounding))
    return tuple(found)


def paired_ratio(runs: Sequence[ArmRun], others: Sequence[ArmRun]) -> Spread:
    """Speed of `runs` by that of `others`, prompt by prompt."""
    return Spread.of([a.decode_tok_s / b.decode_tok_s for a, b in zip(runs, others, strict=True)])


def pair_arm(pair: Pair, request: GenerateRequest) -> Arm:
    """An arm of ours: `request` with the prompt's text put in."""
    from dflash_lab.core.generate import generate

    def run(prompt: str) -> ArmRun:
        generation = generate(pair, dataclasses.replace(request, prompt=prompt))
        for _ in generation:
            pass
        summary = generation.summary
        return ArmRun(summary.output_ids, summary.decode_s, summary.num_steps)

    return run


def import_zlab() -> ModuleType:
    """The module of z-lab's dflash with its models and its loop. Raises BackendError if the package is missing."""
    try:
        from dflash import model
    except ImportError:
        raise BackendError(
            "z-lab's dflash is not installed; pip install --no-deps dflash==0.1.0, then --against zlab again"
        ) from None
    return model


def zlab_arm(zlab: ModuleType, pair: Pair, checkpoint: str | Path, block_size: int, max_new_tokens: int) -> Arm:
    """z-lab's dflash as its users run it: transformers' model of the same target files, its own code for the drafter.

    `zlab` is what `import_zlab` gives; `checkpoint` is a folder or hub id.
    """
    import torch

    from dflash_lab.core.target.hf import load_model

    target = pair.target
    model = load_model(pair.target_folder, dtype=target.dtype, device=target.device)
    if target.device.type != "cuda":
        zlab._cuda_time = time.perf_counter  # its clock waits for a CUDA device, which there is none of
    kind = zlab.DFlashDraftModel if pair.drafter.config.selector is None else zlab.DFlash2DraftModel
    draft = kind.from_pretrained(checkpoint, attn_implementation="sdpa", dtype=target.dtype)
    draft = draft.to(target.device).eval()

    def run(prompt: str) -> ArmRun:
        ids = torch.tensor([pair.text.encode(prompt)[0]], device=target.device)
        stop_ids = list(target.info.stop_ids)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # it calls transformers as of an older version
            done = zlab.dflash_generate(
                draft, model, ids, max_new_tokens, stop_ids, block_size=block_size, return_stats=True
            )
        output = tuple(done.output_ids[0, done.num_input_tokens :].tolist())
        return ArmRun(output, done.time_per_output_token * len(output), len(done.acceptance_lengths))

    return run


def target_margin(pair: Pair, prompt: str, output_ids: Sequence[int]) -> float:
    """The target's top-2 margin of logits after `prompt` and `output_ids`, from one pass over all of them."""
    import torch

    ids = torch.tensor([[*pair.text.encode(prompt)[0], *output_ids]], device=pair.target.device)
    first, second = pair.target.prefill(ids).logits[0, -1].float().topk(2).values.tolist()
    return first - second


def process_peak_bytes() -> int:
    """Most memory this process has had so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # kilobytes everywhere else


def measure_memory(pair: Pair, before_bytes: int) -> Memory:
    """Memory of what `pair` has done so far; `before_bytes` is `process_peak_bytes()` from before it was loaded."""
    import torch

    if pair.target.device.type == "cuda":
        peak = torch.cuda.max_memory_allocated()
    else:
        peak = process_peak_bytes() - before_bytes
    return Memory(pair.target.weights_bytes + pair.drafter.weights_bytes, peak)
