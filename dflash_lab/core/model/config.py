"""A drafter's configuration, parsed once from the checkpoint's `config.json`.

DFlash keeps its own keys at the top level, DFlash 2 under `dflash_config`; both places are read for every such key,
the nested one wins, and a difference is a warning. Nothing that changes the mathematics is guessed.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dflash_lab.core.errors import ConfigError

ARCHITECTURES = {"DFlashDraftModel": "dflash", "DFlash2DraftModel": "dflash2"}
NESTED = "dflash_config"
DEFAULT_BLOCK_SIZE = 16
LAYER_TYPES = ("full_attention", "sliding_attention")

_INERT = frozenset(
    "architectures model_type attention_dropout auto_map bos_token_id dtype torch_dtype eos_token_id initializer_range "
    "max_window_layers num_target_layers pad_token_id tie_word_embeddings transformers_version use_cache "
    "max_position_embeddings use_sliding_window rope_scaling rope_theta rope_parameters output_attentions "
    "output_hidden_states return_dict chunk_size_feed_forward is_encoder_decoder id2label label2id problem_type "
    "_name_or_path name_or_path".split()
)
"""Keys of a Hugging Face config that do not change what a drafter computes, or that are read under another name."""


@dataclass(frozen=True)
class RopeConfig:
    """Rotary embedding, as in transformers' `rope_parameters`."""

    theta: float
    """Base of the frequencies."""
    rope_type: str = "default"
    """`default`, `yarn`, `linear`, ... (transformers' names)."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """The other parameters of a type that is not `default`."""


@dataclass(frozen=True)
class ConvConfig:
    """Grouped dynamic causal convolution (DFlash 2)."""

    kernel_size: int
    """Taps."""
    group_size: int
    """Channels that share one dynamic correction."""


@dataclass(frozen=True)
class SelectorConfig:
    """Candidate selector (DFlash 2)."""

    rank: int
    """R, width of the codebooks."""
    num_candidates: int
    """C it was trained with; `selector_top_k` in the file."""


@dataclass(frozen=True)
class DraftConfig:
    """Everything that decides what a drafter computes, with where each value came from."""

    version: str
    """`dflash` or `dflash2`."""
    vocab_size: int
    """V, rows of the codebooks and of the target's head that are real tokens."""
    hidden_size: int
    """D, equal to the target's."""
    intermediate_size: int
    """Width of the MLP."""
    num_layers: int
    """Decoder layers."""
    num_heads: int
    """Query heads."""
    num_kv_heads: int
    """Key and value heads."""
    head_dim: int
    """Width of a head."""
    rms_norm_eps: float
    """Epsilon of every RMSNorm."""
    rope: RopeConfig
    """Rotary embedding."""
    layer_types: tuple[str, ...]
    """`full_attention` or `sliding_attention` per layer."""
    causal: tuple[bool, ...]
    """Whether a layer is causal inside the block: `is_causal`, or if that is absent, true for sliding layers only."""
    target_layer_ids: tuple[int, ...]
    """Target layers whose output is tapped, F of them."""
    mask_token_id: int
    """Token id of the masked slots."""
    block_size: int = DEFAULT_BLOCK_SIZE
    """L the drafter was trained with, the anchor included."""
    sliding_window: int | None = None
    """Positions a sliding layer sees on either side: |q - k| < window."""
    attention_bias: bool = False
    """Whether q, k, v, o have biases."""
    conv: ConvConfig | None = None
    """None for DFlash."""
    selector: SelectorConfig | None = None
    """None for DFlash."""
    num_target_layers: int | None = None
    """Layers of the target it was trained for, where the file says so."""
    output_multiplier: float = 1.0
    """Factor on the logits."""
    final_logit_softcapping: float | None = None
    """Soft-cap c: logits become c * tanh(logits / c), after the multiplier."""
    input_embedding_scale: float = 1.0
    """Factor on the block's embeddings."""
    draft_vocab_size: int | None = None
    """Rows of the drafter's own head where it has a reduced vocabulary."""
    origins: Mapping[str, str] = field(default_factory=dict)
    """For each field, the key it was read from, or `default`."""
    warnings: tuple[str, ...] = ()
    """What a user should know about this file."""

    @property
    def feature_size(self) -> int:
        """F * D, width of the concatenated target-layer features."""
        return len(self.target_layer_ids) * self.hidden_size

    @classmethod
    def from_checkpoint(cls, path: str | Path) -> DraftConfig:
        """Parse `path/config.json`. Raises ConfigError, one line, naming key and file."""
        file = Path(path) / "config.json"
        try:
            raw = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ConfigError(
                f"no config.json in {path}: a drafter is a folder with config.json and *.safetensors"
            ) from None
        except (UnicodeDecodeError, json.JSONDecodeError) as error:
            raise ConfigError(f"{file} is not valid JSON ({error}): fetch the checkpoint again") from None
        return cls.from_dict(raw, str(file))

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any], source: str = "config.json") -> DraftConfig:
        """Parse a decoded `config.json`; `source` names it in errors."""
        return _parse(raw, source)


