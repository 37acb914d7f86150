import dataclasses
import itertools
import re

import numpy as np
import pytest
from hypothesis import given
from toy_traces import make_trace, sampled, traces, with_header, with_steps, without

from dflash_lab.core.errors import TraceError
from dflash_lab.core.trace.metrics import CAUSES, check_trace, step_analysis, trace_metrics
from dflash_lab.core.trace.schema import Trace, TraceHeader
from dflash_lab.core.types import StepRecord


def one_step(columns, draft_ids, text, *, accepted, edges=True, truncated=0, target_ids=None, temperature=0.0):
    """A trace of one step after the anchor text[0]; the text may go on after it."""
    whole = text[1 : accepted + 2] if not truncated else (*draft_ids[:accepted], 99)
    record = StepRecord(
        0, 1, text[0], tuple(draft_ids), accepted, whole[-1], whole[: len(whole) - truncated], truncated
    )
    arrays = {("candidate_ids", 0): np.array(columns, np.int32)}
    if edges:
        arrays["edges", 0] = np.zeros((len(columns), len(columns[0]), len(columns[0])), np.float32)
    if target_ids is not None:
        arrays["target_ids", 0] = np.array(target_ids, np.int32)
    header = TraceHeader(
        prompt_ids=(7,), output_ids=tuple(text), request={"sampling": {"temperature": temperature}}, num_candidates=2
    )
    return Trace.from_arrays(header, (record,), arrays)


GRID = [[10, 11], [20, 21], [30, 31]]


@pytest.mark.parametrize(
    ("case", "cause", "wanted", "rank"),
    [
        (one_step(GRID, [10, 20, 30], (5, 10, 21, 31), accepted=1), "selector", 21, 2),
        (one_step(GRID, [10, 20, 30], (5, 10, 21, 31), accepted=1, edges=False), "drafter", 21, 2),
        (one_step(GRID, [10, 20, 30], (5, 10, 77, 31), accepted=1), "drafter", 77, None),
        (one_step(GRID, [10, 20, 30], (5, 10, 20, 30, 4), accepted=3), "full", None, None),
        (one_step(GRID, [10, 20, 30], (5, 10), accepted=2, truncated=2), "stop", None, None),
        (without(one_step(GRID, [10, 20, 30], (5, 10, 21), accepted=1), "candidate_ids"), "unknown", 21, None),
    ],
)
def test_cause_of_a_greedy_step(case, cause, wanted, rank):
    analysis = step_analysis(case, 0)
    assert (analysis.cause, analysis.wanted_id, analysis.target_rank) == (cause, wanted, rank)
    assert cause in CAUSES


@pytest.mark.parametrize(
    ("target_ids", "cause", "wanted", "rank"),
    [
        ([10, 20, 0, 0], "sampled", 20, 1),
        ([10, 21, 0, 0], "selector", 21, 2),
        ([10, 55, 0, 0], "drafter", 55, None),
        (None, "unknown", None, None),
    ],
)
def test_cause_of_a_sampled_step_asks_the_targets_arg_max_not_the_drawn_token(target_ids, cause, wanted, rank):
    trace = one_step(GRID, [10, 20, 30], (5, 10, 44), accepted=1, target_ids=target_ids, temperature=0.7)
    analysis = step_analysis(trace, 0)
    assert (analysis.cause, analysis.wanted_id, analysis.target_rank) == (cause, wanted, rank)


def test_lengths_go_as_far_as_the_text_is_known():
    # Beyond the rejected position the columns are still compared with what the target said later.
    analysis = step_analysis(one_step(GRID, [10, 20, 30], (5, 10, 21, 31), accepted=1), 0)
    assert (analysis.argmax_length, analysis.selected_length, analysis.best_length, analysis.known) == (2, 2, 4, 3)
    assert analysis.wanted_ids == (10, 21, 31)
    assert analysis.wanted_ranks == (1, 2, 2)
    # The text ends with the bonus token: position 2 is unknown, which is neither a hit nor a miss.
    analysis = step_analysis(one_step(GRID, [10, 20, 30], (5, 10, 21), accepted=1), 0)
    assert (analysis.argmax_length, analysis.selected_length, analysis.best_length, analysis.known) == (2, 2, 3, 2)
    # Cut off by length, the step's own accepted tokens are still known.
    analysis = step_analysis(one_step(GRID, [10, 20, 30], (5, 10), accepted=2, truncated=2), 0)
    assert (analysis.argmax_length, analysis.selected_length, analysis.best_length, analysis.known) == (3, 3, 3, 3)


