"""Drafter configurations: every key read once, from where it stands, and never guessed (P02, P13, P17, P49, P46)."""

import json

import pytest
import torch

from dflash_lab.core.errors import ConfigError
from dflash_lab.core.model.config import DraftConfig
from dflash_lab.core.model.layers import inverse_frequencies

PUBLISHED_27B = json.loads("""
{"architectures": ["DFlash2DraftModel"], "attention_bias": false, "is_causal": false, "model_type": "qwen3",
 "dflash_config": {"block_size": 8, "conv_group_size": 16, "conv_kernel_size": 2, "mask_token_id": 248070,
   "selector_rank": 256, "selector_top_k": 16, "target_layer_ids": [5, 19, 33, 47, 61]},
 "head_dim": 128, "hidden_act": "silu", "hidden_size": 5120, "intermediate_size": 17408,
 "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "sliding_attention",
   "sliding_attention"], "num_attention_heads": 32, "num_hidden_layers": 5, "num_key_value_heads": 8,
 "rms_norm_eps": 1e-06, "rope_parameters": {"rope_theta": 10000000, "rope_type": "default"}, "sliding_window": 2048,
 "tie_word_embeddings": false, "use_sliding_window": true, "vocab_size": 248320}
""")


def test_published_27b_config_is_read_in_full():
    config = DraftConfig.from_dict(PUBLISHED_27B)
    assert (config.version, config.block_size, config.mask_token_id) == ("dflash2", 8, 248070)
    assert config.target_layer_ids == (5, 19, 33, 47, 61)
    assert config.feature_size == 25600
    assert (config.conv.kernel_size, config.conv.group_size) == (2, 16)
    assert (config.selector.rank, config.selector.num_candidates) == (256, 16)
    assert config.rope.theta == 1e7
    assert config.sliding_window == 2048
    assert config.causal == (False,) * 5
    assert (config.output_multiplier, config.final_logit_softcapping, config.input_embedding_scale) == (1.0, None, 1.0)
    assert config.warnings == ()


def test_origin_of_each_value_is_kept(raw_config):
    config = DraftConfig.from_dict(raw_config(nested={"block_size": None}, block_size=7))
    assert config.origins["block_size"] == "block_size"
    assert config.origins["mask_token_id"] == "dflash_config.mask_token_id"
    assert config.origins["selector.rank"] == "dflash_config.selector_rank"
    assert config.origins["output_multiplier"] == "default"
    assert config.origins["rope"] == "rope_parameters.rope_theta"


def test_nested_wins_over_top_level_and_a_difference_warns(raw_config):
    assert DraftConfig.from_dict(raw_config(block_size=5)).warnings == ()
    config = DraftConfig.from_dict(raw_config(block_size=16))
    assert config.block_size == 5
    assert "block_size is 5 in dflash_config and 16 at the top level" in config.warnings[0]


def test_missing_block_size_is_a_stated_default_and_a_missing_mask_an_error(raw_config):
    config = DraftConfig.from_dict(raw_config(nested={"block_size": None}))
    assert config.block_size == 16
    assert config.origins["block_size"] == "default"
    assert "16 is used" in config.warnings[0]
    with pytest.raises(ConfigError, match="mask_token_id is missing; it may stand at the top level or under dflash_co"):
        DraftConfig.from_dict(raw_config(nested={"mask_token_id": None}))


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (None, "target_layer_ids is missing; it may stand at the top level or under dflash_config"),
        ([-1, 2], "negative number"),
        ([0, 0], "names a layer twice"),
        ([], "must be a list of layer numbers"),
        ([0, "2"], "must be a list of layer numbers"),
        ([0, 4], "past the last of 4 target layers"),
    ],
)
def test_target_layer_ids_are_never_guessed(raw_config, ids, message):
    with pytest.raises(ConfigError, match=message):
        DraftConfig.from_dict(raw_config(nested={"target_layer_ids": ids}, num_target_layers=4), "x/config.json")


def test_target_layer_ids_keep_their_order(raw_config):
    assert DraftConfig.from_dict(raw_config(nested={"target_layer_ids": [2, 0]})).target_layer_ids == (2, 0)


