"""Checkpoints in the published names: nothing missing, doubled, surplus or misshapen gets through (P07, P22)."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from dflash_lab.core.errors import CheckpointError, ConfigError
from dflash_lab.core.model.checkpoint import load_checkpoint, save_checkpoint
from dflash_lab.core.model.config import DraftConfig
from dflash_lab.core.model.drafter import bind, check_pair
from dflash_lab.core.target.toy import ToyTarget

A, B = "candidate_selector.predecessor_codebook", "candidate_selector.successor_codebook"


@pytest.fixture
def folder(tmp_path, raw_config, random_model):
    """A function: a saved checkpoint, with `edit(tensors)` applied to the file."""

    def make(edit=None, version="dflash2", **changes):
        raw = raw_config(version, **changes)
        save_checkpoint(random_model(DraftConfig.from_dict(raw)), raw, tmp_path, torch.float32)
        if edit:
            tensors = load_file(tmp_path / "model.safetensors")
            edit(tensors)
            save_file(tensors, tmp_path / "model.safetensors")
        return tmp_path

    return make


def load(folder, **options):
    return load_checkpoint(folder, dtype=torch.float32, device="cpu", **options)


def rename(old, new):
    def edit(tensors):
        tensors[new] = tensors.pop(old)

    return edit


@pytest.mark.parametrize("version", ["dflash", "dflash2"])
def test_round_trip_keeps_every_tensor(folder, random_model, version):
    loaded = load(folder(version=version))
    expected = random_model(loaded.config).state_dict()
    assert loaded.model.state_dict().keys() == expected.keys()
    for name, tensor in loaded.model.state_dict().items():
        torch.testing.assert_close(tensor, expected[name], rtol=0, atol=0)
    assert not loaded.model.backbone.rotary.inv_freq.is_meta


def test_names_in_the_file_are_the_published_ones(folder):
    names = set(load_file(folder() / "model.safetensors"))
    assert {
        "fc.weight",
        "hidden_norm.weight",
        "norm.weight",
        A,
        B,
        "candidate_selector.hidden_projection.weight",
        "layers.0.attention_conv.base_kernel",
        "layers.1.mlp_conv.kernel_projection.weight",
        "layers.0.self_attn.q_norm.weight",
        "layers.1.mlp.gate_proj.weight",
    } <= names


def test_codebooks_bare_or_as_embedding_weights(folder):
    bare = load(folder()).model.state_dict()

    def both_renamed(tensors):
        rename(A, A + ".weight")(tensors)
        rename(B, B + ".weight")(tensors)

    weight = load(folder(both_renamed)).model.state_dict()
    assert all(torch.equal(bare[name], weight[name]) for name in bare)
    assert not any("weight.weight" in name for name in weight)


def test_codebooks_under_both_names_must_agree(folder):
    def equal(tensors):
        tensors[A + ".weight"] = tensors[A].clone()

    def different(tensors):
        tensors[A + ".weight"] = tensors[A] + 1

    load(folder(equal))
    with pytest.raises(CheckpointError, match="are both there and differ"):
        load(folder(different))


def test_a_v2_config_without_selector_tensors_is_refused(folder):
    def drop(tensors):
        for name in [name for name in tensors if name.startswith("candidate_selector")]:
            del tensors[name]

    with pytest.raises(CheckpointError, match="missing 3 tensors: candidate_selector.*needs the selector's tensors"):
        load(folder(drop))


def test_v2_tensors_under_a_v1_config_are_refused(folder, raw_config):
    path = folder()
    (path / "config.json").write_text(json.dumps(raw_config("dflash")))
    with pytest.raises(CheckpointError, match="unexpected .* tensors: .*these belong to DFlash 2"):
        load(path)


def test_the_wrong_version_is_refused(folder):
    with pytest.raises(CheckpointError, match="is a dflash checkpoint, dflash2 was asked for"):
        load(folder(version="dflash"), version="dflash2")


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda t: t.pop("fc.weight"), "missing 1 tensor: fc.weight"),
        (lambda t: t.update(extra=torch.zeros(1)), "unexpected 1 tensor: extra"),
        (lambda t: t.update({"fc.weight": t["fc.weight"].T.contiguous()}), r"fc.weight has shape \[16, 8\].*\[8, 16\]"),
        (lambda t: t.update({"fc.weight": t["fc.weight"].to(torch.int8)}), "fc.weight is torch.int8"),
    ],
)
def test_tensors_that_do_not_fit_are_named(folder, edit, message):
    with pytest.raises(CheckpointError, match=message) as error:
        load(folder(edit))
    assert "\n" not in str(error.value)


def shard(path, assignment):
    tensors = load_file(path / "model.safetensors")
    (path / "model.safetensors").unlink()
    names = sorted(tensors)
    halves = {"a.safetensors": names[::2], "b.safetensors": names[1::2] + assignment}
    for file, part in halves.items():
        save_file({name: tensors[name] for name in part}, path / file)
    index = {"weight_map": {name: file for file, part in halves.items() for name in part}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))


def test_shards_are_joined(folder):
    path = folder()
    whole = load(path).model.state_dict()
    shard(path, [])
    parts = load(path).model.state_dict()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_a_tensor_in_two_shards_is_refused(folder):
    path = folder()
    shard(path, sorted(load_file(path / "model.safetensors"))[:1])
    with pytest.raises(CheckpointError, match="stands in two shards"):
        load(path)


def test_a_shard_outside_the_folder_or_absent_is_refused(folder):
    path = folder()
    (path / "model.safetensors").unlink()
    index = path / "model.safetensors.index.json"
    with pytest.raises(CheckpointError, match="no model.safetensors and no"):
        load(path)
    for name in ("../x.safetensors", "gone.safetensors"):
        index.write_text(json.dumps({"weight_map": {"fc.weight": name}}))
        with pytest.raises(CheckpointError, match="which is not in"):
            load(path)
    index.write_text("{}")
    with pytest.raises(CheckpointError, match="not a safetensors index"):
        load(path)


def test_a_truncated_file_is_named(folder):
    file = folder() / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(CheckpointError, match=r"model.safetensors is not a readable safetensors file"):
        load(file.parent)


def test_a_pickled_mask_embedding_is_not_opened(folder):
    path = folder()
    (path / "mask_embedding.pt").write_bytes(b"not even a pickle")
    assert "mask_embedding.pt is a pickle and was not used" in load(path).warnings[0]


def test_a_failed_save_leaves_nothing_half_written(folder, raw_config, random_model, monkeypatch):
    path = folder()
    before = (path / "model.safetensors").read_bytes()

    def full_disk(*args, **kwargs):
        (path / "model.safetensors.part").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dflash_lab.core.model.checkpoint.save_file", full_disk)
    raw = raw_config()
    with pytest.raises(CheckpointError, match="No space left on device"):
        save_checkpoint(random_model(DraftConfig.from_dict(raw)), raw, path, torch.float32)
    assert (path / "model.safetensors").read_bytes() == before
    assert not list(path.glob("*.part"))


def head_ids(folder, target, **options):
    drafter = bind(load(folder, **options), target, "x")
    hidden = torch.randn(1, 3, 8, generator=torch.Generator().manual_seed(1))
    return drafter, hidden, drafter.head.token_ids(drafter.head.logits(hidden).argmax(-1))


def test_the_targets_head_is_used_unless_the_checkpoint_has_its_own(folder):
    target = ToyTarget.random(32)
    drafter, hidden, ids = head_ids(folder(), target)
    assert drafter.head.source == "the target's"
    assert torch.equal(ids, target.head(hidden).argmax(-1))
    own = torch.randn(32, 8, generator=torch.Generator().manual_seed(2))
    drafter, hidden, ids = head_ids(folder(lambda t: t.update({"lm_head.weight": own})), target)
    assert drafter.head.source == "the drafter's own"
    assert torch.equal(ids, (hidden @ own.T).argmax(-1))


def test_a_padded_head_never_proposes_padding():
    class Padded(ToyTarget):
        def head(self, hidden):
            real = super().head(hidden)
            return torch.cat((real, torch.full_like(real[..., :4], 1e9)), dim=-1)

    from dflash_lab.core.model.head import DraftHead

    config = type(
        "Config",
        (),
        {"output_multiplier": 1.0, "final_logit_softcapping": None, "vocab_size": 32, "draft_vocab_size": None},
    )
    logits = DraftHead(config, Padded.random(32).head).logits(torch.randn(1, 3, 8))
    assert logits.shape[-1] == 32
    assert logits.max() < 1e9


def test_a_reduced_vocabulary_needs_its_map(folder):
    target = ToyTarget.random(32)
    own = torch.randn(8, 8, generator=torch.Generator().manual_seed(2))
    with pytest.raises(CheckpointError, match="draft_vocab_size 8 needs the tensors lm_head.weight and d2t"):
        load(folder(lambda t: t.update({"lm_head.weight": own}), draft_vocab_size=8))
    offsets = torch.arange(8) * 3
    path = folder(lambda t: t.update({"lm_head.weight": own, "d2t": offsets}), draft_vocab_size=8)
    drafter, hidden, ids = head_ids(path, target)
    row = (hidden @ own.T).argmax(-1)
    assert torch.equal(ids, row + offsets[row])
    assert drafter.num_candidates == 4
    with pytest.raises(CheckpointError, match="d2t has shape"):
        load(folder(lambda t: t.update({"lm_head.weight": own, "d2t": offsets[:3]}), draft_vocab_size=8))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"hidden_size": 16}, "hidden_size 8 does not fit the target's 16"),
        ({"num_layers": 2}, r"target_layer_ids \[0, 2\] go past the target's 2 layers"),
        ({"vocab_size": 40}, "vocab_size 32 does not fit the target's 40"),
        ({"embedding_rows": 31}, "mask_token_id 31 has no row in the target's 31 embeddings"),
    ],
)
def test_a_drafter_of_another_target_is_refused(raw_config, sizes, message):
    fits = {"hidden_size": 8, "num_layers": 4, "vocab_size": 32, "embedding_rows": 32, "source": "d"}
    config = DraftConfig.from_dict(raw_config())
    check_pair(config, **fits)
    with pytest.raises(ConfigError, match=message):
        check_pair(config, **{**fits, **sizes})
    with pytest.raises(ConfigError, match="made for a target of 4 layers, this one has 5"):
        check_pair(DraftConfig.from_dict(raw_config(num_target_layers=4)), **{**fits, "num_layers": 5})