class _Reader:
    """Reads keys from the nested or the top level and remembers which were used, and from where."""

    def __init__(self, raw: Mapping[str, Any], source: str) -> None:
        if not isinstance(raw, Mapping):
            raise ConfigError(f"{source}: expected a JSON object, got {type(raw).__name__}")
        self.top, self.source = raw, source
        self.nested = raw.get(NESTED) or {}
        if not isinstance(self.nested, Mapping):
            raise ConfigError(f"{source}: {NESTED} must be an object, got {type(self.nested).__name__}")
        self.used: set[str] = {NESTED}
        self.origins: dict[str, str] = {}
        self.warnings: list[str] = []

    def fail(self, text: str) -> ConfigError:
        return ConfigError(f"{self.source}: {text}")

    def find(self, key: str, *, as_field: str | None = None) -> Any:
        """The value of `key`, nested before top level; None if absent or null."""
        self.used.add(key)
        nested, top = self.nested.get(key), self.top.get(key)
        if nested is not None and top is not None and nested != top:
            self.warnings.append(f"{key} is {nested!r} in {NESTED} and {top!r} at the top level; {NESTED} is used")
        value, origin = (nested, f"{NESTED}.{key}") if nested is not None else (top, key)
        self.origins[as_field or key] = origin if value is not None else "default"
        return value

    def require(self, key: str, *, as_field: str | None = None) -> Any:
        value = self.find(key, as_field=as_field)
        if value is None:
            raise self.fail(f"{key} is missing; it may stand at the top level or under {NESTED}, and is never guessed")
        return value

    def integer(self, key: str, *, as_field: str | None = None, least: int = 1, default: int | None = None) -> int:
        value = self.find(key, as_field=as_field) if default is not None else self.require(key, as_field=as_field)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self.fail(f"{key} must be a whole number of at least {least}, got {value!r}")
        return value

    def number(self, key: str, default: float) -> float:
        value = self.find(key)
        value = default if value is None else value
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise self.fail(f"{key} must be a number, got {value!r}")
        return float(value)

    def finish(self) -> None:
        """Refuse every key that nothing has read and that is not known to be inert."""
        for place, keys in ((f"{NESTED}.", self.nested), ("", self.top)):
            for key in keys:
                if key in self.used or (not place and key in _INERT):
                    continue
                near = difflib.get_close_matches(key, sorted(self.used), n=1)
                hint = f"; did you mean {near[0]}?" if near else "; remove it or use a version that knows it"
                raise self.fail(f"unknown key {place}{key}{hint}")


