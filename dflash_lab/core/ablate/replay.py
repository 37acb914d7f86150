"""Many settings of a drafter on texts that the target has written, exactly, without decoding again.

Greedy text is the target's own whatever drafts it, so a run is a walk: the anchor moves from accepted prefix to
accepted prefix along a known text. The walks of all settings that share a block size share drafts as well, for a
proposal of C candidates is made of the first C of a longer list and of the upper left part of its edge scores. Only
anchors that some walk stands at are drafted, in batches; a batch too small to be worth its weights is filled up with
the anchors that follow. Blocks are cut to what is left of the length, as in decoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dflash_lab.core.errors import NumericsError
from dflash_lab.core.kernels.edge_walk.reference import MATERIALISE_UP_TO, walk_edges
from dflash_lab.core.kernels.sdpa import attention_kernels
from dflash_lab.core.model.drafter import Drafter
from dflash_lab.core.train.blocks import ContextKeys, block_labels, block_states, context_keys, layout
from dflash_lab.core.train.objective import top_candidates

LEAST_SLOTS = {"cpu": 32, "cuda": 8192}
"""Slots in a batch, by device, below which it costs as much as one of so many."""
MOST_SLOTS = {"cpu": 1024, "cuda": 16384}
"""Slots in a batch at most: their logits have to fit."""
MOST_OF_A_TEXT = 1024
"""Slots of one text that a batch is filled up to: blocks of a text are masked from each other, not left out."""


@dataclass(frozen=True)
class Choice:
    """How a proposal is chosen from drafted candidates."""

    num_candidates: int
    """C."""
    selector: bool
    """Whether the selector walks; else each position's best candidate is proposed."""


class Texts(NamedTuple):
    """Texts side by side, padded on the right, and what walks along them need to know."""

    ids: Tensor
    """`[B, S]` int64 token ids."""
    starts: np.ndarray
    """`[B]` position of the first anchor, which is the first token of the answer."""
    ends: np.ndarray
    """`[B]` position of the last token that is committed; a walk is over there."""
    known: np.ndarray
    """`[B]` tokens that are known; a proposal past them counts as wrong."""
    limits: np.ndarray
    """`[B]` positions that a block may not reach: it is cut before them, as at the end of `max_new_tokens`."""


@dataclass(frozen=True)
class Walks:
    """The walks of several choices along several texts. Anchors count from the first of each text."""

    choices: tuple[Choice, ...]
    """What was proposed."""
    visited: np.ndarray
    """`[choices, B, A]` bool: anchors that the walk stood at."""
    accepted: np.ndarray
    """`[choices, B, A]` int: accepted tokens at a drafted anchor."""
    margins: np.ndarray
    """`[choices, B, A]` float32: smallest margin of scores that the accepted length hangs on; inf if on none."""
    drafted: np.ndarray
    """`[B, A]` int: tokens proposed, K less what the length cuts off."""
    ranks: np.ndarray
    """`[B, A, K]` int: rank of the text's token among the candidates, 1 is best; 0 if not among them or not known."""


def read_context(drafter: Drafter, features: Tensor) -> list[ContextKeys]:
    """What each layer keeps of target-layer features `[B, S, F*D]`."""
    rope = drafter.backbone.rotary(0, features.shape[1], features.dtype)
    return context_keys(drafter.backbone, features, rope)


@torch.no_grad()
def replay(
    drafter: Drafter, texts: Texts, context: list[ContextKeys], block_size: int, choices: Sequence[Choice]
) -> Walks:
    """Walk along `texts` with every one of `choices`. `context` comes from `read_context`, `[B, .., S, ..]`.

    Raises NumericsError where the drafter's scores are not finite.
    """
    walker = _Walker(drafter, texts, context, block_size, tuple(choices))
    with attention_kernels(texts.ids.device):
        walker.run()
    return walker.walks()


