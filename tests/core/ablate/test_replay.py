"""A replay takes the very steps of decoding, whatever cuts blocks and text, and knows the same of each."""

import dataclasses

import pytest
import torch

from dflash_lab.core.ablate import replay as replaying
from dflash_lab.core.ablate.numbers import pooled_numbers, prompt_numbers, walk_of_replay, walk_of_trace
from dflash_lab.core.ablate.replay import Choice, read_context, replay
from dflash_lab.core.ablate.texts import Reader, TextPlan
from dflash_lab.core.decode.loop import Decoding
from dflash_lab.core.errors import NumericsError
from dflash_lab.core.model.head import DraftHead
from dflash_lab.core.target.toy import RecurrentToyTarget, ToyTarget
from dflash_lab.core.trace.metrics import trace_metrics
from dflash_lab.core.trace.recorder import Recorder
from dflash_lab.core.trace.schema import Trace, TraceHeader
from dflash_lab.core.types import SamplingParams

KINDS = {
    "dflash2": {},
    "dflash": {"version": "dflash"},
    "causal": {"is_causal": True},
    "sliding": {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 3},
}
PROMPTS = [(3, 1, 4, 1, 5), (9, 2, 6), (5, 3, 5, 8, 9, 7, 9, 3), (11,)]


CYCLE = (2, 7, 13)


def leaning_pair(make_drafter, kind="dflash2", chain=ToyTarget):
    """A chain that runs into a cycle, and an untrained drafter that is right now and then.

    Its head likes the tokens of the cycle, its selector (if any) knows more or less what follows what.
    """
    generator = torch.Generator().manual_seed(4)
    table = torch.randn(32, 32, generator=generator)
    likely = torch.zeros(32)
    likely[list(CYCLE)] = 9.0
    table += likely
    following = list(zip(CYCLE, CYCLE[1:] + CYCLE[:1], strict=True))
    for before, after in following:
        table[before, after] += 5
    target = chain(table)
    drafter = make_drafter(target, seed=3, **KINDS[kind])
    drafter.head = DraftHead(drafter.config, lambda hidden: target.head(hidden) + likely)
    if drafter.config.selector:
        for place, (before, after) in enumerate(following):
            drafter.model.candidate_selector.predecessor_codebook[before] = torch.eye(4)[place] * 4
            drafter.model.candidate_selector.successor_codebook[after] = torch.eye(4)[place] * 4
    return target, drafter


def decoded(target, drafter, prompt, params, block_size, num_candidates) -> Trace:
    """A recorded run of the real loop."""
    recorder = Recorder("scores")
    sizes = {"block_size": block_size, "num_candidates": num_candidates}
    decoding = Decoding(target, drafter, prompt, params, hooks=recorder.attach(), **sizes)
    for step in decoding:
        recorder.add(step)
    header = TraceHeader(prompt_ids=tuple(prompt), output_ids=tuple(decoding.output_ids), drafter={"name": "toy"})
    return recorder.finish(header)


def replayed(target, drafter, params, block_size, choices, keep_bytes=10**9):
    """Walks of every choice along the texts of PROMPTS, and the texts."""
    reader = Reader(target, drafter, PROMPTS, {}, TextPlan(params.max_new_tokens, 20, params.stop_ids), keep_bytes)
    texts, features = reader.group(range(len(PROMPTS)))
    walks = replay(drafter, texts, read_context(drafter, features), block_size, choices)
    return walks, [reader.read(i).text for i in range(len(PROMPTS))]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("stop_ids", "length"), [((), 30), ((2, 19), 30), ((), 6), ((2,), 2), ((), 1)])
def test_a_replay_is_the_decode_step_by_step(make_drafter, kind, stop_ids, length):
    target, drafter = leaning_pair(make_drafter, kind)
    params = SamplingParams(max_new_tokens=length, stop_ids=stop_ids)
    counts = (1, 3, 7)
    has_selector = drafter.config.selector is not None
    for block_size in (2, 6):
        choices = [Choice(count, has_selector) for count in counts]
        walks, texts = replayed(target, drafter, params, block_size, choices)
        for i, choice in enumerate(choices):
            rows, wanted = [], []
            for j, prompt in enumerate(PROMPTS):
                trace = decoded(target, drafter, prompt, params, block_size, choice.num_candidates)
                assert texts[j].output_ids == trace.header.output_ids
                decode, walk = walk_of_trace(trace), walk_of_replay(walks, i, j, texts[j].output_ids)
                assert walk.drafted.tolist() == decode.drafted.tolist()
                assert walk.accepted.tolist() == decode.accepted.tolist()
                assert walk.known.tolist() == decode.known.tolist()
                row = prompt_numbers(walk, choice.num_candidates, "p", "c")
                assert row == dataclasses.replace(
                    prompt_numbers(decode, choice.num_candidates, "p", "c"), decode_ms=None
                )
                metrics = trace_metrics(trace)
                for name in ("mean_acceptance_length", "argmax_acceptance_length", "best_path_acceptance_length"):
                    assert getattr(row, name) == pytest.approx(getattr(metrics, name))
                rows.append(walk)
                wanted.append(decode)
            numbers = [[prompt_numbers(w, choice.num_candidates, "p", "c") for w in each] for each in (rows, wanted)]
            assert pooled_numbers(rows, numbers[0], choice.num_candidates) == pooled_numbers(
                wanted, numbers[1], choice.num_candidates
            )
    if length == 30 and not stop_ids:
        assert walks.accepted[-1][walks.visited[-1]].max() >= (2 if has_selector else 1), "never right tests nothing"