@pytest.mark.parametrize(
    ("changes", "theta", "warns"),
    [
        ({"rope_parameters": {"rope_theta": 5.0, "rope_type": "default"}}, 5.0, False),
        ({"rope_parameters": None, "rope_theta": 7.0}, 7.0, False),
        ({"rope_parameters": {"rope_theta": 5.0}, "rope_theta": 7.0}, 5.0, True),
        ({"rope_parameters": None, "rope_theta": 7.0, "rope_scaling": None}, 7.0, False),
    ],
)
def test_rope_theta_is_read_where_it_stands(raw_config, changes, theta, warns):
    config = DraftConfig.from_dict(raw_config(**changes))
    assert config.rope.theta == theta
    assert bool(config.warnings) == warns
    inv_freq, scaling = inverse_frequencies(config.rope, 4)
    torch.testing.assert_close(inv_freq, torch.tensor([1.0, theta**-0.5]))
    assert scaling == 1.0


def test_absent_rope_theta_is_an_error(raw_config):
    with pytest.raises(ConfigError, match="rope_theta is missing"):
        DraftConfig.from_dict(raw_config(rope_parameters=None))


@pytest.mark.parametrize("key", ["type", "rope_type"])
def test_yarn_under_either_name_of_its_type(raw_config, key):
    scaling = {key: "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    config = DraftConfig.from_dict(raw_config(rope_parameters=None, rope_theta=100.0, rope_scaling=scaling))
    assert config.rope.rope_type == "yarn"
    inv_freq, factor = inverse_frequencies(config.rope, 8)
    plain, _ = inverse_frequencies(type(config.rope)(100.0), 8)
    assert inv_freq[0] == plain[0], "yarn leaves the fastest frequency alone"
    torch.testing.assert_close(inv_freq[-1], plain[-1] / 4)  # and divides the slowest by its factor
    assert factor == pytest.approx(0.1 * torch.log(torch.tensor(4.0)).item() + 1)


@pytest.mark.parametrize(
    ("changes", "nested", "warning"),
    [
        ({"eos_token_id": 31}, {}, "is also eos_token_id"),
        ({"pad_token_id": [1, 31]}, {}, "is also pad_token_id"),
        ({}, {"mask_token_id": 40}, "in the padding rows"),
    ],
)
def test_a_suspicious_mask_token_warns(raw_config, changes, nested, warning):
    config = DraftConfig.from_dict(raw_config(nested=nested, **changes))
    assert warning in config.warnings[0]


@pytest.mark.parametrize(
    ("changes", "nested", "message"),
    [
        ({"blok_size": 4}, {}, "unknown key blok_size; did you mean block_size"),
        ({}, {"selector_topk": 4}, "unknown key dflash_config.selector_topk; did you mean selector_top_k"),
        ({"quantization_config": {}}, {}, "unknown key quantization_config"),
        ({"architectures": ["LlamaForCausalLM"]}, {}, "architectures must name one of"),
        ({"hidden_act": "gelu"}, {}, "hidden_act must be silu"),
        ({"layer_types": ["full_attention"]}, {}, "1 entries for num_hidden_layers 2"),
        ({"layer_types": ["full_attention", "linear_attention"]}, {}, "got 'linear_attention'"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, {}, "sliding_window must be a whole number"),
        ({"num_key_value_heads": 3}, {}, "is not a multiple of"),
        ({}, {"conv_group_size": 3}, "does not divide hidden_size 8"),
        ({}, {"selector_rank": None}, "selector_rank is missing"),
        ({}, {"block_size": 1}, "block_size must be a whole number of at least 2"),
        ({"hidden_size": "8"}, {}, "hidden_size must be a whole number"),
    ],
)
def test_wrong_values_are_named(raw_config, changes, nested, message):
    with pytest.raises(ConfigError, match=message) as error:
        DraftConfig.from_dict(raw_config(nested=nested, **changes), "folder/config.json")
    assert str(error.value).startswith("folder/config.json: ")
    assert "\n" not in str(error.value)


def test_selector_keys_in_a_v1_file_are_unknown(raw_config):
    with pytest.raises(ConfigError, match=r"unknown key dflash_config.selector_rank"):
        DraftConfig.from_dict(raw_config("dflash", nested={"selector_rank": 4}))


@pytest.mark.parametrize(
    ("is_causal", "expected"), [(None, (False, True)), (False, (False, False)), (True, (True, True))]
)
def test_causality_by_config_or_by_layer_type(raw_config, is_causal, expected):
    raw = raw_config(is_causal=is_causal, layer_types=["full_attention", "sliding_attention"], sliding_window=4)
    assert DraftConfig.from_dict(raw).causal == expected


def test_files_that_are_no_config(tmp_path):
    with pytest.raises(ConfigError, match=r"no config.json in"):
        DraftConfig.from_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="not valid JSON"):
        DraftConfig.from_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ConfigError, match="expected a JSON object"):
        DraftConfig.from_checkpoint(tmp_path)
