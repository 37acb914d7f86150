"""A pair on disk, as a user would name it: a tiny target with a tokenizer, and a drafter that is right now and then."""

import dataclasses
from pathlib import Path

import numpy as np

from dflash_lab.core.decode.loop import Decoding
from dflash_lab.core.train.corpus import Corpus
from dflash_lab.core.train.loop import Budget
from dflash_lab.core.train.run import train
from dflash_lab.core.types import SamplingParams
from tests.core.train.toy_train import VOCAB, make_bench, make_model, make_recipe, make_tokenizer

PROMPTS = ["w8 w9 w10", "w20 w21", "w30 w40 w50 w60", "w9 w9", "w77 w12", "w15 w33 w90"]


@dataclasses.dataclass(frozen=True)
class DiskPair:
    """Where the pair and some prompts are."""

    target: Path
    drafter: Path
    prompts: Path


def make_disk_pair(folder: Path) -> DiskPair:
    """A drafter trained for a moment on the target's own greedy text."""
    model = make_model()
    model.save_pretrained(folder / "target")
    make_tokenizer().save_pretrained(folder / "target")
    bench = make_bench(model=model)
    random = np.random.default_rng(0)
    texts, lengths = [], []
    for _ in range(24):
        prompt = bench.text.encode(" ".join(f"w{i}" for i in random.integers(8, VOCAB, random.integers(1, 5))))[0]
        decoding = Decoding(bench.target, None, prompt, SamplingParams(max_new_tokens=30))
        list(decoding)
        texts.append([*prompt, *decoding.output_ids])
        lengths.append(len(prompt))
    corpus = Corpus(
        np.concatenate(texts).astype(np.uint16),
        np.array(list(map(len, texts)), dtype=np.int64),
        np.array(lengths, dtype=np.int64),
        np.zeros(24, dtype=np.float32),
        np.full(24, "own"),
    )
    train(make_recipe(), bench, corpus, None, Budget(steps=100), folder / "drafter", notify=lambda text: None)
    (folder / "prompts.txt").write_text("\n".join(PROMPTS) + "\n")
    return DiskPair(folder / "target", folder / "drafter", folder / "prompts.txt")
