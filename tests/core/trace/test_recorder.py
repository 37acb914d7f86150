import dataclasses
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dflash_lab.core.errors import RequestError
from dflash_lab.core.hooks import NO_HOOKS, Hooks
from dflash_lab.core.trace import store
from dflash_lab.core.trace.metrics import step_analysis
from dflash_lab.core.trace.recorder import MAX_CANDIDATES, Recorder
from dflash_lab.core.trace.schema import FEATURE_TENSORS, SCORE_TENSORS, TokenInfo, TraceHeader
from dflash_lab.core.types import StepRecord

K, C, V, D = 3, 4, 50, 6


def run_step(hooks, *, index=0, selector=True, sampled=False, dtype=torch.float32, candidates=C, seed=0):
    """What a decode would do in one step: call the hooks in order, then hand out the step."""
    rng = torch.Generator().manual_seed(seed + index)
    hooks("target_features", torch.randn(1, 2, 2 * D, generator=rng).to(dtype))
    hooks("context", torch.randn(1, 2, D, generator=rng).to(dtype))
    hooks("draft_hidden", torch.randn(1, K, D, generator=rng).to(dtype))
    logits = hooks("draft_logits", torch.randn(1, K, max(V, candidates), generator=rng).to(dtype))
    unary, candidate_ids = logits.topk(candidates)
    unary = hooks("unary", unary.float())
    edges = torch.randn(1, K, candidates, candidates, generator=rng) if selector and hooks.wants("edges") else None
    if edges is not None:
        edges = hooks("edges", edges)
    path = hooks("path", unary.argmax(-1))
    draft_ids = candidate_ids.gather(2, path[..., None])[..., 0]
    draft = SimpleNamespace(
        block_ids=torch.cat((torch.tensor([[9]]), draft_ids), 1),
        candidate_ids=candidate_ids,
        unary=unary,
        edges=edges,
        path=path,
        q=torch.softmax(unary, -1) if sampled else None,
    )
    output = SimpleNamespace(logits=torch.randn(1, K + 1, max(V, candidates), generator=rng).to(dtype))
    record = StepRecord(index, 5 + index, 9, tuple(draft_ids[0].tolist()), 0, 7, (7,), 0)
    return SimpleNamespace(record=record, draft=draft, output=output, draft_logits=logits, arrays=None)


def recorded(level="scores", steps=2, base=None, **options):
    recorder = Recorder(level)
    hooks = recorder.attach(base)
    seen = []
    for index in range(steps):
        seen.append(run_step(hooks, index=index, **options))
        recorder.add(seen[-1])
    header = TraceHeader(num_candidates=C, prompt_ids=tuple(range(5)), output_ids=(9, 7, 7))
    return recorder.finish(header), seen


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_scores_are_those_of_the_step(tmp_path, dtype):
    trace, steps = recorded(dtype=dtype, sampled=True)
    assert trace.header.level == "scores"
    for i, step in enumerate(steps):
        logits = step.output.logits[0].float()
        expected = {name: getattr(step.draft, name)[0] for name in ("candidate_ids", "unary", "edges", "path", "q")} | {
            "log_norm": step.draft_logits[0].float().logsumexp(-1),
            "target_ids": logits.argmax(-1),
            "target_top2": logits.topk(2).values,
            "target_log_norm": logits.logsumexp(-1),
            "target_logit": logits[:K].gather(1, step.draft.candidate_ids[0]),
        }
        assert expected.keys() == SCORE_TENSORS.keys()
        for name, tensor in expected.items():
            np.testing.assert_array_equal(trace.tensor(name, i), tensor.numpy(), err_msg=name)
        assert not any(trace.tensor(name, i) is not None for name in FEATURE_TENSORS)
    # The file refuses any dtype or shape that is not the schema's.
    store.save(trace, tmp_path / "t")
    assert step_analysis(store.load(tmp_path / "t"), 1).num_drafted == K


def test_features_add_to_scores(tmp_path):
    trace, _ = recorded("features", dtype=torch.bfloat16)
    assert trace.tensor("target_features", 1).shape == (2, 2 * D)
    assert trace.tensor("context", 1).shape == (2, D)
    assert trace.tensor("draft_hidden", 1).dtype == np.float32
    assert trace.tensor("unary", 1) is not None
    store.save(trace, tmp_path / "t")


def test_steps_only_asks_for_nothing():
    recorder = Recorder("steps")
    hooks = recorder.attach(None)
    assert not any(hooks.wants(point) for point in ("edges", "draft_logits", "context"))
    step = run_step(hooks, candidates=MAX_CANDIDATES + 1)
    recorder.add(step)
    trace = recorder.finish(TraceHeader())
    assert trace.steps == (step.record,)
    assert trace.tensor("unary", 0) is None


