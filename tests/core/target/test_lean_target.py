"""Our own forward pass against transformers' on the same files."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from dflash_lab.core.errors import BackendError, TargetError
from dflash_lab.core.generate import _load_target
from dflash_lab.core.kernels.linear import PackedLinear, pack_linears
from dflash_lab.core.target.hf import HfTarget, load_model
from dflash_lab.core.target.lean import LeanTarget
from dflash_lab.core.target.weights import Weights

CPU = torch.device("cpu")
SIZES = {
    "vocab_size": 32, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 4, "max_position_embeddings": 1024, "bos_token_id": 1, "eos_token_id": 2,
    "initializer_range": 0.3,
}  # fmt: skip
LLAMA3 = {"rope_type": "llama3", "rope_theta": 100.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}  # fmt: skip
MODELS = {
    "llama": (LlamaConfig, LlamaForCausalLM, {}),
    "llama-tied": (LlamaConfig, LlamaForCausalLM, {"tie_word_embeddings": True}),
    "llama-biased": (LlamaConfig, LlamaForCausalLM, {"attention_bias": True, "mlp_bias": False}),
    "llama-3": (LlamaConfig, LlamaForCausalLM, {"rope_parameters": LLAMA3}),
    "llama-full-heads": (LlamaConfig, LlamaForCausalLM, {"num_key_value_heads": 4}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {}),
}
IDS = torch.randint(3, 32, (1, 300), generator=torch.Generator().manual_seed(0))


def save(folder, name, **changes):
    config, model, own = MODELS[name]
    torch.manual_seed(0)
    made = model(config(**{**SIZES, **own, **changes}))
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.rand_like(parameter))  # norms and biases that matter
    made.save_pretrained(folder)
    return folder


@pytest.fixture(params=MODELS)
def pair(request, tmp_path):
    folder = save(tmp_path, request.param)
    targets = (
        LeanTarget(folder, "lean", dtype=torch.float32, device=CPU),
        HfTarget(load_model(folder, dtype=torch.float32, device=CPU), "hf"),
    )
    for target in targets:
        target.capture([3, 0, 2])
    return targets


def same(ours, theirs):
    torch.testing.assert_close(ours.logits, theirs.logits, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(ours.features, theirs.features, rtol=1e-3, atol=1e-3)


def test_prefill_blocks_and_rollback(pair):
    lean, hf = pair
    same(lean.prefill(IDS[:, :20]), hf.prefill(IDS[:, :20]))
    same(lean.verify(IDS[:, 20:25]), hf.verify(IDS[:, 20:25]))
    for target in pair:
        target.rollback(22)
    same(lean.verify(IDS[:, 40:41]), hf.verify(IDS[:, 40:41]))
    same(lean.verify(IDS[:, 50:300]), hf.verify(IDS[:, 50:300]))  # past the first reservation
    same(lean.prefill(IDS[:, 5:9]), hf.prefill(IDS[:, 5:9]))  # and a new request


def test_both_describe_the_same_target(pair):
    lean, hf = (vars(target.info) for target in pair)
    assert {**lean, "name": ""} == {**hf, "name": ""}
    assert pair[0].weights_bytes == pair[1].weights_bytes


def test_embedding_and_head(pair):
    lean, hf = pair
    hidden = torch.randn(1, 3, 16)
    torch.testing.assert_close(lean.embed(IDS[:, :5]), hf.embed(IDS[:, :5]))
    torch.testing.assert_close(lean.head(hidden), hf.head(hidden))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_as_close_as_transformers(tmp_path, dtype):
    folder = save(tmp_path, "qwen3")

    def error(target, exact):
        logits = target.prefill(IDS[:, :20]).logits
        assert logits.dtype == dtype
        return (logits.float() - exact).norm() / exact.norm()

    exact = HfTarget(load_model(folder, dtype=torch.float32, device=CPU), "hf").prefill(IDS[:, :20]).logits
    ours = error(LeanTarget(folder, "lean", dtype=dtype, device=CPU), exact)
    theirs = error(HfTarget(load_model(folder, dtype=dtype, device=CPU), "hf"), exact)
    assert ours < 2 * theirs


def test_what_has_no_lean_pass_is_named(tmp_path):
    folder = save(tmp_path, "llama", rope_parameters={"rope_type": "dynamic", "rope_theta": 100.0, "factor": 2.0})
    with pytest.raises(TargetError, match="has no lean forward pass.*use --forward transformers"):
        LeanTarget(folder, "x", dtype=torch.float32, device=CPU)
    assert _load_target(folder, "x", torch.float32, CPU, "auto")[1] == "transformers"
    with pytest.raises(BackendError, match="forward must be one of auto, lean, transformers, got 'fast'"):
        _load_target(folder, "x", torch.float32, CPU, "fast")


def test_the_forward_pass_asked_for_is_the_one_that_runs(tmp_path):
    folder = save(tmp_path, "llama")
    for forward, kind in (("auto", LeanTarget), ("lean", LeanTarget), ("transformers", HfTarget)):
        target, passed = _load_target(folder, "x", torch.float32, CPU, forward)
        assert type(target) is kind
        assert passed == ("transformers" if kind is HfTarget else "lean")


def test_files_that_do_not_read_are_named(tmp_path):
    with pytest.raises(TargetError, match="no model.safetensors and no readable"):
        Weights(tmp_path)
    folder = save(tmp_path, "llama")
    with pytest.raises(TargetError, match="has no tensor lm_head.bias"):
        Weights(folder).read("lm_head.bias", CPU)
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(TargetError, match="cannot be read"):
        Weights(folder)


@pytest.mark.parametrize("rows", [1, 2, 8, 33])
@pytest.mark.parametrize("bias", [True, False])
def test_packed_linear_is_linear(rows, bias):
    linear = torch.nn.Linear(24, 17, bias=bias)
    packed = PackedLinear(linear.weight.detach(), linear.bias.detach() if bias else None)
    x = torch.randn(2, rows, 24)
    assert packed.packed
    torch.testing.assert_close(packed(x), linear(x))
    assert not PackedLinear(linear.weight.detach().bfloat16()).packed


def test_packing_replaces_linears_at_any_depth():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Sequential(torch.nn.Linear(4, 2))).requires_grad_(False)
    x = torch.randn(3, 4)
    before = model(x)
    pack_linears(model)
    assert [type(m) for m in (model[0], model[1][0])] == [PackedLinear, PackedLinear]
    torch.testing.assert_close(model(x), before)
