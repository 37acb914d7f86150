"""A tiny target of a supported architecture with a tokenizer, texts with a pattern to learn, and a recipe to fit."""

from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from dflash_lab.core.target.hf import HfTarget
from dflash_lab.core.target.text import Text
from dflash_lab.core.train.corpus import Corpus
from dflash_lab.core.train.recipe import DrafterShape, Recipe, Training
from dflash_lab.core.train.run import Bench
from dflash_lab.core.train.teacher import Teacher

VOCAB = 128
END, USER, ASSISTANT, MASK = 2, 4, 5, 3
WORDS = ["<unk>", "<s>", "<end>", "<mask>", "<user>", "<bot>", "alpha", "beta", *(f"w{i}" for i in range(8, VOCAB))]
TEMPLATE = (
    "{% for m in messages %}<user> {{ m.content }} <end> {% endfor %}{% if add_generation_prompt %}<bot>{% endif %}"
)


def make_model(layers: int = 4, seed: int = 0) -> LlamaForCausalLM:
    """Random weights, sharp enough that the greedy choice is no near-tie."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=VOCAB,
        max_position_embeddings=512,
        rope_theta=1e4,
        tie_word_embeddings=True,
        eos_token_id=END,
        initializer_range=0.2,
    )
    return LlamaForCausalLM(config).eval().requires_grad_(False)


def make_tokenizer(template: str | None = TEMPLATE) -> PreTrainedTokenizerFast:
    """A word is a token."""
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", eos_token="<end>", chat_template=template
    )


def make_bench(folder: Path | None = None, model: LlamaForCausalLM | None = None) -> Bench:
    """The toy target, ready to train for."""
    model = model or make_model()
    return Bench(
        "toy", folder, HfTarget(model, "toy"), Text(make_tokenizer(), "toy"), lambda layers: Teacher(model, layers)
    )


def make_corpus(count: int = 96, seed: int = 0, target: str = "") -> Corpus:
    """Prompts of a few words; each answer counts on from where its prompt stopped."""
    random = np.random.default_rng(seed)
    texts, prompts = [], []
    for _ in range(count):
        start, words, answer = random.integers(8, 60), random.integers(1, 6), random.integers(12, 40)
        turn = [USER, *range(start, start + words), END, ASSISTANT]
        texts.append([*turn, *range(start + words, start + words + answer)])
        prompts.append(len(turn))
    return Corpus(
        np.concatenate(texts).astype(np.uint16),
        np.array([len(text) for text in texts], dtype=np.int64),
        np.array(prompts, dtype=np.int64),
        np.zeros(count, dtype=np.float32),
        np.array(["odd", "even"] * (count // 2)),
        target,
    )


def make_recipe(drafter: dict | None = None, **training) -> Recipe:
    """Two layers, blocks of 6, four candidates."""
    shape = {"block_size": 6, "conv_group_size": 8, "selector_rank": 8, "num_candidates": 4, **(drafter or {})}
    return Recipe(
        "toy",
        "toy",
        DrafterShape(num_layers=2, mask_token_id=MASK, target_layer_ids=(0, 2), **shape),
        Training(
            **{"batch_size": 8, "anchors": 4, "distill": 0.0, "norm_init": 1.0, "learning_rate": 1e-2, **training}
        ),
    )
