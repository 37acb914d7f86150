"""A replay counts what real decoding of the same text counts."""

import numpy as np
import pytest
import torch
from toy_train import VOCAB, make_bench, make_corpus, make_recipe

from dflash_lab.core.decode.loop import Decoding
from dflash_lab.core.errors import DataError, RequestError
from dflash_lab.core.train.corpus import Corpus
from dflash_lab.core.train.eval import evaluate, first_prompts
from dflash_lab.core.train.loop import Budget
from dflash_lab.core.train.recipe import draft_config
from dflash_lab.core.train.run import snapshot, train
from dflash_lab.core.train.state import new_model
from dflash_lab.core.types import SamplingParams


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A bench, and a drafter that is right now and then: trained for a moment on the target's own greedy text."""
    bench, recipe = make_bench(), make_recipe()
    text = greedy_text(bench, None, 24, seed=0)
    folder = tmp_path_factory.mktemp("run")
    train(recipe, bench, text, None, Budget(steps=80), folder, notify=lambda text: None)
    from dflash_lab.core.generate import load_drafter

    return bench, load_drafter(str(folder), bench.target)[0]


def greedy_text(bench, drafter, count, seed) -> Corpus:
    """What the target writes greedily after random prompts, 30 tokens each."""
    random = np.random.default_rng(seed)
    texts, prompts = [], []
    for _ in range(count):
        prompt = random.integers(6, VOCAB, random.integers(4, 9)).tolist()
        decoding = Decoding(bench.target, drafter, prompt, SamplingParams(max_new_tokens=30), block_size=None)
        list(decoding)
        texts.append([*prompt, *decoding.output_ids])
        prompts.append(len(prompt))
    return Corpus(
        np.concatenate(texts).astype(np.uint16),
        np.array(list(map(len, texts)), dtype=np.int64),
        np.array(prompts, dtype=np.int64),
        np.zeros(count, dtype=np.float32),
        np.array(["first", "second"] * (count // 2)),
    )


def test_acceptance_is_that_of_decoding(trained):
    bench, drafter = trained
    held_out = greedy_text(bench, None, 6, seed=5)
    accepted = {"first": [], "second": []}
    for index, prompt in enumerate(held_out.prompts()):
        decoding = Decoding(
            bench.target, drafter, prompt.tolist(), SamplingParams(max_new_tokens=30), block_size=drafter.block_size
        )
        for step in decoding:
            # The text ends there for a replay: a proposal past it counts for nothing.
            left = 30 - (step.record.start - len(prompt)) - 1
            accepted[str(held_out.sources[index])].append(min(step.record.num_accepted, left))
        assert [*prompt.tolist(), *decoding.output_ids] == held_out.conversation(index).tolist()
    result = evaluate(drafter, bench.teacher_of(drafter.config.target_layer_ids), held_out)
    for name, counts in accepted.items():
        assert result.by_dataset[name].mean_acceptance_length == pytest.approx(1 + np.mean(counts))
    assert result.mean_acceptance_length > 1.05, "a drafter that is never right tests nothing"


def test_recall_and_intervals_hold_together(trained):
    bench, drafter = trained
    held_out = greedy_text(bench, None, 6, seed=6)
    ticks = []
    teacher = bench.teacher_of(drafter.config.target_layer_ids)
    result = evaluate(drafter, teacher, held_out, block_size=4, num_candidates=2, advance=lambda: ticks.append(1))
    assert len(ticks) == 6
    assert len(result.recall_at_1) == len(result.recall_at_c) == 3
    assert all(first <= among for first, among in zip(result.recall_at_1, result.recall_at_c, strict=True))
    assert result.interval[0] <= result.mean_acceptance_length <= result.interval[1]
    assert result.mean_acceptance_length == pytest.approx(
        np.mean([score.mean_acceptance_length for score in result.by_dataset.values()])
    )


def test_dflash_has_one_walk():
    bench, recipe = make_bench(), make_recipe({"selector_rank": 0, "conv_kernel_size": 0})
    config = draft_config(recipe.drafter, bench.config)
    drafter = snapshot(new_model(config, recipe.training), config, bench, "plain")
    result = evaluate(drafter, bench.teacher_of(config.target_layer_ids), make_corpus(4))
    assert result.mean_acceptance_length == result.argmax_acceptance_length


def test_prompts_are_the_first_of_each_set():
    corpus = make_corpus(10)
    chosen = first_prompts(corpus, ["even"], 3)
    assert chosen.sources.tolist() == ["even"] * 3
    assert chosen.conversation(2).tolist() == corpus.conversation(5).tolist()
    with pytest.raises(DataError, match="no held-out text of 'gsm8k'; there is some of odd, even"):
        first_prompts(corpus, ["gsm8k"], 3)


def test_an_impossible_block_is_refused(trained):
    bench, drafter = trained
    with pytest.raises(RequestError, match="block_size must be at least 2"):
        evaluate(drafter, bench.teacher_of(drafter.config.target_layer_ids), make_corpus(2), block_size=1)


def test_evaluating_leaves_no_gradients(trained):
    bench, drafter = trained
    evaluate(drafter, bench.teacher_of(drafter.config.target_layer_ids), make_corpus(2))
    assert torch.is_grad_enabled()
