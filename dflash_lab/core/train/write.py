"""Text for a corpus, written by the target: thousands of conversations side by side.

All rows stand at the same position and read one token at a time, from the template's first to the answer's last, so no
row needs padding or a mask. What a row reads next is either given (its prompt) or its own choice. A prompt may be
written in part by the target as well: it begins with some tokens of a given one and goes on at temperature 1 until
the target ends the turn. Finished rows are taken out of the batch now and then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from dflash_lab.core.kernels.sdpa import attention_kernels
from dflash_lab.core.target.base import Target, TargetOutput
from dflash_lab.core.target.config import load_config
from dflash_lab.core.target.hf import HfTarget, load_model
from dflash_lab.core.target.lean import LeanTarget, supports
from dflash_lab.core.train.corpus import Corpus
from dflash_lab.core.train.objective import top_candidates

COMPACT_EVERY = 32
"""Positions between two looks for finished rows."""
TOP_K, TOP_P = 20, 0.95
"""Filters at temperature 1."""


@dataclass(frozen=True)
class Draft:
    """What a conversation starts from."""

    given: tuple[int, ...]
    """Token ids to begin with, template included."""
    closing: tuple[int, ...]
    """Token ids that lead from the user's turn to the answer; empty if `given` is the whole prompt."""
    temperature: float
    """Of the answer: 0 or 1."""
    source: str
    """Kind of prompt."""


class RowTarget(Target, Protocol):
    """A target that can drop rows of its batch."""

    def keep(self, rows: Tensor) -> None:
        """Keep only these rows, `[n]` increasing."""
        ...


class LeanRows(LeanTarget):
    """Our own forward pass. Two caches of thousands of rows would not fit: rows move up in place."""

    def prefill(self, ids: Tensor) -> TargetOutput:
        layers, two, _, heads, _, head_dim = self.cache.shape
        self.cache = self.cache.new_empty(layers, two, 0, heads, 0, head_dim)
        return super().prefill(ids)

    def keep(self, rows: Tensor) -> None:
        for layer in self.cache:
            layer[:, : len(rows), :, : self._length] = layer[:, rows, :, : self._length]
        self.cache = self.cache[:, :, : len(rows)]


class HfRows(HfTarget):
    """transformers' forward pass, for architectures that have no other."""

    def keep(self, rows: Tensor) -> None:
        for layer in self._cache.layers:
            length = layer.get_seq_length()
            layer._key_memory, layer._value_memory = layer._key_memory[rows], layer._value_memory[rows]
            layer.keys, layer.values = layer._key_memory[..., :length, :], layer._value_memory[..., :length, :]


def row_target(folder: Path, name: str, *, dtype: torch.dtype, device: torch.device) -> RowTarget:
    """The target in `folder`, on the fastest forward pass that it has."""
    if supports(load_config(folder, name)):
        return LeanRows(folder, name, dtype=dtype, device=device)
    return HfRows(load_model(folder, dtype=dtype, device=device), name)


class Writer:
    """Writes conversations, a batch at a time."""

    def __init__(self, target: RowTarget) -> None:
        self._target, self._device = target, target.device
        self._end = torch.tensor(sorted(target.info.stop_ids), device=self._device)
        self._generator = torch.Generator(device=self._device)

    @torch.inference_mode()
    def write(
        self,
        drafts: Sequence[Draft],
        *,
        seed: int = 0,
        max_prompt: int = 160,
        max_answer: int = 352,
    ) -> Corpus:
        """Conversations from `drafts`; one whose prompt did not end within `max_prompt` tokens is left out."""
        self._generator.manual_seed(seed)
        limit = max_prompt + max_answer
        rows = _Rows(drafts, limit, self._device)
        for position in range(limit - 1):
            read = self._target.prefill if position == 0 else self._target.verify
            with attention_kernels(self._device):
                logits = read(rows.tokens[rows.active, position].unsqueeze(1)).logits[:, -1]
            rows.advance(position, self._choose(logits, rows), self._end, max_prompt, max_answer)
            if position % COMPACT_EVERY == COMPACT_EVERY - 1:
                kept = rows.compact()
                if not len(kept):
                    break
                self._target.keep(kept)
        return rows.corpus(self._target.info.name)

    def _choose(self, logits: Tensor, rows: _Rows) -> Tensor:
        """The arg-max for rows that answer greedily, else a draw at temperature 1 with both filters."""
        values, ids = top_candidates(logits, min(TOP_K, logits.shape[-1]))
        probability = torch.softmax(values.float(), dim=-1)
        before = probability.cumsum(-1) - probability
        probability = probability.masked_fill(before > TOP_P, 0.0)
        drawn = torch.multinomial(probability, 1, generator=self._generator)
        drawn = torch.where(rows.greedy_now().unsqueeze(1), torch.zeros_like(drawn), drawn)
        return ids.gather(1, drawn).squeeze(1)


