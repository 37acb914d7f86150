"""One verification step over tensors that never move: no launch depends on a value, so the step can be captured.

Everything that the host loop of `loop.py` keeps in Python lies on the device here: where each request stands, what is
left of it, whether it is over. A step drafts, verifies, accepts, commits, and leaves a packed record of what it did.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dflash_lab.core.decode.sampling import sample
from dflash_lab.core.decode.verify import verify_sampled
from dflash_lab.core.errors import RequestError
from dflash_lab.core.kernels.greedy_accept.reference import Verdict
from dflash_lab.core.kernels.ops import Ops
from dflash_lab.core.model.drafter import Drafter
from dflash_lab.core.model.static import StaticDraft, StaticDrafter
from dflash_lab.core.target.base import TargetOutput
from dflash_lab.core.target.lean import LeanTarget
from dflash_lab.core.target.static import StaticTarget
from dflash_lab.core.types import SamplingParams

HEADER = 4
"""Words of a record before the proposal: accepted, bonus, committed, over."""
STAMPS = ("draft", "select", "verify", "commit")


@dataclass(frozen=True)
class Shape:
    """What a step is made, and captured, for."""

    batch: int
    """B, requests side by side."""
    places: int
    """S, places of each request's caches."""
    block_size: int
    """L; 1 without a drafter."""
    num_candidates: int
    """C; 0 without a drafter."""
    temperature: float
    """0 is greedy."""
    top_p: float
    """Nucleus filter of the target's distribution."""
    top_k: int
    """Top-k filter of the target's distribution."""
    stop_ids: tuple[int, ...]
    """Tokens that end a text."""
    recorded: bool
    """Whether scores are kept."""


