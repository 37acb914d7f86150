"""A pair that decodes in milliseconds: a Markov chain as target, an untrained drafter, characters as tokens."""

from collections.abc import Sequence
from pathlib import Path

import torch

from dflash_lab.core.errors import RequestError
from dflash_lab.core.generate import Pair
from dflash_lab.core.model.config import DraftConfig
from dflash_lab.core.model.drafter import Drafter, DraftModel
from dflash_lab.core.model.head import DraftHead
from dflash_lab.core.target.toy import ToyTarget
from dflash_lab.core.types import Conversation

ALPHABET = "abcdefghijklmnopqrstuvwxyz .\n🦆"
"""A token is a character, but the duck, which is two tokens."""

CYCLE = (0, 29, 30)
"""`a` and the halves of the duck."""

SEED = 17
"""Of the weights: with this one, full, partial and no acceptance all occur within 60 tokens."""

CONFIG = {
    "architectures": ["DFlash2DraftModel"],
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
    "vocab_size": 32,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "dflash_config": {
        "block_size": 4,
        "mask_token_id": 31,
        "target_layer_ids": [0, 2],
        "conv_kernel_size": 2,
        "conv_group_size": 4,
        "selector_rank": 4,
        "selector_top_k": 3,
    },
}


class ToyText:
    """Token i is character i of the alphabet; 29 and 30 are the two halves of the duck."""

    def encode(self, prompt: str | Conversation, chat: bool = True) -> tuple[list[int], str]:
        turns = (prompt,) if isinstance(prompt, str) else [turn.content for turn in prompt.turns]
        if not any(turn.strip() for turn in turns):
            raise RequestError("the prompt is empty: give some text")
        rendered = "".join(f"{turn}." for turn in turns) if chat else prompt
        return [ALPHABET.index(character) for character in rendered], rendered

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(self._bytes(token_id) for token_id in ids).decode("utf-8", errors="replace")

    def tokens(self, ids: Sequence[int]) -> dict[int, tuple[str, str | None, bool]]:
        return {token_id: (self._bytes(token_id).decode("utf-8", errors="replace"), None, False) for token_id in ids}

    @staticmethod
    def _bytes(token_id: int) -> bytes:
        duck = "🦆".encode()
        return {29: duck[:2], 30: duck[2:], 31: b""}.get(token_id, ALPHABET[token_id % 29].encode())


def make_pair() -> Pair:
    """A chain that runs into `a🦆a🦆...`, and an untrained drafter whose selector knows the cycle more or less."""
    generator = torch.Generator().manual_seed(SEED)
    table = torch.randn(32, 32, generator=generator)
    table[:, CYCLE[0]] += 9
    table[CYCLE[:2], CYCLE[1:]] += 19
    target = ToyTarget(table)
    config = DraftConfig.from_dict(CONFIG)
    model = DraftModel(config).eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.normal_(0, 0.5, generator=generator)
    # The codebooks know what follows what; the random projection of the hidden state flips their word now and then.
    selector = model.candidate_selector
    for place, (before, after) in enumerate(zip(CYCLE, CYCLE[1:] + CYCLE[:1], strict=True)):
        selector.predecessor_codebook[before] = torch.eye(4)[place] * 4
        selector.successor_codebook[after] = torch.eye(4)[place] * 4
    likely = torch.zeros(32)
    likely[list(CYCLE)] = 9.0
    head = DraftHead(config, lambda hidden: target.head(hidden) + likely)
    drafter = Drafter(model, target.embed, head, "toy drafter")
    backends = {"kernels": "reference", "forward": "lean", "loop": "eager", "dtype": "float32", "device": "cpu"}
    backends["threads"] = 1
    return Pair(target, drafter, ToyText(), Path("toy"), backends, ("the toy pair knows no words",))
