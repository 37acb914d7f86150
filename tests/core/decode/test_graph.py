"""Captured steps on a GPU: the eager loop's, and what cannot be captured is named."""

import dataclasses

import pytest
import torch

from dflash_lab.core.decode.batch import decode_batch
from dflash_lab.core.decode.graph import Engine
from dflash_lab.core.decode.loop import Decoding
from dflash_lab.core.decode.static import StaticStep
from dflash_lab.core.errors import BackendError
from dflash_lab.core.target.lean import LeanTarget
from dflash_lab.core.types import SamplingParams
from tests import toys
from tests.core.decode.test_static import PROMPTS, saved_model, steps_of

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    folder = saved_model("llama", tmp_path_factory.mktemp("llama"))
    return LeanTarget(folder, "toy", dtype=torch.float32, device=torch.device("cuda"))


@pytest.fixture
def drafter(target):
    made = toys.make_drafter(target, seed=3)
    made.model.to("cuda")
    return made


@pytest.mark.parametrize("kernels", ["reference", "triton"])
def test_captured_steps_are_the_eager_ones(target, drafter, kernels):
    engine = Engine(target, drafter, kernels)
    for prompt in PROMPTS:
        params = SamplingParams(max_new_tokens=23, stop_ids=(7, 19))
        _, wanted, _ = steps_of(target, drafter, prompt, params)
        _, found, _ = steps_of(target, drafter, prompt, params, engine=engine)
        assert found == wanted


@pytest.mark.parametrize("kernels", ["reference", "triton"])
def test_a_captured_batch_is_its_requests_one_by_one(target, drafter, kernels):
    engine = Engine(target, drafter, kernels)
    params = SamplingParams(max_new_tokens=17, stop_ids=(7,))
    run = decode_batch(engine, PROMPTS, params, block_size=5, num_candidates=4)
    alone = [steps_of(target, drafter, prompt, params)[0].output_ids for prompt in PROMPTS]
    assert [list(output) for output in run.output_ids] == alone


def test_every_phase_of_a_step_takes_time(target, drafter):
    engine = Engine(target, drafter, "triton")
    params = SamplingParams(max_new_tokens=23)
    for step in Decoding(target, drafter, PROMPTS[0], params, engine=engine, recorded=True):
        assert all(0 < took < 1e3 for took in dataclasses.astuple(step.record.timings))


def test_sampling_draws_anew_at_each_replay(target, drafter):
    engine = Engine(target, drafter, "triton")
    params = SamplingParams(temperature=1.0, max_new_tokens=40)
    rng = torch.Generator("cuda")
    first, again, other = (
        decode_batch(engine, PROMPTS, params, block_size=5, num_candidates=4, rng=rng.manual_seed(seed)).output_ids
        for seed in (1, 1, 2)
    )
    assert first == again != other


def test_a_cache_that_does_not_fit_is_named(target, drafter):
    with pytest.raises(BackendError, match="GB are free: lower the batch or max_new_tokens"):
        decode_batch(
            Engine(target, drafter, "reference"),
            PROMPTS * 1000,
            SamplingParams(max_new_tokens=4_000_000),
            block_size=5,
            num_candidates=4,
        )


def test_a_step_that_cannot_be_captured_is_named(target, drafter, monkeypatch):
    run = StaticStep.run

    def waits(self):
        packed = run(self)
        packed.sum().item()  # the host waits for the device, which a capture cannot
        return packed

    monkeypatch.setattr(StaticStep, "run", waits)
    with pytest.raises(BackendError, match="could not be captured as a CUDA graph.*use --loop eager"):
        decode_batch(Engine(target, drafter, "reference"), PROMPTS, SamplingParams(), block_size=5, num_candidates=4)