class StaticStep:
    """The state of a batch on the device, and the step that moves it."""

    def __init__(
        self, target: LeanTarget, drafter: Drafter | None, ops: Ops, shape: Shape, rng: torch.Generator | None
    ) -> None:
        self.shape, self._ops, self._rng = shape, ops, rng
        self._params = SamplingParams(temperature=shape.temperature, top_p=shape.top_p, top_k=shape.top_k)
        device, batch = target.device, shape.batch
        layer_ids = drafter.config.target_layer_ids if drafter else ()
        self.target = StaticTarget(target, ops, batch=batch, places=shape.places, layer_ids=layer_ids)
        self.drafter = None
        if drafter:
            self.drafter = StaticDrafter(
                drafter,
                ops,
                batch=batch,
                places=shape.places,
                block_size=shape.block_size,
                num_candidates=shape.num_candidates,
                target_head=self.target.head_weight,
            )
        self._blocks = torch.zeros(batch, shape.block_size, dtype=torch.int64, device=device)
        self._lengths = torch.zeros(batch, dtype=torch.int32, device=device)
        self._left = torch.zeros(batch, dtype=torch.int32, device=device)
        self._done = torch.ones(batch, dtype=torch.int32, device=device)
        self._stop_ids = torch.tensor(shape.stop_ids, dtype=torch.int64, device=device)
        self._places = torch.arange(shape.block_size - 1, device=device)
        self._stamps = torch.zeros(len(STAMPS) + 1, dtype=torch.int64, device=device)
        self.layout: dict[str, tuple[torch.Size, bool]] = {}
        """Of each recorded tensor of one request: its shape and whether it is floating point, in packed order."""

    def place(self, row: int, *, length: int, anchor_id: int, left: int) -> None:
        """Request `row` stands behind `length` tokens, goes on from the anchor, and may commit `left` more."""
        if length + self.shape.block_size + left > self.shape.places:
            raise RequestError(
                f"{length} tokens, {left} more and a block of {self.shape.block_size} do not fit a cache of "
                f"{self.shape.places}: shorten the prompt or lower max_new_tokens"
            )
        self._lengths[row], self._left[row], self._done[row] = length, left, 0
        self._blocks[row, 0] = anchor_id

    def clear(self) -> None:
        """No request is under way."""
        self._done.fill_(1)
        self._left.zero_()

    @torch.inference_mode()
    def run(self) -> Tensor:
        """One step for every request that is not over; returns the packed record `[B, words]` int32."""
        self._stamp(0)
        draft, judged = None, self._blocks[:, 1:]
        if self.drafter:
            draft, judged = self._draft()
        output = self.target.forward(self._blocks, self._lengths)
        best = self._ops.token_stats(output.logits) if self.shape.recorded else None
        verdict = self._verify(output, draft, judged)
        if self.drafter:
            self.drafter.extend(output.features, self._lengths)
        self._stamp(3)
        committed = self._ops.commit(
            self._blocks, verdict.num_accepted, verdict.bonus_id, self._lengths, self._left, self._done, self._stop_ids
        )
        # Packing takes the stamps along, the last of them too: it is in no phase.
        self._stamp(4)
        return self._packed(committed.record, draft, output, best)

    def _draft(self) -> tuple[StaticDraft, Tensor]:
        """The draft, and its proposal without what lies past the end of a request."""
        greedy = self.shape.temperature == 0
        # A request that ends soon gets a shorter block, as in the eager loop; a sampled one is cut when it commits.
        slots = (self._left + 1).clamp_(max=self.shape.block_size) if greedy else None
        anchors = self._blocks[:, 0]
        hidden = self.drafter.hidden(anchors, self._lengths, slots)
        self._stamp(1)
        draft = self.drafter.select(hidden, anchors, self.shape.temperature, self._rng, self.shape.recorded)
        self._stamp(2)
        self._blocks[:, 1:] = draft.proposal
        if not greedy:
            return draft, draft.proposal
        return draft, draft.proposal.masked_fill(self._places >= (slots - 1).unsqueeze(1), -1)

    def _verify(self, output: TargetOutput, draft: StaticDraft | None, judged: Tensor) -> Verdict:
        shape = self.shape
        if shape.temperature == 0:
            return self._ops.greedy_accept(output.logits, judged)
        if draft is None:
            token = sample(output.logits[:, -1], self._params, self._rng)
            return Verdict(torch.zeros_like(token), token)
        if shape.top_p == 1.0 and not 0 < shape.top_k < output.logits.shape[-1]:
            uniforms = torch.rand(judged.shape, generator=self._rng, device=judged.device)
            residual_uniforms = torch.rand(judged.shape[:1], generator=self._rng, device=judged.device)
            return self._ops.rejection_accept(
                output.logits, judged, draft.candidate_ids, draft.q, shape.temperature, uniforms, residual_uniforms
            )
        return verify_sampled(output.logits, judged, draft.candidate_ids, draft.q, self._params, self._rng)

    def _packed(self, record: Tensor, draft: StaticDraft | None, output: TargetOutput, best) -> Tensor:
        """Everything that the host may want of this step, `[B, words]` int32."""
        batch = self.shape.batch
        tensors: dict[str, Tensor] = {}
        if draft is not None:
            # Not finite if one score is not.
            tensors["sum"] = draft.unary.sum((1, 2))
        if self.shape.recorded:
            tensors |= _recorded(draft, output, best)
        self.layout = {name: (tensor.shape[1:], tensor.is_floating_point()) for name, tensor in tensors.items()}
        parts = [record]
        for tensor in tensors.values():
            flat = tensor.reshape(batch, -1)
            parts.append(flat.float().view(torch.int32) if flat.is_floating_point() else flat.int())
        parts.append(self._stamps.view(torch.int32).expand(batch, -1))
        return torch.cat(parts, dim=1)

    def _stamp(self, place: int) -> None:
        """Write the device's clock, if it has one."""
        if self._stamps.is_cuda and self.shape.recorded:
            from dflash_lab.core.kernels.stamp import stamp

            stamp(self._stamps, place)


def _recorded(draft: StaticDraft | None, output: TargetOutput, best) -> dict[str, Tensor]:
    """The recorder's tensors, by its names."""
    tensors = {"target_ids": best.best_id, "target_top2": best.top2, "target_log_norm": best.log_norm}
    if draft is not None:
        drafted = {
            "candidate_ids": draft.candidate_ids,
            "unary": draft.unary,
            "edges": draft.edges,
            "path": draft.path,
            "q": draft.q,
            "log_norm": draft.log_norm,
        }
        tensors |= {name: tensor for name, tensor in drafted.items() if tensor is not None}
        tensors["target_logit"] = output.logits[:, :-1].gather(2, draft.candidate_ids).float()
    return tensors
