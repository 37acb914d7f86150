"""Toy targets are exact, and features are the outputs of exactly the layers asked for (P04, P02, P08)."""

import pytest
import torch

from dflash_lab.core.errors import TargetError
from dflash_lab.core.target.toy import RecurrentToyTarget, ToyTarget


def test_features_are_outputs_of_the_layers_named_in_their_order():
    target = ToyTarget.random(16, hidden_size=2, num_layers=5)
    ids = torch.tensor([[3, 7]])
    target.capture([4, 0, 2])
    features = target.prefill(ids).features.view(1, 2, 3, 2)
    stream = target.embed(ids)
    for place, added in enumerate((1 + 2 + 3 + 4 + 5, 1, 1 + 2 + 3)):
        torch.testing.assert_close(features[:, :, place], stream + added)


def test_nothing_is_captured_unless_asked():
    assert ToyTarget.random(16).prefill(torch.tensor([[1]])).features is None


@pytest.mark.parametrize("ids", [[-1], [4], [1, 1]])
def test_layers_that_do_not_exist_are_refused(ids):
    with pytest.raises(TargetError, match="target_layer_ids"):
        ToyTarget.random(16, num_layers=4).capture(ids)


@pytest.mark.parametrize("kind", [ToyTarget, RecurrentToyTarget])
def test_rollback_is_as_if_the_tokens_had_never_been_read(kind):
    target, fresh = kind.random(16), kind.random(16)
    target.prefill(torch.tensor([[1, 2, 3]]))
    target.verify(torch.tensor([[4, 5, 6]]))
    target.rollback(4)
    fresh.prefill(torch.tensor([[1, 2, 3, 4]]))
    block = torch.tensor([[7, 8]])
    torch.testing.assert_close(target.verify(block).logits, fresh.verify(block).logits)
