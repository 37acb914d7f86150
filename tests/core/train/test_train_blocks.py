"""Blocks in training see what a block sees in decoding."""

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from toy_train import VOCAB, make_bench, make_recipe

from dflash_lab.core.hooks import Hooks
from dflash_lab.core.train.blocks import (
    block_embeddings,
    block_labels,
    block_states,
    context_keys,
    layout,
    sample_anchors,
)
from dflash_lab.core.train.recipe import draft_config
from dflash_lab.core.train.run import snapshot
from dflash_lab.core.train.state import new_model

KINDS = [
    (("full_attention", "full_attention"), (False, False)),
    (("full_attention", "full_attention"), (True, False)),
    (("sliding_attention", "full_attention"), (True, False)),
    (("sliding_attention", "sliding_attention"), (False, True)),
]


@pytest.mark.parametrize(("layer_types", "causal"), KINDS)
def test_hidden_states_are_those_of_decoding(layer_types, causal):
    bench, recipe = make_bench(), make_recipe()
    config = draft_config(recipe.drafter, bench.config)
    config = dataclasses.replace(config, layer_types=layer_types, causal=causal, sliding_window=7)
    model = new_model(config, recipe.training)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=generator)
    drafter = snapshot(model, config, bench, "toy")
    ids = torch.randint(6, VOCAB, (2, 40), generator=generator)
    anchors = torch.tensor([[1, 9, 38], [5, 5, 20]])
    teacher = bench.teacher_of(config.target_layer_ids)
    features = teacher.read(ids).features
    where = layout(drafter.backbone, anchors, 40, config.block_size, torch.float32)
    embeddings = block_embeddings(teacher.embedding, ids, anchors, config, config.block_size)
    packed = block_states(
        drafter.backbone, context_keys(drafter.backbone, features, where.context_rope), embeddings, where
    )
    for row in range(2):
        for place, anchor in enumerate(anchors[row].tolist()):
            seen, hooks = [], Hooks()
            hooks.add("draft_hidden", seen.append)
            drafter.reset()
            drafter.draft(
                features[row : row + 1, :anchor],
                ids[row : row + 1, anchor],
                block_size=config.block_size,
                num_candidates=4,
                hooks=hooks,
            )
            torch.testing.assert_close(packed[row, place, 1:], seen[0][0], rtol=1e-4, atol=1e-5)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(2, 40)), min_size=1, max_size=6), st.integers(1, 20))
def test_anchors_lie_in_the_answer_in_order_and_each_has_a_label(texts, count):
    prompts = torch.tensor([prompt for prompt, _ in texts])
    lengths = prompts + torch.tensor([answer for _, answer in texts])
    anchors = sample_anchors(prompts, lengths, count, torch.Generator().manual_seed(0))
    assert anchors.shape == (len(texts), count)
    assert (anchors >= prompts[:, None]).all()
    assert (anchors <= lengths[:, None] - 2).all()
    assert (anchors.diff(dim=1) >= 0).all()


def test_every_anchor_of_an_answer_can_be_drawn():
    prompts, lengths = torch.tensor([3]), torch.tensor([9])
    generator = torch.Generator().manual_seed(0)
    drawn = {int(a) for _ in range(200) for a in sample_anchors(prompts, lengths, 1, generator)[0]}
    assert drawn == {3, 4, 5, 6, 7}


def test_labels_stop_at_the_end_of_the_text():
    ids = torch.arange(10, 20).repeat(2, 1)
    labels = block_labels(ids, torch.tensor([10, 6]), torch.tensor([[2, 8], [0, 4]]), 4)
    assert labels.tolist() == [[[13, 14, 15], [19, -1, -1]], [[11, 12, 13], [15, -1, -1]]]