def test_without_scores_lengths_are_unknown_and_the_selected_one_is_not():
    trace = without(make_trace([0, 1, 2, 3, 4, 5, 0], [3]), "candidate_ids")
    analysis = step_analysis(trace, 0)
    assert (analysis.argmax_length, analysis.best_length, analysis.wanted_ranks) == (None, None, None)
    assert analysis.selected_length == 1 + trace.steps[0].num_accepted
    metrics = trace_metrics(trace)
    assert metrics.argmax_acceptance_length is metrics.best_path_acceptance_length is None
    assert metrics.recall_n == (0, 0, 0)
    assert metrics.recall_at_1 == (None,) * 3


def accepted_of(path_tokens, wanted):
    return next((i for i, pair in enumerate(zip(path_tokens, wanted, strict=False)) if pair[0] != pair[1]), len(wanted))


@given(traces())
def test_three_lengths_against_every_path_of_the_grid(trace):
    for i, record in enumerate(trace.steps):
        analysis = step_analysis(trace, i)
        columns = trace.tensor("candidate_ids", i)
        first = record.start + 1 - len(trace.header.prompt_ids)
        text = trace.header.output_ids[first : first + len(columns)]
        own = (*record.draft_ids[: record.num_accepted], record.bonus_id)[: len(columns)]
        wanted = text if len(text) > len(own) else own
        assert analysis.wanted_ids == wanted
        assert analysis.best_length == 1 + max(accepted_of(path, wanted) for path in itertools.product(*columns))
        assert analysis.argmax_length == 1 + accepted_of(columns[:, 0], wanted)
        assert analysis.selected_length == 1 + accepted_of(record.draft_ids, wanted)
        assert analysis.best_length >= max(analysis.argmax_length, analysis.selected_length)


@given(traces())
def test_metrics_against_brute_force(trace):
    metrics = check_trace(trace)
    steps, output = trace.steps, trace.header.output_ids
    assert metrics.num_steps == len(steps)
    assert len(output) == metrics.num_output_tokens == 1 + sum(metrics.produced_per_step)
    if not steps:
        assert metrics.mean_acceptance_length is metrics.zlab_acceptance_length is metrics.zlab_list_mean is None
        return
    ours, m, clip = metrics.mean_acceptance_length, len(steps), metrics.num_clipped
    assert ours == pytest.approx(1 + sum(record.num_accepted for record in steps) / m)
    assert ours == pytest.approx(1 + sum(metrics.survival))
    assert metrics.zlab_list_mean == pytest.approx(ours - clip / m)
    assert metrics.sglang_accept_length == pytest.approx(ours - clip / m + 1 / m)
    assert metrics.zlab_acceptance_length == pytest.approx(len(output) / m)
    assert metrics.selected_acceptance_length == pytest.approx(ours)
    assert metrics.decode_tok_s == pytest.approx((len(output) - 1) / 2.0)
    assert metrics.steps_per_s == pytest.approx(m / 2.0)
    assert sum(metrics.causes.values()) == sum(bool(record.draft_ids) for record in steps)
    for position in range(len(metrics.survival)):
        seen = [
            (list(trace.tensor("candidate_ids", i)[position]), step_analysis(trace, i).wanted_ids[position])
            for i in range(m)
            if step_analysis(trace, i).known > position
        ]
        assert metrics.recall_n[position] == len(seen)
        if seen:
            assert metrics.recall_at_c[position] == pytest.approx(np.mean([want in column for column, want in seen]))
            assert metrics.recall_at_1[position] == pytest.approx(np.mean([want == column[0] for column, want in seen]))


