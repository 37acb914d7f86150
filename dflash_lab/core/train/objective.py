"""What a drafter is trained for: the text's next tokens, the target's own distribution, and the selector's choice.

Base loss at position k of a block, with the drafter's distribution p, the text's token y and the target's own
distribution t at that position (teacher forced):

    (1 - distill) * -log p(y)  +  distill * -sum_v t(v) log p(v)

Both parts are a cross-entropy with the label (1 - distill) * onehot(y) + distill * t, so the gradient at the logits is
p - label. Position weights, both without a gradient of their own:

    decay   exp(-k / gamma)                                          DFlash, arXiv 2602.06036, section 4.2
    dpace   sum_{j >= k} prod_{i <= j} ((1 - alpha) p_i(y_i) + alpha)     D-PACE as in SpecForge: the gradient of the
            expected number of accepted tokens, kept away from zero by alpha

Selector loss: cross-entropy over the C candidates with score unary(c) + <A[y_{k-1}] * H(h_k), B[c]>, the predecessor
being the text's (teacher forced), with the same weights. Its gradient reaches the hidden states through H and through
the unary scores, as in SpecForge, speculators and NeMo. Where y is no candidate the position is left out, or y takes
the place of the weakest (`missing_gold`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from dflash_lab.core.model.selector import CandidateSelector
from dflash_lab.core.train.recipe import Training

CHUNK_ROWS = 8192
"""Positions whose logits exist at the same time: with 49,152 tokens, 0.8 GB in bfloat16."""
GROUP = 64
"""Tokens whose maximum stands for them in the search for candidates."""


class HeadResult(NamedTuple):
    """The base loss, and what the selector needs of the logits."""

    loss: Tensor
    """Scalar, weighted mean."""
    weights: Tensor
    """`[N, K]` float32 weight of each position; 0 where there is no label."""
    candidate_ids: Tensor
    """`[N, K, C]` the largest logits' tokens, best first."""
    unary: Tensor
    """`[N, K, C]` float32 their logits, differentiable."""
    gold_unary: Tensor
    """`[N, K]` float32 logit of the text's token."""


