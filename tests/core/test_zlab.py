"""Step for step what z-lab's dflash 0.1.0 does with the same pair: recorded runs, and its code run here."""

import json
import os
from pathlib import Path

import pytest
import torch

from dflash_lab.core.decode.loop import Decoding
from dflash_lab.core.errors import DFlashLabError
from dflash_lab.core.generate import BUNDLED, load_drafter, load_pair
from dflash_lab.core.target import bundled
from dflash_lab.core.target.hf import load_model
from dflash_lab.core.types import SamplingParams

pytestmark = pytest.mark.network

RECORDED = Path(__file__).parents[3] / "shared" / "data"
"""Where a developer's machine keeps the recorded runs and the drafter they were made with: beside the checkout."""

PROMPTS = {
    "math": "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May. "
    "How many clips did Natalia sell altogether in April and May?",
    "code": "Write a Python function that returns the n-th Fibonacci number.",
    "chat": "What are two good ways to learn to cook?",
}


@pytest.fixture(scope="session")
def pair():
    """The bundled pair in float32; where the target cannot be fetched a person's run skips, CI's fails."""
    try:
        return load_pair(device="cpu", dtype="float32")
    except DFlashLabError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no bundled pair: {error}")


def our_steps(target, drafter, prompt_ids, block_size, max_new_tokens):
    params = SamplingParams(max_new_tokens=max_new_tokens, stop_ids=target.info.stop_ids)
    decoding = Decoding(target, drafter, prompt_ids, params, block_size=block_size)
    return decoding, list(decoding)


def assert_same_grid(step, path, candidates, unary):
    """The same proposal and candidates with scores within 1e-3; candidates that tie within that may swap."""
    assert list(step.record.draft_ids) == path
    ours = step.draft
    torch.testing.assert_close(ours.unary[0], unary, rtol=0, atol=1e-3)
    for position, theirs in enumerate(candidates):
        row = ours.candidate_ids[0, position].tolist()
        for place, (a, b) in enumerate(zip(row, theirs, strict=True)):
            if a != b:
                other = theirs.index(a)
                assert abs(unary[position, place] - unary[position, other]) < 1e-3


@pytest.mark.skipif(not (RECORDED / "reference").is_dir(), reason="no recorded runs in ../shared/data")
def test_recorded_runs(pair):
    reference = json.loads((RECORDED / "reference" / "dflash_0.1.0_greedy.json").read_text())
    drafter, _ = load_drafter(str(RECORDED / "drafter-bootstrap"), pair.target)
    for run in reference["runs"]:
        decoding, steps = our_steps(pair.target, drafter, run["prompt_ids"], run["block_size"], run["max_new_tokens"])
        assert [*decoding.prompt_ids, *decoding.output_ids] == run["output_ids"]
        assert [step.record.commit_length for step in steps] == run["produced_per_step"]
        for step, recorded in zip(steps, run["steps"], strict=True):
            assert step.record.anchor_id == recorded["anchor"]
            assert_same_grid(step, recorded["path"], recorded["candidates"], torch.tensor(recorded["unary"]))


@pytest.fixture(scope="session")
def zlab(pair):
    """z-lab's draft model of the bundled drafter, transformers' target, and the grids made while they run."""
    pytest.importorskip("dflash", reason="pip install --no-deps dflash==0.1.0 brings z-lab's decoder")
    from dflash.model import DFlash2DraftModel

    model = DFlash2DraftModel.from_pretrained(bundled.drafter_folder(), dtype=torch.float32).eval()
    target = load_model(pair.target_folder, dtype=torch.float32, device=torch.device("cpu"))
    grids, select = [], model.candidate_selector.select

    def spy(hidden, logits, anchor_ids, temperature):
        chosen = select(hidden, logits, anchor_ids, temperature)
        unary, candidates = torch.topk(logits, 16, dim=-1)
        grids.append((chosen[0][0].tolist(), candidates[0].tolist(), unary[0]))
        return chosen

    model.candidate_selector.select = spy
    return model, target, grids


@pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated:FutureWarning")
@pytest.mark.parametrize("block_size", [8, 16])
@pytest.mark.parametrize("prompt", PROMPTS)
def test_the_shipped_drafter_decodes_the_same_there(pair, zlab, prompt, block_size):
    from dflash.model import dflash_generate

    model, target, grids = zlab
    grids.clear()
    ids, _ = pair.text.encode(PROMPTS[prompt])
    theirs = dflash_generate(model, target, torch.tensor([ids]), 48, list(pair.target.info.stop_ids),
                             block_size=block_size)  # fmt: skip
    decoding, steps = our_steps(pair.target, pair.drafter, ids, block_size, 48)
    assert [*decoding.prompt_ids, *decoding.output_ids] == theirs[0].tolist()
    assert len(steps) == len(grids)
    for step, (path, candidates, unary) in zip(steps, grids, strict=True):
        assert_same_grid(step, path, candidates, unary)


def test_greedy_text_equals_the_targets_own(pair):
    ids, _ = pair.text.encode(PROMPTS["math"])
    speculative, _ = our_steps(pair.target, pair.drafter, ids, 4, 32)
    alone, _ = our_steps(pair.target, None, ids, None, 32)
    assert speculative.output_ids == alone.output_ids


def test_the_pair_says_what_runs(pair):
    assert pair.drafter.name == BUNDLED
    assert pair.backends["dtype"] == "float32"
    assert pair.backends["device"] == "cpu"
    assert pair.backends["kernels"] == "reference"
    assert pair.backends["forward"] == "lean"