def test_autoregressive_is_told_from_a_drafter_that_never_hits():
    autoregressive = trace_metrics(without(make_trace([0, 1, 2, 3], [0]), "candidate_ids"))
    assert autoregressive.acceptance_rate is None
    assert sum(autoregressive.causes.values()) == 0
    assert autoregressive.describe() == "autoregressive: 3 steps of one token, nothing proposed"
    dead = trace_metrics(one_step(GRID, [11, 20, 30], (5, 10), accepted=0))
    assert dead.acceptance_rate == 0.0
    assert dead.mean_acceptance_length == 1.0
    assert trace_metrics(make_trace([4], [3])).describe() == "no verification steps"


@pytest.mark.parametrize(("block_size", "drafts"), [(4, 3), (8, 7), (16, 15)])
def test_the_ratio_names_its_denominator_and_the_length_comes_first(block_size, drafts):
    # The same two accepted tokens per step whatever the block: the length stays, the ratio falls.
    rng = np.random.default_rng(0)
    steps, output = [], (5,)
    for index in range(4):
        draft_ids = tuple(int(token) for token in rng.integers(10, 20, size=drafts))
        committed = (*draft_ids[:2], 3)
        steps.append(StepRecord(index, len(output), output[-1], draft_ids, 2, 3, committed, 0))
        output += committed
    trace = Trace.from_arrays(TraceHeader(prompt_ids=(7,), output_ids=output, block_size=block_size), tuple(steps), {})
    metrics = check_trace(trace)
    assert metrics.mean_acceptance_length == 3.0
    lines = metrics.describe().split("\n")
    assert lines[0].startswith("acceptance length 3.00 tokens per step: 1 + 8 accepted / 4 steps")
    assert lines[1].startswith(f"acceptance rate {2 / drafts:.3f}: 8 of {4 * drafts} proposed")
    assert (
        lines[2] == f"drafts per step {drafts}: block of {block_size} with the anchor (SGLang), {drafts} drafts (vLLM)"
    )


def test_blocks_of_several_lengths_are_described_as_a_range():
    assert "drafts per step 2 to 5: block of 6" in trace_metrics(make_trace(range(6), [5, 2], seed=3)).describe()


def broken_step(trace, **changes):
    steps = list(trace.steps)
    steps[1] = dataclasses.replace(steps[1], **changes)
    return with_steps(trace, steps)


LONG = make_trace([0, 1, 2, 3, 4, 5] * 4, [3], num_candidates=4, seed=1)


@pytest.mark.parametrize(
    ("trace", "message"),
    [
        (broken_step(LONG, anchor_id=99), "step 1: broken identity: anchor = last token before the block"),
        (broken_step(LONG, truncated=1), "step 1: broken identity: committed = accepted + bonus, less truncated"),
        (broken_step(LONG, bonus_id=99), "step 1: broken identity: committed = accepted + bonus"),
        (with_header(LONG, output_ids=(*LONG.header.output_ids, 1)), "broken identity: n = 1 + sum(commit_length)"),
        (with_steps(LONG, LONG.steps[:-1]), "broken identity: n = 1 + sum(commit_length)"),
    ],
)
def test_check_trace_names_the_identity(trace, message):
    with pytest.raises(TraceError, match=re.escape(message)):
        check_trace(trace)


def test_check_trace_catches_a_path_outside_the_grid_and_a_target_that_rejects_itself():
    outside = one_step([[11, 12], [20, 21]], [10, 20], (5, 10, 33), accepted=1)
    with pytest.raises(TraceError, match="selected <= best length"):
        check_trace(outside)
    with pytest.raises(TraceError, match="a greedy target accepts its own token"):
        check_trace(one_step(GRID, [10, 21, 30], (5, 10, 21, 31), accepted=1))
    check_trace(sampled(one_step(GRID, [10, 21, 30], (5, 10, 21), accepted=1)))


def test_missing_steps_are_allowed():
    gap = with_steps(LONG, (LONG.steps[0], *LONG.steps[2:]))
    assert check_trace(gap).num_steps == len(LONG) - 1
    assert step_analysis(gap, 1) == step_analysis(LONG, 2)
