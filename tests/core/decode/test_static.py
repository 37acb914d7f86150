"""The static step: the same steps as the eager loop, request by request and in batches, on both backends."""

import dataclasses

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from dflash_lab.core.decode.batch import decode_batch
from dflash_lab.core.decode.graph import Engine
from dflash_lab.core.decode.loop import Decoding
from dflash_lab.core.decode.static import StaticStep
from dflash_lab.core.errors import BackendError, HookError, RequestError
from dflash_lab.core.generate import Pair, generate, load_pair
from dflash_lab.core.hooks import Hooks
from dflash_lab.core.kernels.launch import LAUNCHES
from dflash_lab.core.target.lean import LeanTarget
from dflash_lab.core.trace.recorder import Recorder
from dflash_lab.core.types import GenerateRequest, SamplingParams, StepTimings
from tests import toys

CPU = torch.device("cpu")
SIZES = {
    "vocab_size": 32, "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 4, "max_position_embeddings": 4096, "eos_token_id": 2,
    "initializer_range": 0.6,
}  # fmt: skip
PROMPTS = [(3, 1, 4, 1, 5), (9, 2, 6), (5, 3, 5, 8, 9, 7, 9, 3), (11,)]


def saved_model(kind, folder):
    """A tiny model of a family, on disk."""
    kinds = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen3": (Qwen3Config, Qwen3ForCausalLM)}
    config, model = kinds[kind]
    torch.manual_seed(1)
    model(config(**SIZES)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def target(request, tmp_path_factory):
    folder = saved_model(request.param, tmp_path_factory.mktemp(request.param))
    return LeanTarget(folder, "toy", dtype=torch.float32, device=CPU)


@pytest.fixture(params=["dflash2", "sliding", "causal", "dflash"])
def drafter(request, target):
    changes = {
        "dflash2": {},
        "sliding": {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4},
        "causal": {"is_causal": True},
        "dflash": {"version": "dflash"},
    }
    return toys.make_drafter(target, seed=3, **changes[request.param])


def steps_of(target, drafter, prompt, params, seed=0, **options):
    """Records without times, and what was recorded of each step."""
    rng = torch.Generator(target.device).manual_seed(seed)
    decoding = Decoding(target, drafter, prompt, params, rng=rng, **options)
    steps = list(decoding)
    records = [dataclasses.replace(step.record, timings=StepTimings()) for step in steps]
    return decoding, records, [step.arrays for step in steps]


def test_a_step_is_packed_with_its_own_times(target, drafter, monkeypatch):
    done = []
    packed = StaticStep._packed
    monkeypatch.setattr(StaticStep, "_stamp", lambda self, place: done.append(place))
    monkeypatch.setattr(StaticStep, "_packed", lambda *given: done.append("packed") or packed(*given))
    engine = Engine(target, drafter, "reference")
    steps_of(target, drafter, PROMPTS[0], SamplingParams(max_new_tokens=3), engine=engine)
    assert done[:6] == [0, 1, 2, 3, 4, "packed"]


@pytest.mark.parametrize("stop_ids", [(), (7, 19)])
def test_greedy_steps_are_the_eager_ones(target, drafter, stop_ids):
    engine = Engine(target, drafter, "reference")
    for prompt in PROMPTS:
        for length in (1, 2, 23):
            params = SamplingParams(max_new_tokens=length, stop_ids=stop_ids)
            eager, wanted, _ = steps_of(target, drafter, prompt, params)
            static, found, _ = steps_of(target, drafter, prompt, params, engine=engine)
            assert found == wanted
            assert static.stop_reason is eager.stop_reason
            assert static.output_ids == eager.output_ids


def test_without_a_drafter_it_is_autoregressive(target):
    params = SamplingParams(max_new_tokens=20)
    engine = Engine(target, toys.make_drafter(target), "reference")
    eager, wanted, _ = steps_of(target, None, PROMPTS[0], params)
    static, found, _ = steps_of(target, None, PROMPTS[0], params, engine=engine)
    assert found == wanted
    assert static.output_ids == eager.output_ids


@pytest.mark.parametrize("filters", [{}, {"top_p": 0.7}, {"top_k": 5}])
def test_sampled_steps_draw_as_the_eager_loop_until_a_block_would_be_cut(target, filters):
    drafter = toys.make_drafter(target, seed=3)
    engine = Engine(target, drafter, "reference")
    params = SamplingParams(temperature=1.0, max_new_tokens=40, **filters)
    for seed in range(3):
        _, wanted, _ = steps_of(target, drafter, PROMPTS[0], params, seed)
        _, found, _ = steps_of(target, drafter, PROMPTS[0], params, seed, engine=engine)
        whole = [record for record in wanted if len(record.draft_ids) == drafter.block_size - 1]
        assert whole
        assert found[: len(whole)] == whole


def test_a_recording_is_the_eager_one(target):
    drafter = toys.make_drafter(target, seed=3)
    params = SamplingParams(max_new_tokens=21)
    recorders = Recorder("scores"), Recorder("scores")
    hooks = recorders[0].attach(Hooks())
    for step in Decoding(target, drafter, PROMPTS[0], params, hooks=hooks):
        recorders[0].add(step)
    for step in Decoding(
        target, drafter, PROMPTS[0], params, engine=Engine(target, drafter, "reference"), recorded=True
    ):
        recorders[1].add(step)
    wanted, found = (recorder._arrays for recorder in recorders)
    assert found.keys() == wanted.keys()
    for key, array in wanted.items():
        assert found[key].shape == array.shape, key
        torch.testing.assert_close(torch.tensor(found[key]), torch.tensor(array), rtol=1e-4, atol=1e-4)


def test_a_batch_is_its_requests_one_by_one(target, drafter):
    engine = Engine(target, drafter, "reference")
    for block_size in (1, 5):
        params = SamplingParams(max_new_tokens=17, stop_ids=(7,))
        run = decode_batch(engine, PROMPTS, params, block_size=block_size, num_candidates=4)
        for prompt, output, accepted in zip(PROMPTS, run.output_ids, run.num_accepted, strict=True):
            alone, records, _ = steps_of(target, drafter if block_size > 1 else None, prompt, params)
            assert list(output) == alone.output_ids
            assert list(accepted) == [record.num_accepted for record in records]


def test_a_request_after_another_starts_anew(target):
    drafter = toys.make_drafter(target, seed=3)
    engine = Engine(target, drafter, "reference")
    params = SamplingParams(max_new_tokens=30)
    fresh = [steps_of(target, drafter, prompt, params)[1] for prompt in PROMPTS]
    cut = iter(Decoding(target, drafter, PROMPTS[2], params, engine=engine))
    next(cut)
    cut.close()
    assert [steps_of(target, drafter, prompt, params, engine=engine)[1] for prompt in PROMPTS] == fresh


def test_cancelling_keeps_what_was_committed(target):
    drafter = toys.make_drafter(target, seed=3)
    decoding = Decoding(
        target, drafter, PROMPTS[0], SamplingParams(max_new_tokens=30), engine=Engine(target, drafter, "reference")
    )
    for step in decoding:
        if step.record.index == 1:
            decoding.cancel()
    assert decoding.stop_reason == "cancelled"
    assert decoding.summary.num_steps == 2


def test_triton_kernels_take_the_same_steps(target):
    drafter = toys.make_drafter(target, seed=3)
    engine = Engine(target, drafter, "triton")
    params = SamplingParams(max_new_tokens=8)
    _, wanted, _ = steps_of(target, drafter, PROMPTS[0], params)
    LAUNCHES.clear()
    _, found, _ = steps_of(target, drafter, PROMPTS[0], params, engine=engine)
    assert found == wanted
    ran = {name for name, count in LAUNCHES.items() if count}
    assert {"_block_linear", "_block_qkv", "_block_attention", "_edge_walk", "_greedy_accept", "_commit"} <= ran


def test_an_empty_prompt_and_a_cache_that_is_too_short_are_named(target):
    engine = Engine(target, toys.make_drafter(target), "reference")
    with pytest.raises(RequestError, match="at least one prompt"):
        decode_batch(engine, [], SamplingParams(), block_size=5, num_candidates=4)


def test_hooks_and_features_leave_the_captured_loop_only_where_that_is_allowed(target):
    drafter = toys.make_drafter(target, seed=3)
    engine = Engine(target, drafter, "reference")
    request = GenerateRequest("x", record="features")

    class Words:
        def encode(self, prompt, chat=True):
            return PROMPTS[0], prompt

    captured = {"loop": "graph", "kernels": "reference", "cache": "static"}
    pair = Pair(target, drafter, Words(), None, captured, (), engine, "graph")
    with pytest.raises(HookError, match="use --loop eager"):
        generate(pair, request)
    with pytest.raises(HookError, match="use --loop eager"):
        generate(pair, GenerateRequest("x"), Hooks())
    eager = generate(dataclasses.replace(pair, loop="auto"), request)
    assert eager.backends["loop"] == "eager"
    assert generate(pair, GenerateRequest("x", record="scores")).backends["loop"] == "graph"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"loop": "graph"}, "on the CPU"),
        ({"loop": "fast"}, "loop must be one of"),
        ({"kernels": "triton"}, "needs a CUDA device"),
    ],
)
def test_what_cannot_be_captured_is_refused_before_anything_is_loaded(options, says):
    with pytest.raises(BackendError, match=says):
        load_pair(device="cpu", **options)
