"""From names to a trace: what is looked up, what is refused, what is written down."""

from pathlib import Path

import pytest
import torch

from dflash_lab.core import generate as module
from dflash_lab.core.errors import BackendError, NumericsError, RequestError, TargetError
from dflash_lab.core.generate import Pair, generate, load_drafter, load_pair, resolve
from dflash_lab.core.hooks import Hooks
from dflash_lab.core.model.checkpoint import save_checkpoint
from dflash_lab.core.model.config import DraftConfig
from dflash_lab.core.target.toy import ToyTarget
from dflash_lab.core.trace.metrics import check_trace
from dflash_lab.core.types import GenerateRequest, SamplingParams


class Letters:
    """A tokenizer of 32 one-letter tokens."""

    def encode(self, prompt, chat=True):
        if not prompt:
            raise RequestError("the prompt is empty: give some text")
        return [ord(letter) % 32 for letter in prompt], f"<{prompt}>" if chat else prompt

    def decode(self, ids):
        return "".join(chr(96 + i) for i in ids)

    def tokens(self, ids):
        return {i: (chr(96 + i), None, False) for i in ids}


@pytest.fixture
def pair(make_drafter):
    def make(stop_ids=(), **options):
        target = ToyTarget.random(32, sharpness=3.0, stop_ids=stop_ids)
        backends = {"kernels": "reference", "forward": "toy", "dtype": "float32", "device": "cpu"}
        return Pair(target, make_drafter(target, **options), Letters(), Path("toy"), backends, ("said when loading",))

    return make


def request(record="scores", **changes):
    return GenerateRequest("abc", SamplingParams(max_new_tokens=20), record=record, **changes)


def run(pair, asked, hooks=None):
    generation = generate(pair, asked, hooks)
    return generation, list(generation)


def test_the_trace_says_what_ran_and_holds_together(pair):
    generation, steps = run(pair(), request(block_size=4, num_candidates=3, seed=5))
    trace = generation.trace()
    header = trace.header
    check_trace(trace)
    assert (header.status, header.stop_reason, header.level) == ("complete", "length", "scores")
    assert (header.block_size, header.num_candidates) == (4, 3)
    assert header.prompt == "<abc>"
    assert header.prompt_ids == (1, 2, 3)
    assert header.output_ids == tuple(generation.output_ids)
    assert header.backends["forward"] == "toy"
    assert header.request["seed"] == 5
    assert header.drafter["version"] == "dflash2"
    assert header.drafter["origins"]["block_size"] == "dflash_config.block_size"
    assert header.drafter["head"] == "the target's"
    assert header.warnings == ("said when loading",)
    assert header.provenance["packages"]["torch"]
    assert [record.index for record in trace.steps] == list(range(len(steps)))
    seen = {*header.prompt_ids, *header.output_ids}
    for record in trace.steps:
        seen.update(trace.tensor("candidate_ids", record.index).ravel().tolist())
    assert seen <= set(header.tokens)


def test_stop_ids_of_the_target_and_of_the_request_both_count(pair):
    free, _ = run(pair(), request("none"))
    third, sixth = free.output_ids[2], free.output_ids[5]
    stopped, _ = run(pair(stop_ids=(sixth,)), request("none"))
    assert stopped.output_ids[-1] == sixth
    both = GenerateRequest("abc", SamplingParams(max_new_tokens=20, stop_ids=(third,)))
    assert len(run(pair(stop_ids=(sixth,)), both)[0].output_ids) <= len(stopped.output_ids)


def test_a_block_above_the_trained_one_is_in_the_warnings(pair):
    generation, _ = run(pair(), request(block_size=7))
    assert "above the 5" in generation.trace().header.warnings[1]


def test_cancelled_runs_keep_their_steps(pair):
    generation = generate(pair(), request())
    for step in generation:
        if step.record.index == 1:
            generation.cancel()
    trace = generation.trace()
    assert (trace.header.status, trace.header.stop_reason, len(trace)) == ("cancelled", "cancelled", 2)


def test_failed_runs_keep_their_steps(pair):
    broken, calls = pair(), []

    def poison(hidden):
        calls.append(1)
        return torch.full_like(hidden, float("nan")) if len(calls) == 3 else None

    hooks = Hooks()
    hooks.add("draft_hidden", poison)
    generation = generate(broken, request(), hooks)
    with pytest.raises(NumericsError):
        list(generation)
    trace = generation.trace()
    assert (trace.header.status, trace.header.stop_reason, len(trace)) == ("failed", None, 2)


def test_recording_does_not_change_the_text(pair):
    texts = {record: run(pair(), request(record))[0].output_ids for record in ("none", "steps", "scores", "features")}
    assert len({tuple(text) for text in texts.values()}) == 1


def test_sampling_is_repeatable_by_its_seed(pair):
    def text(seed):
        asked = GenerateRequest("abc", SamplingParams(temperature=1.5, max_new_tokens=20), seed=seed)
        return run(pair(), asked)[0].output_ids

    assert text(1) == text(1) != text(2)


def test_a_drafter_loads_from_a_folder_and_packs_its_weights(tmp_path, raw_config, random_model, pair):
    raw = raw_config()
    save_checkpoint(random_model(DraftConfig.from_dict(raw)), raw, tmp_path, torch.float32)
    toy = pair()
    drafter, warnings = load_drafter(str(tmp_path), toy.target)
    assert warnings == []
    assert drafter.weights_bytes == toy.drafter.weights_bytes
    loaded = Pair(toy.target, drafter, toy.text, toy.target_folder, toy.backends, ())
    assert run(loaded, request())[0].output_ids == run(toy, request())[0].output_ids


def test_names_are_folders_or_hub_ids(tmp_path, monkeypatch):
    assert resolve(str(tmp_path)) == tmp_path
    for name in ("nowhere", "./a/b", "/no/such", "a/b/c"):
        with pytest.raises(TargetError, match="neither 'bundled', a folder, nor a hub id"):
            resolve(name)
    asked = {}

    def snapshot(name, allow_patterns):
        asked[name] = allow_patterns
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    said = []
    assert resolve("owner/name", said.append) == tmp_path
    assert said == ["looking up owner/name on the hub"]
    assert not any(pattern.endswith((".py", ".bin", ".pt")) for pattern in asked["owner/name"])


def test_a_hub_that_does_not_answer_is_one_line(monkeypatch):
    def offline(name, allow_patterns):
        raise OSError("no network\nand more lines")

    monkeypatch.setattr("huggingface_hub.snapshot_download", offline)
    with pytest.raises(TargetError, match="'owner/name' could not be fetched from the hub: no network$"):
        resolve("owner/name")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "tpu"}, "device must be auto, cpu or cuda, got 'tpu'"),
        ({"dtype": "int8"}, "dtype must be auto, float32, bfloat16, float16, got 'int8'"),
        ({"kernels": "cuda"}, "kernels must be one of auto, reference, triton, got 'cuda'"),
    ],
)
def test_backends_that_do_not_exist(options, message):
    with pytest.raises(BackendError, match=message):
        load_pair(**options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_a_device_that_is_not_there_is_not_replaced():
    with pytest.raises(BackendError, match="torch finds no CUDA device: use --device cpu"):
        load_pair(device="cuda")


def test_precision_follows_the_device():
    assert module.choose_dtype("auto", torch.device("cpu")) is torch.float32
    assert module.choose_dtype("auto", torch.device("cuda")) is torch.bfloat16


def test_records_that_do_not_exist():
    with pytest.raises(RequestError, match="record must be one of none, steps, scores, features, got 'all'"):
        GenerateRequest("x", record="all")
