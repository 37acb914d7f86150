"""The target architectures whose state and features we know, in one table."""

from __future__ import annotations

from typing import NamedTuple

from dflash_lab.core.errors import TargetError


class Family(NamedTuple):
    """Where an architecture keeps what we need."""

    layers: str
    """Path of the list of decoder layers, from the causal language model."""


FAMILIES: dict[str, Family] = {
    name: Family("model.layers")
    for name in (
        "LlamaForCausalLM",
        "MistralForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen3ForCausalLM",
        "Qwen2MoeForCausalLM",
        "Qwen3MoeForCausalLM",
        "SmolLM3ForCausalLM",
    )
}
"""Full attention in every layer, a plain key-value cache, no embedding scale, no soft-cap."""


def family_of(architecture: str) -> Family:
    """The entry of an architecture, or a TargetError that lists what is supported."""
    if architecture not in FAMILIES:
        raise TargetError(f"target architecture {architecture} is not supported; supported: {', '.join(FAMILIES)}")
    return FAMILIES[architecture]