class _Walker:
    """Where every walk stands, and what has been drafted so far."""

    def __init__(
        self,
        drafter: Drafter,
        texts: Texts,
        context: list[ContextKeys],
        block_size: int,
        choices: tuple[Choice, ...],
    ) -> None:
        self._drafter, self._texts, self._context = drafter, texts, context
        self._block_size, self._choices = block_size, choices
        count = len(texts.starts)
        self._last = texts.ends - texts.starts
        longest = max(int(self._last.max(initial=0)), 1)
        shape = (len(choices), count, longest)
        self._position = np.zeros((len(choices), count), dtype=int)
        self._visited = np.zeros(shape, dtype=bool)
        self._accepted = np.full(shape, -1, dtype=np.int32)
        self._margins = np.full(shape, np.inf, dtype=np.float32)
        self._ranks = np.zeros((count, longest, block_size - 1), dtype=np.int32)
        anchors = texts.starts[:, None] + np.arange(longest)
        self._lengths = np.clip(texts.limits[:, None] - anchors, 1, block_size)
        device = texts.ids.device.type
        self._least, self._most = LEAST_SLOTS[device], MOST_SLOTS[device]

    def walks(self) -> Walks:
        """What came of it."""
        return Walks(self._choices, self._visited, self._accepted, self._margins, self._lengths - 1, self._ranks)

    def run(self) -> None:
        """Walk to the end of every text."""
        while True:
            self._advance()
            asked = self._asked()
            rows = np.flatnonzero(asked.any(1))
            if not len(rows):
                return
            # What more a text asks for waits: it may be one of those that others would have been filled up with.
            depth = min(-(-self._least // (self._block_size * len(rows))), MOST_OF_A_TEXT // self._block_size)
            anchors = self._pick(asked, rows, depth)
            share = max(1, self._most // (self._block_size * anchors.shape[1]))
            for start in range(0, len(rows), share):
                self._draft(rows[start : start + share], anchors[start : start + share])

    def _advance(self) -> None:
        """Move every walk as far as what has been drafted tells."""
        choice, text = np.indices(self._position.shape)
        while True:
            here = np.minimum(self._position, self._accepted.shape[2] - 1)
            accepted = self._accepted[choice, text, here]
            ready = (self._position < self._last) & (accepted >= 0)
            if not ready.any():
                return
            self._visited[choice[ready], text[ready], here[ready]] = True
            self._position += np.where(ready, accepted + 1, 0)

    def _asked(self) -> np.ndarray:
        """`[B, A]` bool: anchors that a walk waits at."""
        asked = np.zeros(self._lengths.shape, dtype=bool)
        choice, text = np.nonzero(self._position < self._last)
        asked[text, self._position[choice, text]] = True
        return asked

    def _pick(self, asked: np.ndarray, rows: np.ndarray, depth: int) -> np.ndarray:
        """`[rows, depth]` anchors: those asked for first, then those behind the slowest walk that are still missing.

        Where a text has no more, its first one stands again.
        """
        asked = asked[rows]
        places = np.arange(asked.shape[1])
        missing = (self._accepted[0, rows] < 0) & (places < self._last[rows, None])
        order = np.where(missing & (places >= asked.argmax(1)[:, None]), places, places + asked.shape[1])
        order = np.where(asked, -1, order)
        picked = np.argsort(order, axis=1, kind="stable")[:, : min(depth, asked.shape[1])]
        rank = np.take_along_axis(order, picked, axis=1)
        return np.where(rank < asked.shape[1], picked, picked[:, :1])

    def _draft(self, rows: np.ndarray, anchors: np.ndarray) -> None:
        """Draft at `anchors [rows, depth]`, and note what each choice would have had accepted."""
        texts, drafter, device = self._texts, self._drafter, self._texts.ids.device
        places = torch.from_numpy(anchors + texts.starts[rows, None]).to(device)
        lengths = torch.from_numpy(self._lengths[rows[:, None], anchors]).to(device)
        texts_at = torch.from_numpy(rows).to(device)
        ids = texts.ids[texts_at]
        anchor_ids = ids.gather(1, places)
        span = int((anchors + texts.starts[rows, None]).max())
        context = [ContextKeys(keys[texts_at, :, :span], values[texts_at, :, :span]) for keys, values in self._context]
        embeddings = drafter.block_embeddings(anchor_ids.flatten(), self._block_size).unflatten(0, anchors.shape)
        where = layout(drafter.backbone, places, span, self._block_size, embeddings.dtype, lengths)
        # Contiguous, or the head would be copied for every block.
        hidden = block_states(drafter.backbone, context, embeddings, where)[:, :, 1:].flatten(0, 1).contiguous()
        known = torch.from_numpy(texts.known[rows]).to(device)
        labels = block_labels(ids, known, places, self._block_size).flatten(0, 1)
        inside = torch.arange(1, self._block_size, device=device) < lengths.flatten().unsqueeze(1)
        found = judge(drafter, self._choices, hidden, anchor_ids.flatten(), labels, inside)
        if found is None:
            raise NumericsError(
                f"the drafter's scores are not finite in a block between positions {int(places.min())} and "
                f"{int(places.max())}: try --dtype float32, and check the checkpoint's tensors"
            )
        at = (rows.repeat(anchors.shape[1]), anchors.ravel())
        self._accepted[:, *at] = found.accepted.cpu().numpy()
        self._margins[:, *at] = found.margins.cpu().numpy()
        self._ranks[at] = found.ranks.cpu().numpy()


class Judged(NamedTuple):
    """What becomes of n draft blocks."""

    accepted: Tensor
    """`[choices, n]` int64 accepted tokens."""
    margins: Tensor
    """`[choices, n]` float32 smallest margin that they hang on."""
    ranks: Tensor
    """`[n, K]` int64 rank of the text's token, 0 if it is no candidate."""


def judge(
    drafter: Drafter,
    choices: Sequence[Choice],
    hidden: Tensor,
    anchor_ids: Tensor,
    labels: Tensor,
    inside: Tensor,
) -> Judged | None:
    """Proposals of every choice against the text, from draft hidden states `[n, K, D]`; None if not finite.

    `labels [n, K]` are the text's tokens, -1 where it is not known; `inside [n, K]` bool marks the positions that the
    block has.
    """
    width = max(choice.num_candidates for choice in choices)
    # One more than is chosen from: how close it came to being a candidate.
    unary, rows = top_candidates(drafter.head.logits(hidden), min(width + 1, drafter.head.num_rows))
    ids, unary = drafter.head.token_ids(rows), unary.float()
    if not bool(torch.isfinite(unary).all()):
        return None
    labels = labels.masked_fill(~inside, -1)
    hits = ids[..., :width] == labels.unsqueeze(-1)
    ranks = torch.where(hits.any(-1), hits.int().argmax(-1) + 1, 0)
    walked = [choice.num_candidates for choice in choices if choice.selector]
    edges = None
    if any(count <= MATERIALISE_UP_TO for count in walked):
        few = slice(0, MATERIALISE_UP_TO + 1)
        edges = drafter.model.candidate_selector.edges(hidden, anchor_ids, ids[..., few], unary[..., few])
    accepted, margins = [], []
    for choice in choices:
        path, gaps = _proposal(drafter, choice, hidden, anchor_ids, ids, unary, edges)
        right = ids.gather(2, path.unsqueeze(-1)).squeeze(-1) == labels
        leading = right.long().cumprod(1)
        reached = inside & torch.cat((torch.ones_like(leading[:, :1]), leading[:, :-1]), dim=1).bool()
        accepted.append(leading.sum(1))
        margins.append(gaps.masked_fill(~reached, float("inf")).amin(1))
    return Judged(torch.stack(accepted), torch.stack(margins), ranks)


def _proposal(
    drafter: Drafter,
    choice: Choice,
    hidden: Tensor,
    anchor_ids: Tensor,
    ids: Tensor,
    unary: Tensor,
    edges: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """The path `[n, K]` of a choice, and at each position the margin of scores that decided it.

    Above MATERIALISE_UP_TO candidates the margin is not known and left out (inf).
    """
    count, more = choice.num_candidates, unary.shape[-1]
    nowhere = torch.full_like(unary[..., 0], float("inf"))
    if not choice.selector:
        return torch.zeros_like(ids[..., 0]), unary[..., 0] - unary[..., 1] if more > 1 else nowhere
    if count > MATERIALISE_UP_TO:
        selector = drafter.model.candidate_selector
        return selector.walk_rows(hidden, anchor_ids, ids[..., :count], unary[..., :count], 0.0, None).path, nowhere
    path = walk_edges(edges[..., :count, :count], 0.0, None).path
    came_from = torch.cat((torch.zeros_like(path[:, :1]), path[:, :-1]), dim=1)
    rows = edges.gather(2, came_from[:, :, None, None].expand(-1, -1, 1, edges.shape[-1]))[:, :, 0]
    best = rows[..., :count].topk(min(2, count), dim=-1).values
    gaps = best[..., 0] - best[..., 1] if count > 1 else nowhere
    if count < edges.shape[-1]:
        # The candidate that just was none counts where it would have been chosen, or has the place of the chosen one.
        matters = (rows[..., count] >= best[..., 0]) | (path == count - 1)
        gaps = torch.where(matters, torch.minimum(gaps, unary[..., count - 1] - unary[..., count]), gaps)
    return path, gaps
