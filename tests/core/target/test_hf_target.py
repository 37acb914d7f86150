"""The transformers adapter: taps, cache and stop ids of tiny random models of each family (P04, KVC, STP)."""

import pytest
import torch
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from dflash_lab.core.decode.loop import Decoding
from dflash_lab.core.errors import TargetError
from dflash_lab.core.target.families import FAMILIES
from dflash_lab.core.target.hf import HfTarget, load_model
from dflash_lab.core.types import SamplingParams

SIZES = {
    "vocab_size": 32, "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 4, "max_position_embeddings": 512, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": 2,
}  # fmt: skip
MODELS = [(LlamaConfig, LlamaForCausalLM), (Qwen2Config, Qwen2ForCausalLM), (Qwen3Config, Qwen3ForCausalLM)]


def tiny(config=LlamaConfig, model=LlamaForCausalLM, **changes):
    torch.manual_seed(0)
    made = model(config(**{**SIZES, "initializer_range": 0.5, **changes})).eval()
    return made.requires_grad_(False)


@pytest.fixture(params=MODELS, ids=lambda pair: pair[1].__name__)
def target(request):
    return HfTarget(tiny(*request.param), "tiny")


IDS = torch.tensor([[1, 5, 9, 3, 17, 4, 30]])


def test_features_are_the_outputs_of_the_layers(target):
    target.capture([0, 2])
    features = target.prefill(IDS).features
    hidden = target.model(IDS, output_hidden_states=True).hidden_states
    torch.testing.assert_close(features, torch.cat((hidden[1], hidden[3]), dim=-1))


def test_the_last_layer_is_tapped_before_the_final_norm(target):
    target.capture([3])
    features = target.prefill(IDS).features
    normed = target.model(IDS, output_hidden_states=True).hidden_states[4]
    assert not torch.allclose(features, normed)
    torch.testing.assert_close(target.model.model.norm(features), normed)


def test_capturing_again_replaces_the_taps(target):
    target.capture([0, 1, 2])
    target.capture([1])
    assert target.prefill(IDS).features.shape == (1, 7, 8)
    target.capture([])
    assert target.prefill(IDS).features is None


def test_blocks_and_rollback_equal_one_pass(target):
    logits = target.model(IDS).logits
    target.capture([1])
    prefill = target.prefill(IDS[:, :3])
    torch.testing.assert_close(prefill.logits, logits[:, 2:3])
    target.verify(torch.tensor([[11, 12, 13, 14]]))
    target.rollback(3)
    target.verify(torch.cat((IDS[:, 3:4], torch.tensor([[20, 21]])), dim=1))
    target.rollback(4)
    block = target.verify(IDS[:, 4:])
    torch.testing.assert_close(block.logits, logits[:, 4:], rtol=1e-4, atol=1e-5)
    assert block.features.shape == (1, 3, 8)


def test_the_cache_grows_past_its_first_reservation(target):
    ids = torch.randint(3, 32, (1, 300), generator=torch.Generator().manual_seed(1))
    target.prefill(ids[:, :250])
    target.verify(ids[:, 250:260])
    logits = target.verify(ids[:, 260:]).logits
    torch.testing.assert_close(logits, target.model(ids).logits[:, 260:], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("block_size", [2, 5])
def test_greedy_equals_transformers_own_generate(target, make_drafter, block_size):
    """Against `generate` of transformers, an implementation that is not ours."""
    drafter = make_drafter(target)
    params = SamplingParams(max_new_tokens=40, stop_ids=target.info.stop_ids)
    decoding = Decoding(target, drafter, IDS[0].tolist(), params, block_size=block_size)
    for _ in decoding:
        pass
    config = GenerationConfig(max_new_tokens=40, do_sample=False, eos_token_id=2, pad_token_id=2)
    expected = target.model.generate(IDS, generation_config=config, attention_mask=torch.ones_like(IDS))
    assert decoding.output_ids == expected[0, IDS.shape[1] :].tolist()


def test_embedding_and_head_are_the_models_own(target):
    hidden = torch.randn(1, 2, 8)
    torch.testing.assert_close(target.embed(IDS), target.model.get_input_embeddings()(IDS))
    torch.testing.assert_close(target.head(hidden), target.model.lm_head(hidden))


@pytest.mark.parametrize(("eos", "expected"), [(7, (7,)), ([7, 9, 11], (7, 9, 11)), (None, (2,))])
def test_every_stop_id_of_the_generation_config(eos, expected):
    model = tiny()
    model.generation_config.eos_token_id = eos
    assert HfTarget(model, "tiny").info.stop_ids == expected


def test_penalties_of_the_generation_config_are_told(target):
    assert target.info.warnings == ()
    model = tiny()
    model.generation_config.repetition_penalty = 1.05
    assert HfTarget(model, "tiny").info.warnings == (
        "tiny's generation config asks for repetition_penalty=1.05; it is not applied here",
    )


def test_padded_heads_are_cut_to_the_vocabulary():
    model = tiny()
    model.resize_token_embeddings(40)
    model.config.vocab_size = 32
    target = HfTarget(model, "tiny")
    assert target.prefill(IDS).logits.shape == (1, 1, 32)
    assert (target.info.vocab_size, target.info.embedding_rows) == (32, 40)


def test_architectures_that_cannot_be_rolled_back_are_refused():
    with pytest.raises(TargetError, match="layers with window 4; only full attention can be rolled back"):
        HfTarget(tiny(MistralConfig, MistralForCausalLM, sliding_window=4), "tiny")
    HfTarget(tiny(MistralConfig, MistralForCausalLM, sliding_window=None), "tiny")


def test_unknown_architectures_are_refused_with_what_is_supported(tmp_path):
    tiny().save_pretrained(tmp_path)
    config = (tmp_path / "config.json").read_text().replace("LlamaForCausalLM", "MambaForCausalLM")
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(TargetError, match="MambaForCausalLM is not supported; supported: LlamaForCausalLM") as error:
        load_model(tmp_path, dtype=torch.float32, device=torch.device("cpu"))
    assert all(name in str(error.value) for name in FAMILIES)


def test_a_folder_that_is_no_model_is_one_line(tmp_path):
    with pytest.raises(TargetError, match="could not be loaded: ") as error:
        load_model(tmp_path, dtype=torch.float32, device=torch.device("cpu"))
    assert "\n" not in str(error.value)


def test_a_saved_model_loads_as_it_was(tmp_path):
    model = tiny()
    model.save_pretrained(tmp_path)
    loaded = load_model(tmp_path, dtype=torch.float32, device=torch.device("cpu"))
    torch.testing.assert_close(loaded(IDS).logits, model(IDS).logits)
