"""Recipes, what becomes of them in a checkpoint, and their export."""

import json

import pytest
from toy_train import make_bench, make_recipe

from dflash_lab.core.errors import ConfigError
from dflash_lab.core.model.config import DraftConfig
from dflash_lab.core.model.drafter import DraftModel
from dflash_lab.core.train.recipe import checkpoint_config, draft_config, load_recipe, parse_recipe
from dflash_lab.core.train.specforge import CONFIG, YAML, export

DRAFTER = {"num_layers": 1, "mask_token_id": 3, "target_layer_ids": [0, 2]}


def test_the_shipped_recipe_makes_a_checkpoint_under_45_megabytes():
    recipe = load_recipe("smollm2-135m")
    target = make_bench().config
    target.update(
        {"hidden_size": 576, "intermediate_size": 1536, "vocab_size": 49152, "num_hidden_layers": 30}
        | {"num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64}
    )
    config = draft_config(recipe.drafter, target)
    assert config.block_size == 16
    import torch

    with torch.device("meta"):
        model = DraftModel(config)
    assert 2 * sum(parameter.numel() for parameter in model.parameters()) < 45e6


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"drafter": DRAFTER}, "target is missing"),
        ({"target": "x", "drafter": DRAFTER, "optimizer": {}}, "unknown key optimizer"),
        ({"target": "x", "drafter": {**DRAFTER, "layers": 3}}, r"\[drafter\] has no key 'layers'"),
        ({"target": "x", "drafter": {"num_layers": 1, "mask_token_id": 3}}, "needs the key target_layer_ids"),
        ({"target": "x", "drafter": DRAFTER, "training": {"weighting": "flat"}}, "one of dpace, decay, got 'flat'"),
        ({"target": "x", "drafter": DRAFTER, "training": {"distill": 2}}, "distill must be in 0 to 1"),
        ({"target": "x", "drafter": DRAFTER, "training": {"batch_size": 0}}, "batch_size must be at least 1"),
        ({"target": "x", "drafter": DRAFTER, "training": {"optimizer": "sgd"}}, "one of adamw, muon"),
    ],
)
def test_a_wrong_recipe_is_one_line(raw, message):
    with pytest.raises(ConfigError, match=message) as caught:
        parse_recipe(raw, "r", "r.toml")
    assert "\n" not in str(caught.value)


def test_a_recipe_is_found_by_name_or_by_path(tmp_path):
    with pytest.raises(ConfigError, match="no recipe 'other': expected one of smollm2-135m"):
        load_recipe("other")
    (tmp_path / "bad.toml").write_text("target = ")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load_recipe(str(tmp_path / "bad.toml"))


def test_the_config_is_the_published_format():
    target = make_bench().config
    raw = json.loads(json.dumps(checkpoint_config(make_recipe().drafter, target)))
    config = DraftConfig.from_dict(raw)
    assert not config.warnings
    assert config.version == "dflash2"
    assert config.num_target_layers == 4
    assert config.rope.theta == 1e4
    plain = checkpoint_config(make_recipe({"selector_rank": 0, "conv_kernel_size": 0}).drafter, target)
    assert DraftConfig.from_dict(plain).version == "dflash"


def test_half_of_dflash_2_can_be_trained_but_not_published():
    target = make_bench().config
    shape = make_recipe({"conv_kernel_size": 0}).drafter
    config = draft_config(shape, target)
    assert config.conv is None
    assert config.selector is not None
    with pytest.raises(ConfigError, match="both convolution and selector"):
        checkpoint_config(shape, target)


def test_the_export_reads_back(tmp_path):
    files = export(make_recipe(), make_bench().config, "owner/target", "chats.jsonl", tmp_path / "out")
    assert [file.name for file in files] == [CONFIG, YAML]
    assert DraftConfig.from_dict(json.loads(files[0].read_text())).block_size == 6
    yaml = pytest.importorskip("yaml", reason="PyYAML checks the export; transformers brings it")
    run = yaml.safe_load(files[1].read_text())
    assert run["training"]["loss_type"] == "dpace"
    assert run["model"]["target_model_path"] == "owner/target"
    assert run["model"]["draft_model_config"] == str(files[0])