def test_an_edit_made_before_the_recorder_is_what_is_recorded():
    base = Hooks()
    base.add("unary", lambda unary: unary * 2)
    base.add("context", lambda context: context + 1)
    edited, _ = recorded("features", base=base)
    plain, _ = recorded("features")
    np.testing.assert_array_equal(edited.tensor("unary", 0), plain.tensor("unary", 0) * 2)
    np.testing.assert_array_equal(edited.tensor("context", 0), plain.tensor("context", 0) + 1)
    np.testing.assert_array_equal(edited.tensor("target_ids", 0), plain.tensor("target_ids", 0))


def test_recording_changes_nothing_and_ends_with_finish():
    base = Hooks()
    trace, steps = recorded("features", base=base)
    assert not any(base.wants(point) for point in ("unary", "edges", "draft_logits", "context"))
    for index, step in enumerate(steps):
        bare = run_step(Hooks(), index=index)
        assert bare.record == step.record
        assert torch.equal(bare.draft.unary, step.draft.unary)
    assert Recorder("scores").attach(NO_HOOKS) is not NO_HOOKS
    assert not NO_HOOKS.wants("edges")
    assert len(trace) == 2


def test_a_snapshot_is_what_there_is_so_far_and_recording_goes_on():
    recorder = Recorder("scores")
    hooks = recorder.attach(Hooks())
    recorder.add(run_step(hooks, index=0))
    early = recorder.snapshot(TraceHeader())
    recorder.add(run_step(hooks, index=1))
    late = recorder.finish(TraceHeader())
    assert (len(early), len(late)) == (1, 2)
    assert early.tensor("edges", 1) is None
    for name in ("edges", "log_norm"):
        assert late.tensor(name, 1) is not None


def test_dflash_1_has_no_edges_and_autoregressive_no_draft():
    trace, _ = recorded(selector=False)
    assert trace.tensor("edges", 0) is None
    recorder = Recorder("scores")
    recorder.attach(None)
    step = run_step(Hooks())
    record = dataclasses.replace(step.record, draft_ids=())
    recorder.add(
        SimpleNamespace(record=record, draft=None, output=SimpleNamespace(logits=torch.ones(1, 1, V)), arrays=None)
    )
    trace = recorder.finish(TraceHeader())
    assert trace.tensor("candidate_ids", 0) is trace.tensor("log_norm", 0) is trace.tensor("target_logit", 0) is None
    # All logits equal: the arg-max is the first, as in verification, and the margin is zero.
    assert trace.tensor("target_ids", 0).tolist() == [0]
    assert trace.tensor("target_top2", 0).tolist() == [[1.0, 1.0]]


def test_special_values_come_through_bit_by_bit():
    recorder = Recorder("scores")
    step = run_step(recorder.attach(None))
    step.draft.unary[0, 0] = torch.tensor([float("inf"), float("nan"), -0.0, float("-inf")])
    recorder.add(step)
    array = recorder.finish(TraceHeader()).tensor("unary", 0)
    assert array.tobytes() == step.draft.unary[0].numpy().tobytes()


def test_too_many_candidates_are_refused_before_their_edges_are_made():
    hooks = Recorder("scores").attach(None)
    with pytest.raises(RequestError, match="at most 256 candidates, got 257: use --record steps"):
        hooks("unary", torch.zeros(1, K, MAX_CANDIDATES + 1))
    assert hooks("unary", torch.zeros(1, K, MAX_CANDIDATES)).shape[-1] == MAX_CANDIDATES


def test_every_token_that_the_trace_shows_gets_its_text():
    recorder = Recorder("scores")
    step = run_step(recorder.attach(None))
    recorder.add(step)
    shown = {9, 7, 1, 2, *step.draft.candidate_ids.flatten().tolist(), *step.output.logits[0].argmax(-1).tolist()}
    header = TraceHeader(prompt_ids=(1,), output_ids=(9, 2))
    trace = recorder.finish(header, lambda ids: {i: TokenInfo(f"t{i}") for i in ids})
    assert list(trace.header.tokens) == sorted(shown)
    assert trace.token(9).text == "t9"


def test_a_step_is_one_buffer():
    trace, _ = recorded(steps=1)
    arrays = [trace.tensor(name, 0) for name in SCORE_TENSORS if trace.tensor(name, 0) is not None]
    buffers = set()
    for array in arrays:
        while isinstance(array.base, np.ndarray):
            array = array.base
        buffers.add(array.__array_interface__["data"][0])
        assert array.nbytes == sum(kept.nbytes for kept in arrays)
    assert len(buffers) == 1


def test_reading_traces_needs_no_torch():
    modules = ", ".join(f"dflash_lab.core.trace.{name}" for name in ("recorder", "store", "metrics"))
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
