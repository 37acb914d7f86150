"""Keeps what happened in a decode: `hooks = recorder.attach(hooks)`, `recorder.add(step)` per step, `recorder.finish`.

The work of a step stays on its device in a few batched operations and comes to the host in one transfer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from dflash_lab.core.errors import RequestError
from dflash_lab.core.hooks import NO_HOOKS, Hooks
from dflash_lab.core.trace.schema import FEATURE_TENSORS, TokenInfo, Trace, TraceHeader
from dflash_lab.core.types import RECORD_LEVELS, StepRecord

if TYPE_CHECKING:
    import torch

MAX_CANDIDATES = 256
"""Most candidates whose scores are recorded: a position's edge scores number their square."""

_DRAFT_TENSORS = ("candidate_ids", "unary", "edges", "path", "q")


class Recorder:
    """Records one generation (one sequence, B = 1) at level `steps`, `scores` or `features`."""

    def __init__(self, level: str) -> None:
        assert level in RECORD_LEVELS[1:], level
        self.level = level
        self._steps: list[StepRecord] = []
        self._arrays: dict[tuple[str, int], np.ndarray] = {}
        self._observed: dict[str, torch.Tensor] = {}
        self._remove: list[Callable[[], None]] = []

    def attach(self, hooks: Hooks | None = None) -> Hooks:
        """Observe through `hooks`, after the functions already there, or through new ones; returns the hooks to use.

        At level `scores` the drafter then materialises its edge scores. Recording more than MAX_CANDIDATES candidates
        raises RequestError at the first draft.
        """
        if hooks is None or hooks is NO_HOOKS:
            hooks = Hooks()
        if self.level != "steps":
            self._remove.append(hooks.add("unary", _refuse_wide))
            self._remove.append(hooks.add("draft_logits", self._observe_norm))
            self._remove.append(hooks.add("edges", lambda edges: None))  # wanting them is enough: the step holds them
        if self.level == "features":
            for point in FEATURE_TENSORS:
                self._remove.append(hooks.add(point, lambda tensor, point=point: self._observe(point, tensor[0])))
        return hooks

    def add(self, step: Any) -> None:
        """Keep `step`, while its tensors live: it has a `record`, a `draft` (or None) and an `output` with `logits`."""
        self._steps.append(step.record)
        if self.level == "steps":
            return
        if step.arrays is not None:
            self._arrays |= {(name, step.record.index): array for name, array in step.arrays.items()}
            return
        tensors = dict(self._observed)
        self._observed.clear()
        if step.draft is not None:
            drafted = {name: getattr(step.draft, name) for name in _DRAFT_TENSORS}
            tensors |= {name: tensor[0] for name, tensor in drafted.items() if tensor is not None}
        tensors |= _judgement(step.output.logits[0], tensors.get("candidate_ids"))
        for name, array in _to_host(tensors).items():
            self._arrays[name, step.record.index] = array

    def finish(
        self, header: TraceHeader, tokens: Callable[[list[int]], Mapping[int, TokenInfo]] | None = None
    ) -> Trace:
        """The trace of the steps so far, as `snapshot` gives it; stops observing."""
        while self._remove:
            self._remove.pop()()
        return self.snapshot(header, tokens)

    def snapshot(
        self, header: TraceHeader, tokens: Callable[[list[int]], Mapping[int, TokenInfo]] | None = None
    ) -> Trace:
        """The trace of the steps so far, under `header` with this recorder's level; what comes is recorded as before.

        `tokens` gives the text of every id that occurs in the trace, for the header.
        """
        header = dataclasses.replace(header, level=self.level)
        if tokens is not None:
            header = dataclasses.replace(header, tokens=tokens(self._token_ids(header)))
        return Trace.from_arrays(header, tuple(self._steps), dict(self._arrays))

    def _token_ids(self, header: TraceHeader) -> list[int]:
        """Every token id that occurs, sorted."""
        found = {*header.prompt_ids, *header.output_ids}
        for step in self._steps:
            found.update((step.anchor_id, *step.draft_ids, step.bonus_id))
        ids = [array.ravel() for (name, _), array in self._arrays.items() if name in ("candidate_ids", "target_ids")]
        if ids:
            found.update(np.unique(np.concatenate(ids)).tolist())
        return sorted(found)

    def _observe(self, name: str, tensor: torch.Tensor) -> None:
        self._observed[name] = tensor

    def _observe_norm(self, logits: torch.Tensor) -> None:
        self._observe("log_norm", logits[0].float().logsumexp(-1))


def _refuse_wide(unary: torch.Tensor) -> None:
    if unary.shape[-1] > MAX_CANDIDATES:
        raise RequestError(
            f"scores are recorded of at most {MAX_CANDIDATES} candidates, got {unary.shape[-1]}: use --record steps"
        )


def _judgement(logits: torch.Tensor, candidate_ids: torch.Tensor | None) -> dict[str, torch.Tensor]:
    """What the target's `logits [L, V]` say about the block; slot i judges position i."""
    import torch

    logits = logits.float()
    # arg-max as in verification: topk may break a tie the other way.
    best = logits.argmax(-1, keepdim=True)
    second = logits.scatter(-1, best, float("-inf")).amax(-1, keepdim=True)
    judgement = {
        "target_ids": best[:, 0],
        "target_top2": torch.cat((logits.gather(-1, best), second), dim=-1),
        "target_log_norm": logits.logsumexp(-1),
    }
    if candidate_ids is not None:
        judgement["target_logit"] = logits[:-1].gather(-1, candidate_ids)
    return judgement


def _to_host(tensors: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
    """All tensors as int32 and float32 arrays through one transfer; the arrays share one buffer."""
    import torch

    words = [
        (tensor.float().contiguous().view(torch.int32) if tensor.is_floating_point() else tensor.int())
        for tensor in tensors.values()
    ]
    host = torch.cat([word.reshape(-1) for word in words]).cpu().numpy()
    arrays, end = {}, 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.numel()
        array = host[start:end].view(np.float32) if tensor.is_floating_point() else host[start:end]
        arrays[name] = array.reshape(tuple(tensor.shape))
    return arrays
