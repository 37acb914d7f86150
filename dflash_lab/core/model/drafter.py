"""A drafter: backbone, proposer and context cache, bound to a target's embedding and output head."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from dflash_lab.core.errors import ConfigError, NumericsError, RequestError
from dflash_lab.core.hooks import NO_HOOKS, Hooks
from dflash_lab.core.kernels.sdpa import attention_kernels
from dflash_lab.core.model.backbone import ContextCache, DraftBackbone
from dflash_lab.core.model.config import DraftConfig
from dflash_lab.core.model.head import DraftHead
from dflash_lab.core.model.proposers import DraftBlock, IndependentProposer, Proposer, SelectorProposer
from dflash_lab.core.model.selector import CandidateSelector

Embed = Callable[[Tensor], Tensor]
"""Token ids `[B, L]` to the target's raw embedding rows `[B, L, D]`."""

DEFAULT_CANDIDATES = 16
"""Grid width shown for DFlash, whose checkpoints do not name one."""


class DraftModel(nn.Module):
    """The weights of a checkpoint, in the published names."""

    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        self.config = config
        self.backbone = DraftBackbone(config)
        self.candidate_selector = (
            CandidateSelector(config.selector, config.hidden_size, config.vocab_size) if config.selector else None
        )


@dataclass(frozen=True)
class DraftCheckpoint:
    """A checkpoint in memory."""

    config: DraftConfig
    """Parsed from config.json."""
    model: DraftModel
    """The weights."""
    own: Mapping[str, Tensor]
    """Embedding, head and vocabulary map that it brings of its own."""
    warnings: list[str]
    """What a user should know about the files."""


class BoundTarget(Protocol):
    """What a drafter takes from its target."""

    info: Any
    """Sizes: hidden_size, num_layers, vocab_size, embedding_rows."""

    def embed(self, ids: Tensor) -> Tensor: ...

    def head(self, hidden: Tensor) -> Tensor: ...


class Drafter:
    """Drafts blocks for one request at a time."""

    def __init__(self, model: DraftModel, embed: Embed, head: DraftHead, name: str = "drafter") -> None:
        self.model, self.config, self.name = model, model.config, name
        self.backbone = model.backbone
        self.proposer: Proposer = (
            SelectorProposer(model.candidate_selector) if model.candidate_selector else IndependentProposer()
        )
        self.head = head
        self.weights_bytes = sum(parameter.nbytes for parameter in model.parameters())
        self._embed = embed
        self._cache = ContextCache(self.config)
        self._embeddings: Tensor | None = None
        self._mask_row: Tensor | None = None

    @property
    def block_size(self) -> int:
        """L the drafter was trained with."""
        return self.config.block_size

    @property
    def num_candidates(self) -> int:
        """C the drafter was trained with."""
        trained = self.config.selector.num_candidates if self.config.selector else DEFAULT_CANDIDATES
        return min(trained, self.head.num_rows)

    @property
    def context_length(self) -> int:
        """Committed tokens in the context cache."""
        return self._cache.length

    def check(self, block_size: int, num_candidates: int) -> list[str]:
        """Warnings about a block size and a number of candidates; raises RequestError for impossible ones."""
        return check_sizes(self.config, block_size, num_candidates)

    def reset(self) -> None:
        """Forget the last request."""
        self._cache.reset()

    @torch.inference_mode()
    def draft(
        self,
        features: Tensor,
        anchor_ids: Tensor,
        *,
        block_size: int,
        num_candidates: int,
        temperature: float = 0.0,
        rng: torch.Generator | None = None,
        hooks: Hooks = NO_HOOKS,
        clock: Callable[[str], AbstractContextManager] = lambda phase: nullcontext(),
    ) -> DraftBlock:
        """Draft one block.

        features `[B, S, F*D]`: target-layer features of the tokens committed since the last call, which end just
        before the anchor; anchor_ids `[B]`: the last committed token.
        """
        with clock("draft"):
            context = hooks("context", self.backbone.context(hooks("target_features", features)))
            cache = self._cache
            cache.reserve(features.shape[0], cache.length + context.shape[1] + block_size, context)
            self.backbone.extend(cache, context)
            self._embeddings = self.block_embeddings(anchor_ids, block_size)
            with attention_kernels(context.device):
                hidden = self.backbone.block(cache, self._embeddings)[:, 1:]
            hidden = hooks("draft_hidden", hidden)
        with clock("select"):
            return self.proposer.propose(hidden, anchor_ids, self.head, num_candidates, temperature, rng, hooks)

    @torch.inference_mode()
    def locate_nonfinite(self) -> NumericsError:
        """The error that names where the last drafted block stopped being finite."""
        return self.backbone.locate_nonfinite(self._cache, self._embeddings)

    def block_embeddings(self, anchor_ids: Tensor, block_size: int) -> Tensor:
        """`[B, L, D]` of anchors `[B]`: the anchor's row, then the mask token's."""
        if self._mask_row is None:
            self._mask_row = self.embed(torch.full_like(anchor_ids[:1, None], self.config.mask_token_id))
        masks = self._mask_row.expand(anchor_ids.shape[0], block_size - 1, -1)
        return torch.cat((self.embed(anchor_ids[:, None]), masks), dim=1)

    def embed(self, ids: Tensor) -> Tensor:
        """Embeddings `[B, L, D]` of token ids as the backbone reads them."""
        rows = self._embed(ids)
        return rows if self.config.input_embedding_scale == 1.0 else rows * self.config.input_embedding_scale