def test_without_the_selector_the_best_candidates_are_proposed(make_drafter):
    target, drafter = leaning_pair(make_drafter)
    params = SamplingParams(max_new_tokens=30)
    choices = [Choice(4, True), Choice(4, False), Choice(2, False), Choice(1, True)]
    walks, texts = replayed(target, drafter, params, 5, choices)
    rows = [prompt_numbers(walk_of_replay(walks, i, 0, texts[0].output_ids), c.num_candidates, "p", "c")
            for i, c in enumerate(choices)]  # fmt: skip
    assert rows[1].mean_acceptance_length == rows[1].argmax_acceptance_length == rows[3].mean_acceptance_length
    assert rows[2].num_accepted == rows[1].num_accepted
    assert rows[2].best_path_acceptance_length <= rows[1].best_path_acceptance_length
    assert (walks.accepted[0] != walks.accepted[1]).any(), "the selector changes nothing here"


def test_a_state_that_cannot_be_cropped_is_replayed_too(make_drafter):
    target, drafter = leaning_pair(make_drafter, chain=RecurrentToyTarget)
    params = SamplingParams(max_new_tokens=25)
    walks, texts = replayed(target, drafter, params, 5, [Choice(4, True)])
    for j, prompt in enumerate(PROMPTS):
        decode = walk_of_trace(decoded(target, drafter, prompt, params, 5, 4))
        assert decode.output_ids == texts[j].output_ids
        assert walk_of_replay(walks, 0, j, texts[j].output_ids).accepted.tolist() == decode.accepted.tolist()


def test_many_candidates_walk_row_by_row(make_drafter, monkeypatch):
    target, drafter = leaning_pair(make_drafter)
    params = SamplingParams(max_new_tokens=25)
    choices = [Choice(4, True), Choice(12, True)]
    wanted, _ = replayed(target, drafter, params, 5, choices)
    monkeypatch.setattr(replaying, "MATERIALISE_UP_TO", 8)
    found, _ = replayed(target, drafter, params, 5, choices)
    assert (found.visited == wanted.visited).all()
    assert (found.accepted == wanted.accepted).all()


@pytest.mark.parametrize(("least", "most"), [(1, 8), (1, 10**6), (10**6, 10**6)])
def test_batches_of_any_size_give_the_same_walks(make_drafter, monkeypatch, least, most):
    target, drafter = leaning_pair(make_drafter)
    params = SamplingParams(max_new_tokens=25, stop_ids=(7,))
    choices = [Choice(4, True), Choice(4, False)]
    wanted, _ = replayed(target, drafter, params, 5, choices)
    drafts = []
    monkeypatch.setattr(replaying, "LEAST_SLOTS", {"cpu": least})
    monkeypatch.setattr(replaying, "MOST_SLOTS", {"cpu": most})
    judge = replaying.judge
    monkeypatch.setattr(replaying, "judge", lambda *given: drafts.append(len(given[2])) or judge(*given))
    found, _ = replayed(target, drafter, params, 5, choices)
    assert (found.visited == wanted.visited).all()
    for i in range(2):
        assert (found.accepted[i][found.visited[i]] == wanted.accepted[i][wanted.visited[i]]).all()
    if most == 8:
        assert set(drafts) == {1}
    if least > 10**5:
        assert len(drafts) == 1, "all anchors fit one batch"


def test_margins_say_what_a_length_hangs_on(make_drafter):
    target, drafter = leaning_pair(make_drafter)
    walks, _ = replayed(target, drafter, SamplingParams(max_new_tokens=30), 5, [Choice(4, True), Choice(1, True)])
    for i in range(2):
        margins = walks.margins[i][walks.visited[i]]
        assert (margins > 1e-4).all(), "no near tie on the toy pair"
        assert (margins < 100).any()


def test_scores_that_are_not_finite_are_named(make_drafter):
    target, drafter = leaning_pair(make_drafter)
    drafter.backbone.norm.weight[0] = float("nan")
    reader = Reader(target, make_drafter(target), PROMPTS[:1], {}, TextPlan(20, 4, ()), 10**9)
    texts, features = reader.group([0])
    with pytest.raises(NumericsError, match="not finite in a block between positions 5 and"):
        replay(drafter, texts, read_context(drafter, features), 5, [Choice(4, True)])
