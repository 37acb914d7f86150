"""Knobs: each edited checkpoint is what its name says, and shares what it does not change."""

import dataclasses

import pytest
import torch

from dflash_lab.core.ablate.knobs import Knobs, edit
from dflash_lab.core.hooks import Hooks
from dflash_lab.core.model.config import DraftConfig
from dflash_lab.core.model.drafter import DraftCheckpoint, bind
from dflash_lab.core.model.proposers import IndependentProposer


@pytest.fixture
def checkpoint(raw_config, random_model):
    config = DraftConfig.from_dict(raw_config())
    return DraftCheckpoint(config, random_model(config), {}, [])


def hidden_of(checkpoint, target, features, hooks=None):
    """Draft hidden states after some features."""
    hooks = hooks or Hooks()
    seen = []
    hooks.add("draft_hidden", seen.append)
    drafter = bind(checkpoint, target, "toy")
    block = drafter.draft(features, torch.tensor([3]), block_size=5, num_candidates=4, hooks=hooks)
    return seen[0], block


@pytest.fixture
def features():
    return torch.randn(1, 12, 16, generator=torch.Generator().manual_seed(0))


def test_no_knob_changes_nothing(checkpoint, target, features):
    same, block = hidden_of(edit(checkpoint, Knobs()), target, features)
    wanted, of = hidden_of(checkpoint, target, features)
    assert torch.equal(same, wanted)
    assert torch.equal(block.block_ids, of.block_ids)
    edited = edit(checkpoint, Knobs(conv=False)).model
    assert edited.backbone.fc.weight.data_ptr() == checkpoint.model.backbone.fc.weight.data_ptr()


def test_without_the_selector_positions_are_independent(checkpoint, target, features):
    edited = edit(checkpoint, Knobs(selector=False))
    assert isinstance(bind(edited, target, "toy").proposer, IndependentProposer)
    _, block = hidden_of(edited, target, features)
    assert torch.equal(block.block_ids[:, 1:], block.candidate_ids[..., 0])
    assert block.edges is None


def test_without_the_convolution_hidden_states_are_a_model_without_one(checkpoint, target, features):
    edited = edit(checkpoint, Knobs(conv=False))
    assert all(layer.attention_conv is None and layer.mlp_conv is None for layer in edited.model.backbone.layers)
    wanted, _ = hidden_of(checkpoint, target, features)
    found, _ = hidden_of(edited, target, features)
    assert not torch.allclose(found, wanted)


def test_a_dropped_layer_is_features_of_zeros(checkpoint, target, features):
    hooks = Hooks()
    hooks.add("target_features", lambda tensor: torch.cat((tensor[..., :8], torch.zeros_like(tensor[..., 8:])), dim=-1))
    wanted, _ = hidden_of(checkpoint, target, features, hooks)
    found, _ = hidden_of(edit(checkpoint, Knobs(layers="drop2")), target, features)
    torch.testing.assert_close(found, wanted)
    assert not torch.allclose(found, hidden_of(checkpoint, target, features)[0])


def test_shifted_layers_tap_the_neighbours(checkpoint, target):
    edited = edit(checkpoint, Knobs(layers="shift+1"))
    assert edited.config.target_layer_ids == (1, 3)
    assert bind(edited, target, "toy").config.target_layer_ids == (1, 3)


def test_a_window_hides_what_is_far(checkpoint, target, features):
    wide, _ = hidden_of(edit(checkpoint, Knobs(window=100)), target, features)
    torch.testing.assert_close(wide, hidden_of(checkpoint, target, features)[0])
    narrow = edit(checkpoint, Knobs(window=3))
    other = features.clone()
    other[:, :9] = 0
    torch.testing.assert_close(hidden_of(narrow, target, features)[0], hidden_of(narrow, target, other)[0])


def test_which_knobs_change_nothing(checkpoint, raw_config):
    plain = DraftConfig.from_dict(raw_config("dflash"))
    assert Knobs().change_nothing(checkpoint.config)
    assert Knobs(selector=False, conv=False).change_nothing(plain)
    for change in ({"selector": False}, {"conv": False}, {"layers": "shift+1"}, {"window": 4}):
        assert not dataclasses.replace(Knobs(), **change).change_nothing(checkpoint.config)
