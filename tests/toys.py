"""Toy pairs: every number is known or cheap to recompute."""

import copy

import torch

from dflash_lab.core.hooks import NO_HOOKS
from dflash_lab.core.model.config import DraftConfig
from dflash_lab.core.model.drafter import DraftCheckpoint, Drafter, DraftModel, bind
from dflash_lab.core.model.proposers import DraftBlock

RAW = {
    "architectures": ["DFlash2DraftModel"],
    "model_type": "qwen3",
    "is_causal": False,
    "dflash_config": {
        "block_size": 5,
        "conv_group_size": 4,
        "conv_kernel_size": 2,
        "mask_token_id": 31,
        "selector_rank": 4,
        "selector_top_k": 4,
        "target_layer_ids": [0, 2],
    },
    "head_dim": 4,
    "hidden_act": "silu",
    "hidden_size": 8,
    "intermediate_size": 12,
    "layer_types": ["full_attention", "full_attention"],
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "num_key_value_heads": 1,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    "vocab_size": 32,
}
V1_DROPS = ("conv_group_size", "conv_kernel_size", "selector_rank", "selector_top_k")


def tiny_config(version="dflash2", nested=None, **changes):
    """A tiny valid config.json with top-level `changes` and `nested` ones; None removes a key."""
    raw = copy.deepcopy(RAW)
    if version == "dflash":
        raw["architectures"] = ["DFlashDraftModel"]
        for key in V1_DROPS:
            raw["dflash_config"].pop(key)
    for place, edits in ((raw, changes), (raw["dflash_config"], nested or {})):
        for key, value in edits.items():
            place.pop(key, None)
            if value is not None:
                place[key] = value
    return raw


def random_model(config: DraftConfig, seed: int = 0) -> DraftModel:
    """Weights from a seed, none of them zero."""
    generator = torch.Generator().manual_seed(seed)
    model = DraftModel(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.4)
    return model.eval().requires_grad_(False)


def make_drafter(target, version="dflash2", seed=0, own=None, **changes) -> Drafter:
    """A random drafter bound to a toy target."""
    config = DraftConfig.from_dict(tiny_config(version, **changes))
    return bind(DraftCheckpoint(config, random_model(config, seed), own or {}, []), target, "toy drafter")


class ScriptedDrafter(Drafter):
    """Proposes whatever `script(start, anchor, K)` says; greedy, or certain (one-hot q) when sampling."""

    def __init__(self, drafter: Drafter, script) -> None:
        self.__dict__.update(drafter.__dict__)
        self._script, self._start = script, 0

    def reset(self) -> None:
        self._start = 0

    def draft(
        self, features, anchor_ids, *, block_size, num_candidates, temperature=0.0, rng=None, hooks=NO_HOOKS, clock=None
    ):
        self._start += features.shape[1]
        ids = torch.tensor([self._script(self._start, int(anchor_ids), block_size - 1)])
        column = ids.unsqueeze(-1)
        scores = torch.zeros(column.shape)
        return DraftBlock(
            torch.cat((anchor_ids[:, None], ids), dim=1),
            column,
            scores,
            None,
            torch.zeros_like(ids),
            None if temperature == 0 else torch.ones_like(scores),
        )