class _Rows:
    """The state of every conversation; `active` are those still in the batch."""

    def __init__(self, drafts: Sequence[Draft], limit: int, device: torch.device) -> None:
        self._drafts = drafts
        count = len(drafts)
        tokens = np.zeros((count, limit), dtype=np.int64)
        closing = np.zeros((count, max(len(draft.closing) for draft in drafts) or 1), dtype=np.int64)
        for row, draft in enumerate(drafts):
            tokens[row, : len(draft.given)] = draft.given
            closing[row, : len(draft.closing)] = draft.closing
        self.tokens = torch.from_numpy(tokens).to(device)
        self._closing = torch.from_numpy(closing).to(device)
        self._closing_length = torch.tensor([len(draft.closing) for draft in drafts], device=device)
        # How many tokens are laid down already; the rest are the row's own choice.
        self._laid = torch.tensor([len(draft.given) for draft in drafts], device=device)
        # Where the answer starts; unknown (0) while the target is still writing the prompt.
        self._answer = torch.where(self._closing_length == 0, self._laid, 0)
        self._greedy = torch.tensor([draft.temperature == 0 for draft in drafts], device=device)
        self._length = torch.zeros(count, dtype=torch.long, device=device)
        self._done = torch.zeros(count, dtype=torch.bool, device=device)
        self.active = torch.arange(count, device=device)

    def greedy_now(self) -> Tensor:
        """`[n]` bool: active rows that answer, and do so greedily."""
        return self._greedy[self.active] & (self._answer[self.active] > 0)

    def advance(self, position: int, chosen: Tensor, end: Tensor, max_prompt: int, max_answer: int) -> None:
        """Lay down what follows `position`: the given token if there is one, else the chosen one."""
        active = self.active
        following = position + 1
        free = self._laid[active] <= following
        token = torch.where(free, chosen, self.tokens[active, following])
        ends = free & torch.isin(chosen, end)
        prompting = self._answer[active] == 0
        turns = ends & prompting
        token = torch.where(turns, self._closing[active, 0], token)
        self.tokens[active, following] = token
        self._close(turns, following)
        # An answer ends with the stop token or at its longest; a prompt that will not end is given up.
        answered = ~prompting & (ends | (following + 1 - self._answer[active] >= max_answer))
        lost = (prompting & (following >= max_prompt)) | (self._answer[active] > max_prompt)
        newly = (answered | lost) & ~self._done[active]
        self._length[active] = torch.where(newly & ~lost, following + 1, self._length[active])
        self._done[active] |= answered | lost

    def _close(self, turns: Tensor, position: int) -> None:
        """Lay the closing tokens from `position` on in rows whose turn ended; the answer starts behind them."""
        active = self.active
        room = min(self._closing.shape[1], self.tokens.shape[1] - position)
        places = torch.arange(position, position + room, device=active.device)
        laid = torch.where(
            turns.unsqueeze(1), self._closing[active, :room], self.tokens[active, position : position + room]
        )
        self.tokens[active.unsqueeze(1), places] = laid
        start = position + self._closing_length[active]
        self._laid[active] = torch.where(turns, start, self._laid[active])
        self._answer[active] = torch.where(turns, start, self._answer[active])

    def compact(self) -> Tensor:
        """Take finished rows out; returns which places of the batch stay."""
        kept = (~self._done[self.active]).nonzero().squeeze(1)
        self.active = self.active[kept]
        return kept

    def corpus(self, target: str) -> Corpus:
        """The finished conversations."""
        lengths, answers = self._length.cpu().numpy(), self._answer.cpu().numpy()
        whole = np.flatnonzero(lengths > answers)
        tokens = self.tokens.cpu().numpy()
        parts = [tokens[row, : lengths[row]] for row in whole]
        kind = np.uint16 if tokens.max() < 2**16 else np.uint32
        return Corpus(
            np.concatenate(parts).astype(kind) if parts else np.empty(0, dtype=kind),
            lengths[whole].astype(np.int64),
            answers[whole].astype(np.int64),
            np.array([self._drafts[row].temperature for row in whole], dtype=np.float32),
            np.array([self._drafts[row].source for row in whole], dtype="U16"),
            target,
        )


def answer_again(corpus: Corpus, temperature: float) -> list[Draft]:
    """Each prompt of a corpus, to be answered at another temperature."""
    return [
        Draft(tuple(prompt.tolist()), (), temperature, str(source))
        for prompt, source in zip(corpus.prompts(), corpus.sources, strict=True)
    ]


def new_prompts(
    corpus: Corpus, head: int, tail: int, count: int, random: np.random.Generator, greedy_share: float
) -> list[Draft]:
    """Prompts that begin as those of a corpus and that the target finishes itself.

    `head` and `tail` are the template's tokens around the user's turn. Up to half of the turn is kept; its last line
    is kept too where many prompts share it, since that is an instruction on the format of the answer.
    """
    shared = _shared_endings(corpus, tail)
    picked = random.integers(len(corpus), size=count)
    starts, drafts = corpus.starts, []
    for index in picked:
        prompt = corpus.tokens[starts[index] : starts[index] + corpus.prompt_lengths[index]].tolist()
        turn = len(prompt) - head - tail
        kept = head + int(random.uniform(0, 0.5) * turn)
        ending = next((n for n in shared if tuple(prompt[-n - tail :]) in shared[n]), 0)
        temperature = 0.0 if random.random() < greedy_share else 1.0
        closing = tuple(prompt[len(prompt) - ending - tail :])
        drafts.append(Draft(tuple(prompt[:kept]), closing, temperature, f"{corpus.sources[index]}+"[:16]))
    return drafts


def _shared_endings(corpus: Corpus, tail: int, least: float = 0.01) -> dict[int, set[tuple[int, ...]]]:
    """Ends of prompts (template included) that at least one in a hundred shares, longest first, by length."""
    prompts = [prompt.tolist() for prompt in corpus.prompts()]
    found: dict[int, set[tuple[int, ...]]] = {}
    for length in (24, 22, 20, 18, 16, 8, 4, 2):
        counts: dict[tuple[int, ...], int] = {}
        for prompt in prompts:
            end = tuple(prompt[-length - tail :])
            counts[end] = counts.get(end, 0) + 1
        found[length] = {end for end, number in counts.items() if number >= least * len(prompts)}
    return found
