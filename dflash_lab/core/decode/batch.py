"""Independent requests side by side, each at its own length, through captured steps."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dflash_lab.core.decode.graph import Engine, Start, places_for
from dflash_lab.core.decode.sampling import sample
from dflash_lab.core.decode.static import Shape
from dflash_lab.core.errors import RequestError
from dflash_lab.core.types import SamplingParams


@dataclass(frozen=True)
class BatchRun:
    """What came of a batch."""

    output_ids: tuple[tuple[int, ...], ...]
    """Committed tokens of each request, the one from prefill first."""
    num_accepted: tuple[tuple[int, ...], ...]
    """Accepted tokens of each step of each request, 0..K, not clipped."""
    decode_s: float
    """Seconds from the last first token to the last token of all."""

    @property
    def decode_tok_s(self) -> float:
        """Tokens after the first, of all requests, per second."""
        return sum(len(ids) - 1 for ids in self.output_ids) / self.decode_s


@torch.inference_mode()
def decode_batch(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    *,
    block_size: int,
    num_candidates: int,
    rng: torch.Generator | None = None,
) -> BatchRun:
    """Decode all `prompts` at once; `block_size` 1 decodes without the drafter. Raises RequestError.

    Prompts are read one after the other, then all requests step together until the last is over.
    """
    if not prompts or not all(prompts):
        raise RequestError("a batch needs at least one prompt, and each prompt a token")
    target, drafter = engine.target, engine.drafter if block_size > 1 else None
    shape = Shape(
        batch=len(prompts),
        places=places_for(max(map(len, prompts)) + params.max_new_tokens + block_size),
        block_size=block_size,
        num_candidates=num_candidates if drafter else 0,
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        stop_ids=params.stop_ids,
        recorded=False,
    )
    batch = engine.open(shape)
    batch.seed(rng)
    target.capture(drafter.config.target_layer_ids if drafter else ())
    outputs: list[list[int]] = []
    for row, prompt in enumerate(prompts):
        read = target.prefill(torch.tensor([list(prompt)], device=target.device))
        first = int(sample(read.logits[:, -1], params, rng))
        outputs.append([first])
        if params.max_new_tokens > 1 and first not in params.stop_ids:
            batch.load(row, Start(len(prompt), first, params.max_new_tokens - 1), read.features)
    accepted: list[list[int]] = [[] for _ in prompts]
    if target.device.type == "cuda":
        torch.cuda.synchronize(target.device)
    started = time.perf_counter()
    for rows in batch.steps():
        for row, output, counts in zip(rows, outputs, accepted, strict=True):
            if row.num_committed:
                output += [*row.draft_ids[: row.num_accepted], row.bonus_id][: row.num_committed]
                counts.append(row.num_accepted)
    seconds = time.perf_counter() - started
    return BatchRun(tuple(map(tuple, outputs)), tuple(map(tuple, accepted)), seconds)
