"""What to train and how: a small TOML file, parsed once."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_lab.core.errors import ConfigError
from dflash_lab.core.model.config import DraftConfig

RECIPES = Path(__file__).parents[2] / "assets" / "recipes"
OPTIMIZERS = ("adamw", "muon")
WEIGHTINGS = ("dpace", "decay")
MISSING_GOLD = ("exclude", "insert")


@dataclass(frozen=True)
class DrafterShape:
    """The drafter's size; what is not named here follows the target (width, heads, MLP, rotary base, epsilon)."""

    num_layers: int
    """Decoder layers."""
    mask_token_id: int
    """Token id of the masked slots: one that the target never writes."""
    target_layer_ids: tuple[int, ...]
    """Target layers to tap."""
    block_size: int = 16
    """L, the anchor included."""
    conv_kernel_size: int = 2
    """Taps of the convolution; 0 leaves it out."""
    conv_group_size: int = 16
    """Channels that share one dynamic correction."""
    selector_rank: int = 64
    """R, width of the codebooks; 0 leaves the selector out."""
    num_candidates: int = 16
    """C, candidates at each position."""
    intermediate_size: int | None = None
    """Width of the MLP; None takes the target's."""


@dataclass(frozen=True)
class Training:
    """Optimisation and objective."""

    batch_size: int = 96
    """Conversations in a step, on each device."""
    anchors: int = 32
    """Draft blocks for each conversation."""
    optimizer: str = "adamw"
    """`adamw`, or `muon` for the backbone's matrices and AdamW for everything else."""
    learning_rate: float = 2e-3
    """Peak, reached after `warmup` and followed by a cosine to zero."""
    warmup: float = 0.04
    """Part of the budget that the rate rises in."""
    weight_decay: float = 0.01
    """Of matrices; norms, kernels and codebooks have none."""
    clip: float = 1.0
    """Largest norm of the gradient."""
    weighting: str = "dpace"
    """`dpace` or `decay`: how much each position of a block counts."""
    decay: float = 7.0
    """gamma of `decay`: position k (from 0) counts exp(-k / gamma)."""
    dpace_alpha: float = 0.5
    """alpha of `dpace`: gold probabilities are lifted to (1 - alpha) p + alpha."""
    distill: float = 0.5
    """Part of the label that is the target's own distribution instead of the text's token, 0 to 1."""
    selector_weight: float = 1.0
    """Weight of the selector's loss."""
    missing_gold: str = "exclude"
    """If the text's token is no candidate: `exclude` the position from the selector's loss, or `insert` the token."""
    norm_init: float = 0.15
    """Start of the final norm's weight: below 1 where embedding and head are tied and its rows are long."""
    seed: int = 0
    """Of initial weights, order of the text and anchors."""

    def __post_init__(self) -> None:
        _one_of("optimizer", self.optimizer, OPTIMIZERS)
        _one_of("weighting", self.weighting, WEIGHTINGS)
        _one_of("missing_gold", self.missing_gold, MISSING_GOLD)
        if not 0 <= self.distill <= 1:
            raise ConfigError(f"distill must be in 0 to 1, got {self.distill}")
        for name in ("batch_size", "anchors"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")


@dataclass(frozen=True)
class Recipe:
    """Everything that decides what comes out, but for the text and the budget."""

    name: str
    """Of the file."""
    target: str
    """`bundled`, a folder or a hub id."""
    drafter: DrafterShape
    """What to train."""
    training: Training
    """How to train it."""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        plain = dataclasses.asdict(self)
        plain["drafter"]["target_layer_ids"] = list(self.drafter.target_layer_ids)
        return plain

    def change(self, *, drafter: Mapping[str, Any] | None = None, training: Mapping[str, Any] | None = None) -> Recipe:
        """The same recipe with some values changed."""
        return dataclasses.replace(
            self,
            drafter=dataclasses.replace(self.drafter, **(drafter or {})),
            training=dataclasses.replace(self.training, **(training or {})),
        )


def load_recipe(name: str) -> Recipe:
    """A shipped recipe by name, or a TOML file by path. Raises ConfigError, one line."""
    path = RECIPES / f"{name}.toml"
    if not path.is_file():
        path = Path(name)
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in RECIPES.glob("*.toml")))
        raise ConfigError(f"no recipe {name!r}: expected one of {known}, or the path of a .toml file")
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    return parse_recipe(raw, path.stem, str(path))


