"""Named tensors of a verification step that may be observed or edited.

A recorder observes and an ablation edits through the same call: `tensor = hooks(point, tensor)`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from dflash_lab.core.errors import HookError

if TYPE_CHECKING:
    import torch

HOOK_POINTS: dict[str, str] = {
    "target_features": "[B, S, F*D] target-layer features of the tokens committed last",
    "context": "[B, S, D] the same after fc and hidden_norm, what the drafter's keys and values are made of",
    "draft_hidden": "[B, K, D] the backbone's output at the masked slots",
    "draft_logits": "[B, K, V] drafter logits through the target's head (observe only)",
    "unary": "[B, K, C] scores of the candidates",
    "edges": "[B, K, C, C] edge scores: predecessor candidate by successor candidate, unary included",
    "path": "[B, K] the chosen candidate at each position, as an index into C",
    "target_logits": "[B, L, V] the target's logits for the block (observe only)",
}
"""Every hook point with its shape; the order is that of a step."""

OBSERVE_ONLY = frozenset({"draft_logits", "target_logits"})
"""Points whose tensor may be looked at but not replaced: the text is the target's own."""

HookFn = Callable[["torch.Tensor"], "torch.Tensor | None"]


class Hooks:
    """An ordered set of functions by hook point. Returning a tensor replaces it, returning None observes."""

    def __init__(self) -> None:
        self._functions: dict[str, list[HookFn]] = {}

    def add(self, point: str, function: HookFn) -> Callable[[], None]:
        """Call `function(tensor)` at `point`, after those already there; returns a call that removes it again.

        Raises HookError for an unknown point.
        """
        if point not in HOOK_POINTS:
            raise HookError(f"no hook point {point!r}; known: {', '.join(HOOK_POINTS)}")
        functions = self._functions.setdefault(point, [])
        functions.append(function)
        return lambda: functions.remove(function)

    def wants(self, point: str) -> bool:
        """True if some function would be called at `point`, so that the tensor must be materialised."""
        return bool(self._functions.get(point))

    def __call__(self, point: str, tensor: torch.Tensor) -> torch.Tensor:
        """Pass `tensor` through the functions of `point`; its shape must not change."""
        for function in self._functions.get(point, ()):
            edited = function(tensor)
            if edited is None:
                continue
            if point in OBSERVE_ONLY:
                raise HookError(f"hook point {point!r} may be observed, not edited; return None from the hook")
            if edited.shape != tensor.shape:
                raise HookError(f"a hook on {point!r} returned {list(edited.shape)}, expected {list(tensor.shape)}")
            tensor = edited
        return tensor


NO_HOOKS = Hooks()
"""Shared and empty: observes nothing."""