def _parse(raw: Mapping[str, Any], source: str) -> DraftConfig:
    read = _Reader(raw, source)
    version = _version(read)
    num_layers = read.integer("num_hidden_layers", as_field="num_layers")
    num_heads = read.integer("num_attention_heads", as_field="num_heads")
    num_kv_heads = read.integer("num_key_value_heads", as_field="num_kv_heads", default=num_heads)
    hidden_size = read.integer("hidden_size")
    if num_heads % num_kv_heads:
        raise read.fail(f"num_attention_heads {num_heads} is not a multiple of num_key_value_heads {num_kv_heads}")
    if read.find("hidden_act") not in (None, "silu"):
        raise read.fail(f"hidden_act must be silu, got {raw['hidden_act']!r}")
    layer_types, window = _layers(read, num_layers)
    causal = read.find("is_causal", as_field="causal")
    vocab_size = read.integer("vocab_size")
    softcap = read.number("final_logit_softcapping", 0.0)
    conv, selector = _dflash2(read, hidden_size) if version == "dflash2" else (None, None)
    num_target_layers = read.find("num_target_layers")
    config = DraftConfig(
        version=version,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=read.integer("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=read.integer("head_dim", default=hidden_size // num_heads),
        rms_norm_eps=read.number("rms_norm_eps", 1e-6),
        rope=_rope(read),
        layer_types=layer_types,
        causal=tuple(kind == "sliding_attention" if causal is None else bool(causal) for kind in layer_types),
        target_layer_ids=_target_layer_ids(read, num_target_layers),
        mask_token_id=_mask_token(read, raw, vocab_size),
        block_size=read.integer("block_size", least=2, default=DEFAULT_BLOCK_SIZE),
        sliding_window=window,
        attention_bias=bool(read.find("attention_bias")),
        conv=conv,
        selector=selector,
        num_target_layers=num_target_layers,
        output_multiplier=read.number("output_multiplier", 1.0),
        final_logit_softcapping=softcap if softcap > 0 else None,
        input_embedding_scale=read.number("input_embedding_scale", 1.0),
        draft_vocab_size=read.find("draft_vocab_size"),
        origins=read.origins,
    )
    read.finish()
    if config.origins["block_size"] == "default":
        read.warnings.append(f"block_size is in neither place; {DEFAULT_BLOCK_SIZE} is used")
    object.__setattr__(config, "warnings", tuple(read.warnings))
    return config


def _version(read: _Reader) -> str:
    names = read.top.get("architectures") or []
    known = [ARCHITECTURES[name] for name in names if name in ARCHITECTURES]
    if len(known) != 1:
        raise read.fail(f"architectures must name one of {', '.join(ARCHITECTURES)}, got {list(names)}")
    read.origins["version"] = "architectures"
    return known[0]


def _layers(read: _Reader, num_layers: int) -> tuple[tuple[str, ...], int | None]:
    types = read.find("layer_types")
    types = ("full_attention",) * num_layers if types is None else tuple(types)
    if len(types) != num_layers:
        raise read.fail(f"layer_types has {len(types)} entries for num_hidden_layers {num_layers}")
    for kind in types:
        if kind not in LAYER_TYPES:
            raise read.fail(f"layer_types may hold {' and '.join(LAYER_TYPES)}, got {kind!r}")
    window = read.find("sliding_window")
    if "sliding_attention" not in types:
        return types, None
    if not isinstance(window, int) or window < 1:
        raise read.fail(f"sliding_window must be a whole number of at least 1 for sliding layers, got {window!r}")
    return types, window


def _rope(read: _Reader) -> RopeConfig:
    """Rotary parameters: `rope_parameters` (new) before `rope_theta` and `rope_scaling` (old)."""
    new, old, theta = (read.find(key) for key in ("rope_parameters", "rope_scaling", "rope_theta"))
    parameters = dict(new or old or {})
    inner = parameters.pop("rope_theta", None)
    if inner is not None and theta is not None and inner != theta:
        read.warnings.append(
            f"rope_theta is {inner} in rope_parameters and {theta} at the top level; the first is used"
        )
    rope_type = parameters.pop("rope_type", None) or parameters.pop("type", None) or "default"
    parameters.pop("type", None)
    chosen = inner if inner is not None else theta
    if chosen is None:
        raise read.fail(
            "rope_theta is missing; it may stand in rope_parameters or at the top level, and is never guessed"
        )
    read.origins["rope"] = "rope_parameters.rope_theta" if inner is not None else "rope_theta"
    return RopeConfig(float(chosen), rope_type, {} if rope_type == "default" else parameters)


def _target_layer_ids(read: _Reader, num_target_layers: int | None) -> tuple[int, ...]:
    ids = read.require("target_layer_ids")
    if not isinstance(ids, list) or not ids or not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
        raise read.fail(f"target_layer_ids must be a list of layer numbers, got {ids!r}")
    if min(ids) < 0:
        raise read.fail(f"target_layer_ids {ids} holds a negative number; count layers from 0")
    if len(set(ids)) != len(ids):
        raise read.fail(f"target_layer_ids {ids} names a layer twice")
    if num_target_layers is not None and max(ids) >= num_target_layers:
        raise read.fail(f"target_layer_ids {ids} goes past the last of {num_target_layers} target layers")
    return tuple(ids)


def _mask_token(read: _Reader, raw: Mapping[str, Any], vocab_size: int) -> int:
    mask = read.integer("mask_token_id", least=0)
    for key in ("eos_token_id", "pad_token_id"):
        if raw.get(key) is not None and mask in (raw[key] if isinstance(raw[key], list) else [raw[key]]):
            read.warnings.append(f"mask_token_id {mask} is also {key}; a drafter trained so may accept less")
    if mask >= vocab_size:
        read.warnings.append(f"mask_token_id {mask} lies past vocab_size {vocab_size}, in the padding rows")
    return mask


def _dflash2(read: _Reader, hidden_size: int) -> tuple[ConvConfig, SelectorConfig]:
    conv = ConvConfig(
        read.integer("conv_kernel_size", as_field="conv.kernel_size"),
        read.integer("conv_group_size", as_field="conv.group_size"),
    )
    if hidden_size % conv.group_size:
        raise read.fail(f"conv_group_size {conv.group_size} does not divide hidden_size {hidden_size}")
    return conv, SelectorConfig(
        read.integer("selector_rank", as_field="selector.rank"),
        read.integer("selector_top_k", as_field="selector.num_candidates"),
    )