def parse_recipe(raw: Mapping[str, Any], name: str, source: str) -> Recipe:
    """A recipe from decoded TOML; `source` names it in errors."""
    unknown = sorted(raw.keys() - {"target", "drafter", "training"})
    if unknown or not isinstance(raw.get("target"), str):
        what = f"unknown key {unknown[0]}" if unknown else "target is missing"
        raise ConfigError(f"{source}: {what}; a recipe has target, [drafter] and [training]")
    drafter = _table(DrafterShape, raw.get("drafter", {}), f"{source}: [drafter]")
    training = _table(Training, raw.get("training", {}), f"{source}: [training]")
    return Recipe(name, raw["target"], drafter, training)


def _table(kind: type, raw: Mapping[str, Any], source: str) -> Any:
    fields = {field.name: field for field in dataclasses.fields(kind)}
    for key in raw:
        if key not in fields:
            raise ConfigError(f"{source} has no key {key!r}; known: {', '.join(fields)}")
    for name, field in fields.items():
        if field.default is dataclasses.MISSING and name not in raw:
            raise ConfigError(f"{source} needs the key {name}, and it is never guessed")
    return kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in raw.items()})


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError(f"{name} must be one of {', '.join(known)}, got {value!r}")


def checkpoint_config(shape: DrafterShape, target: Any) -> dict[str, Any]:
    """`config.json` of the drafter, in the published keys. `target` is the target's transformers config.

    Raises ConfigError where the shape cannot be published: DFlash has neither convolution nor selector, DFlash 2 both.
    """
    if bool(shape.conv_kernel_size) != bool(shape.selector_rank):
        raise ConfigError(
            "a checkpoint has both convolution and selector (DFlash 2) or neither (DFlash); "
            f"got conv_kernel_size {shape.conv_kernel_size} and selector_rank {shape.selector_rank}"
        )
    heads = target.num_attention_heads
    dflash = {
        "block_size": shape.block_size,
        "mask_token_id": shape.mask_token_id,
        "target_layer_ids": list(shape.target_layer_ids),
    }
    if shape.selector_rank:
        dflash |= {
            "conv_group_size": shape.conv_group_size,
            "conv_kernel_size": shape.conv_kernel_size,
            "selector_rank": shape.selector_rank,
            "selector_top_k": shape.num_candidates,
        }
    return {
        "architectures": ["DFlash2DraftModel" if shape.selector_rank else "DFlashDraftModel"],
        "model_type": "qwen3",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "is_causal": False,
        "dflash_config": dflash,
        "dtype": "bfloat16",
        "head_dim": getattr(target, "head_dim", None) or target.hidden_size // heads,
        "hidden_act": "silu",
        "hidden_size": target.hidden_size,
        "intermediate_size": shape.intermediate_size or target.intermediate_size,
        "layer_types": ["full_attention"] * shape.num_layers,
        "max_position_embeddings": target.max_position_embeddings,
        "num_attention_heads": heads,
        "num_hidden_layers": shape.num_layers,
        "num_key_value_heads": target.num_key_value_heads,
        "num_target_layers": target.num_hidden_layers,
        "rms_norm_eps": target.rms_norm_eps,
        "rope_parameters": {"rope_theta": _rope_theta(target), "rope_type": "default"},
        "sliding_window": None,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "vocab_size": target.vocab_size,
    }


def draft_config(shape: DrafterShape, target: Any) -> DraftConfig:
    """The drafter's configuration; here, unlike in a checkpoint, convolution and selector may go alone."""
    whole = dataclasses.replace(
        shape,
        conv_kernel_size=shape.conv_kernel_size or 1,
        selector_rank=shape.selector_rank or 1,
        num_candidates=min(shape.num_candidates, target.vocab_size),
    )
    config = DraftConfig.from_dict(checkpoint_config(whole, target), "recipe")
    return dataclasses.replace(
        config,
        conv=config.conv if shape.conv_kernel_size else None,
        selector=config.selector if shape.selector_rank else None,
    )


def _rope_theta(target: Any) -> float:
    parameters = getattr(target, "rope_parameters", None) or {}
    theta = parameters.get("rope_theta", getattr(target, "rope_theta", None))
    if theta is None:
        raise ConfigError("the target's config has no rope_theta; give the drafter's config.json by hand")
    return float(theta)