class _HeadLoss(torch.autograd.Function):
    """Cross-entropy through a frozen head, a few blocks at a time: logits never exist for all rows at once.

    The gradient with respect to the hidden states is made in the forward pass, where the logits are.
    """

    @staticmethod
    def forward(ctx, hidden, teacher_hidden, head, labels, options, num_candidates):
        blocks = max(1, CHUNK_ROWS // labels.shape[1])
        gradient = torch.empty_like(hidden)
        losses, parts = [], []
        for start in range(0, len(hidden), blocks):
            rows = slice(start, start + blocks)
            logits = _head(hidden[rows], head)
            taught = _head(teacher_hidden[rows], head) if options.distill else None
            loss, weights, slope, gold = options.chunk(logits, taught, labels[rows], options)
            unary, ids = top_candidates(logits, num_candidates, options.maxima)
            gradient[rows] = (slope.flatten(0, 1) @ head).view_as(gradient[rows])
            losses.append(loss)
            parts.append((weights, ids, unary.float(), gold))
        weights, ids, unary, gold = (torch.cat(values) for values in zip(*parts, strict=True))
        total = weights.sum().clamp(min=1e-6)
        ctx.save_for_backward(gradient, total, head, ids)
        ctx.mark_non_differentiable(weights, ids, gold)
        return torch.stack(losses).sum() / total, weights, ids, unary, gold

    @staticmethod
    def backward(ctx, slope, weights_slope, ids_slope, unary_slope, gold_slope):
        gradient, total, head, ids = ctx.saved_tensors
        gradient = gradient * (slope / total).to(gradient.dtype)
        blocks = max(1, CHUNK_ROWS // ids.shape[1])
        for start in range(0, len(ids), blocks):
            rows = slice(start, start + blocks)
            moved = unary_slope[rows].to(head.dtype).unsqueeze(-2) @ F.embedding(ids[rows], head)
            gradient[rows] += moved.squeeze(-2)
        return gradient, None, None, None, None, None


def _head(hidden: Tensor, head: Tensor) -> Tensor:
    """Logits of `[n, K, D]`, as one plain matrix product."""
    return (hidden.flatten(0, 1) @ head.T).unflatten(0, hidden.shape[:2])


def group_maxima(logits: Tensor) -> Tensor:
    """Largest of every `GROUP` neighbours of the last axis."""
    return logits.unflatten(-1, (-1, GROUP)).amax(-1)


def top_candidates(
    logits: Tensor, count: int, maxima: Callable[[Tensor], Tensor] = group_maxima
) -> tuple[Tensor, Tensor]:
    """`torch.topk` of a long last axis in two short ones: values and indices, `[..., count]`, best first.

    The `count` largest lie in the `count` groups with the largest maxima.
    """
    groups = logits.shape[-1] // GROUP
    if logits.shape[-1] % GROUP or groups < count:
        return torch.topk(logits, count)
    grouped = logits.unflatten(-1, (groups, GROUP))
    group = maxima(logits).topk(count).indices
    inside = grouped.gather(-2, group.unsqueeze(-1).expand(*group.shape, GROUP)).flatten(-2)
    values, place = inside.topk(count)
    return values, group.gather(-1, place // GROUP) * GROUP + place % GROUP


def head_chunk(logits: Tensor, taught: Tensor | None, labels: Tensor, options: Objective):
    """Weighted loss (sum), weights `[n, K]`, gradient at the logits `[n, K, V]`, logits of the labels `[n, K]`."""
    scores = logits.float()
    gold = labels.clamp(min=0).unsqueeze(-1)
    normaliser = scores.logsumexp(-1, keepdim=True)
    gold_score = scores.gather(-1, gold)
    gold_log = gold_score - normaliser
    weights = options.weights(gold_log.squeeze(-1).exp(), labels >= 0)
    probability = (scores - normaliser).exp()
    onehot = torch.arange(scores.shape[-1], device=scores.device) == gold
    if taught is None:
        label, entropy = onehot.float(), -gold_log.squeeze(-1)
    else:
        target = torch.softmax(taught.float(), dim=-1)
        label = (1 - options.distill) * onehot + options.distill * target
        soft = normaliser.squeeze(-1) - (target * scores).sum(-1)
        entropy = (options.distill - 1) * gold_log.squeeze(-1) + options.distill * soft
    slope = ((probability - label) * weights.unsqueeze(-1)).to(logits.dtype)
    return (entropy * weights).sum(), weights, slope, gold_score.squeeze(-1)


class Objective:
    """The loss of a recipe."""

    def __init__(self, training: Training, num_candidates: int, *, compiled: bool = False) -> None:
        self._training, self._num_candidates = training, num_candidates
        self.distill = training.distill
        self.chunk = torch.compile(head_chunk, dynamic=False) if compiled else head_chunk
        self.maxima = torch.compile(group_maxima, dynamic=False) if compiled else group_maxima

    def weights(self, gold_probability: Tensor, labelled: Tensor) -> Tensor:
        """Weight of each position, `[n, K]`, from the gold token's probability `[n, K]`."""
        training = self._training
        if training.weighting == "decay":
            position = torch.arange(labelled.shape[1], device=labelled.device)
            return torch.exp(-position / training.decay) * labelled
        alpha = training.dpace_alpha
        lifted = ((1 - alpha) * gold_probability + alpha) * labelled
        reached = lifted.cumprod(1)
        # Sum over the positions from k on: the total less what lies before k.
        return (reached.sum(1, keepdim=True) - reached.cumsum(1) + reached) * labelled

    def base(self, hidden: Tensor, teacher_hidden: Tensor, head: Tensor, labels: Tensor) -> HeadResult:
        """Base loss of draft hidden states `[N, K, D]`; `teacher_hidden` is the target's at the same positions."""
        return HeadResult(*_HeadLoss.apply(hidden, teacher_hidden, head, labels, self, self._num_candidates))

    def selector(
        self, selector: CandidateSelector, hidden: Tensor, anchor_ids: Tensor, labels: Tensor, result: HeadResult
    ) -> Tensor:
        """Selector loss; `anchor_ids [N]` are the predecessors of the first position."""
        gold = labels.clamp(min=0)
        predecessors = torch.cat((anchor_ids.unsqueeze(1), gold[:, :-1]), dim=1)
        ids, unary = result.candidate_ids, result.unary
        matches = ids == gold.unsqueeze(-1)
        found = matches.any(-1)
        if self._training.missing_gold == "insert":
            place = torch.where(found, matches.int().argmax(-1), ids.shape[-1] - 1).unsqueeze(-1)
            ids = ids.scatter(-1, place, gold.unsqueeze(-1))
            unary = unary.scatter(-1, place, result.gold_unary.unsqueeze(-1))
            index, weights = place.squeeze(-1), result.weights
        else:
            index, weights = matches.int().argmax(-1), result.weights * found
        # An embedding's gradient sums frequent tokens in segments; that of plain indexing takes them one by one.
        codes = F.embedding(predecessors, selector.predecessor_codebook)
        codes = codes * selector.project(hidden.to(selector.hidden_projection.weight))
        scores = unary + (F.embedding(ids, selector.successor_codebook) @ codes.unsqueeze(-1)).squeeze(-1)
        losses = F.cross_entropy(scores.flatten(0, 1), index.flatten(), reduction="none").view_as(weights)
        return (losses * weights).sum() / result.weights.sum().clamp(min=1e-6)
