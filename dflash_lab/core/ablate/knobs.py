"""Named ablations of a drafter, each an edited checkpoint: what decodes and what is replayed are the same modules."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import Any

import torch

from dflash_lab.core.errors import RequestError
from dflash_lab.core.model.config import DraftConfig
from dflash_lab.core.model.drafter import DraftCheckpoint, DraftModel

TRAINED = "all"
"""Tapped layers as they were trained."""
_LAYERS = re.compile(r"(shift)([+-]\d+)|(drop)(\d+)")


@dataclass(frozen=True)
class Knobs:
    """What is changed about a drafter; the defaults change nothing."""

    selector: bool = True
    """False proposes each position's best candidate."""
    conv: bool = True
    """False leaves the convolutions out."""
    layers: str = TRAINED
    """`all`; `drop20` silences the features of target layer 20; `shift+1` and `shift-1` tap every layer's neighbour."""
    window: int = 0
    """Positions that every draft layer sees on either side; 0 leaves the layers as they were trained."""

    def change_nothing(self, config: DraftConfig) -> bool:
        """Whether a drafter of this configuration is the same with these knobs."""
        same_selector = self.selector or config.selector is None
        same_conv = self.conv or config.conv is None
        return same_selector and same_conv and self.layers == TRAINED and not self.window


def edit_config(config: DraftConfig, knobs: Knobs) -> DraftConfig:
    """The configuration with `knobs` turned. Raises RequestError for knobs that this drafter does not have."""
    changes: dict[str, Any] = {}
    if not knobs.selector:
        changes["selector"] = None
    if not knobs.conv:
        changes["conv"] = None
    if knobs.window:
        if knobs.window < 1:
            raise RequestError(f"window must be a number of positions, or 0 for the trained one; got {knobs.window}")
        changes |= {"layer_types": ("sliding_attention",) * config.num_layers, "sliding_window": knobs.window}
    kind, number = _layers(knobs.layers)
    if kind == "shift":
        changes["target_layer_ids"] = _shifted(config, number)
    elif kind == "drop" and number not in config.target_layer_ids:
        raise RequestError(
            f"layers {knobs.layers}: the drafter taps {', '.join(map(str, config.target_layer_ids))}, not {number}"
        )
    return dataclasses.replace(config, **changes)


def edit(checkpoint: DraftCheckpoint, knobs: Knobs) -> DraftCheckpoint:
    """The checkpoint with `knobs` turned; it shares every tensor that stays the same. Raises RequestError."""
    config = edit_config(checkpoint.config, knobs)
    state = checkpoint.model.state_dict()
    kind, number = _layers(knobs.layers)
    if kind == "drop":
        # Features of zeros and columns of zeros come to the same; this way there is nothing to hook.
        place = config.target_layer_ids.index(number) * config.hidden_size
        weight = state["backbone.fc.weight"].clone()
        weight[:, place : place + config.hidden_size] = 0
        state["backbone.fc.weight"] = weight
    device = state["backbone.fc.weight"].device
    with torch.device("meta"):
        model = DraftModel(config)
    model.load_state_dict({name: state[name] for name in model.state_dict()}, assign=True)
    # Buffers are derived from the configuration, not stored: rebuild them off the meta device.
    model.backbone.rotary = type(model.backbone.rotary)(config.rope, config.head_dim).to(device)
    return DraftCheckpoint(config, model.eval().requires_grad_(False), checkpoint.own, checkpoint.warnings)


def _layers(text: str) -> tuple[str, int]:
    """(`all`, `shift` or `drop`; by how much, or which layer)."""
    if text == TRAINED:
        return text, 0
    found = _LAYERS.fullmatch(text)
    if not found:
        raise RequestError(f"layers must be {TRAINED}, shift+1, shift-1 or drop with a layer's number, got {text!r}")
    kind, number = (part for part in found.groups() if part)
    return kind, int(number)


def _shifted(config: DraftConfig, by: int) -> tuple[int, ...]:
    shifted = tuple(layer + by for layer in config.target_layer_ids)
    last = config.num_target_layers
    if min(shifted) < 0 or (last is not None and max(shifted) >= last):
        bound = "" if last is None else f" of {last}"
        raise RequestError(f"layers shift{by:+d} would tap {list(shifted)}, which are not all layers{bound}")
    return shifted
