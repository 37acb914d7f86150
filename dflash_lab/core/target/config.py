"""What a target's configuration files say, whichever forward pass runs."""

from __future__ import annotations

from pathlib import Path

from transformers import AutoConfig, GenerationConfig

from dflash_lab.core.errors import TargetError
from dflash_lab.core.target.base import TargetInfo
from dflash_lab.core.target.families import family_of

PENALTIES = {"repetition_penalty": 1.0, "no_repeat_ngram_size": 0, "encoder_repetition_penalty": 1.0}
"""Logit changes of a generation config that a verify block cannot honour, with their neutral values."""


def load_config(source: str | Path, name: str):
    """The transformers configuration in a folder, of a supported architecture; errors are one line."""
    try:
        config = AutoConfig.from_pretrained(source)
    except (OSError, ValueError) as error:
        raise TargetError(f"target {name!r} could not be loaded: {first_line(error)}") from None
    for architecture in config.architectures or []:
        family_of(architecture)
    return config


def load_generation_config(folder: Path) -> GenerationConfig | None:
    """The generation config beside the weights; None where there is none."""
    try:
        return GenerationConfig.from_pretrained(folder)
    except OSError:
        return None


def target_info(config, generation_config, name: str, embedding_rows: int) -> TargetInfo:
    """A target's description from its configuration; refuses what cannot be rolled back."""
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    if kinds != {"full_attention"} or window is not None:
        raise TargetError(
            f"target {name!r} has {', '.join(sorted(kinds))} layers with window {window}; only full attention can be "
            "rolled back here"
        )
    return TargetInfo(
        name=name,
        architecture=(config.architectures or ["unnamed"])[0],
        vocab_size=config.vocab_size,
        embedding_rows=embedding_rows,
        hidden_size=config.hidden_size,
        num_layers=config.num_hidden_layers,
        stop_ids=_stop_ids(generation_config, config),
        max_context=getattr(config, "max_position_embeddings", None),
        rollback="crop",
        warnings=_penalty_warnings(generation_config, name),
    )


def first_line(error: Exception) -> str:
    """The first line of an error's text, or its type."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _stop_ids(*configs) -> tuple[int, ...]:
    """Every end-of-text id of the generation config, or of the model config if that names none."""
    for config in configs:
        ids = getattr(config, "eos_token_id", None)
        if ids is not None:
            return tuple(ids) if isinstance(ids, (list, tuple)) else (ids,)
    return ()


def _penalty_warnings(generation_config, name: str) -> tuple[str, ...]:
    found = []
    for key, neutral in PENALTIES.items():
        value = getattr(generation_config, key, None)
        if value not in (None, neutral):
            found.append(f"{name}'s generation config asks for {key}={value}; it is not applied here")
    return tuple(found)