def bind(checkpoint: DraftCheckpoint, target: BoundTarget, name: str) -> Drafter:
    """A drafter from a checkpoint and its target: their own embedding and head where the checkpoint has them."""
    config, own, info = checkpoint.config, checkpoint.own, target.info
    check_pair(
        config,
        hidden_size=info.hidden_size,
        num_layers=info.num_layers,
        vocab_size=info.vocab_size,
        embedding_rows=own["embed_tokens.weight"].shape[0] if "embed_tokens.weight" in own else info.embedding_rows,
        source=name,
    )
    embed, head, source = target.embed, target.head, "the target's"
    weight = None
    if "embed_tokens.weight" in own:
        embed = partial(_rows, own["embed_tokens.weight"])
    if "lm_head.weight" in own:
        weight, source = own["lm_head.weight"], "the drafter's own"
        head = partial(_project, weight)
    return Drafter(checkpoint.model, embed, DraftHead(config, head, own.get("d2t"), source, weight), name)


def check_sizes(config: DraftConfig, block_size: int, num_candidates: int) -> list[str]:
    """Warnings about a block size and a number of candidates; raises RequestError for impossible ones."""
    rows = config.draft_vocab_size or config.vocab_size
    if block_size < 2:
        raise RequestError(f"block_size must be at least 2 with a drafter, got {block_size}; use --drafter none for 1")
    if not 1 <= num_candidates <= rows:
        raise RequestError(f"num_candidates must be 1 to {rows} (the vocabulary), got {num_candidates}")
    if block_size > config.block_size:
        return [
            f"block_size {block_size} is above the {config.block_size} the drafter was trained with; "
            "the added positions are guesses"
        ]
    return []


def _rows(table: Tensor, ids: Tensor) -> Tensor:
    return nn.functional.embedding(ids, table)


def _project(weight: Tensor, hidden: Tensor) -> Tensor:
    return nn.functional.linear(hidden, weight)


def check_pair(
    config: DraftConfig, *, hidden_size: int, num_layers: int, vocab_size: int, embedding_rows: int, source: str
) -> None:
    """Refuse a drafter that was not made for this target; `source` names the drafter in errors."""
    if config.hidden_size != hidden_size:
        raise ConfigError(f"{source}: hidden_size {config.hidden_size} does not fit the target's {hidden_size}")
    if max(config.target_layer_ids) >= num_layers:
        raise ConfigError(
            f"{source}: target_layer_ids {list(config.target_layer_ids)} go past the target's {num_layers} layers"
        )
    if config.num_target_layers is not None and config.num_target_layers != num_layers:
        raise ConfigError(
            f"{source}: made for a target of {config.num_target_layers} layers, this one has {num_layers}"
        )
    if config.vocab_size != vocab_size:
        raise ConfigError(
            f"{source}: vocab_size {config.vocab_size} does not fit the target's {vocab_size}; "
            "drafter and target must share a tokenizer"
        )
    if config.mask_token_id >= embedding_rows:
        raise ConfigError(
            f"{source}: mask_token_id {config.mask_token_id} has no row in the target's {embedding_rows} embeddings"
        )
