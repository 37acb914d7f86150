"""The loop: greedy text is the target's own whatever the drafter says; stops, limits, state (P05, P08, P31, P47)."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dflash_lab.core.decode.loop import Decoding, decode
from dflash_lab.core.errors import NumericsError, RequestError
from dflash_lab.core.target.toy import RecurrentToyTarget, ToyTarget
from dflash_lab.core.types import SamplingParams, StopReason
from tests import toys

PROMPT = (3, 1, 4, 1, 5)


def greedy(max_new_tokens=24, stop_ids=()):
    return SamplingParams(max_new_tokens=max_new_tokens, stop_ids=stop_ids)


def run(target, drafter, params=None, prompt=PROMPT, **options):
    decoding = Decoding(target, drafter, prompt, params or greedy(), **options)
    return decoding, list(decoding)


def continuation(target, length=64, prompt=PROMPT):
    """What the target itself says, one token at a time."""
    return run(target, None, greedy(length), prompt)[0].output_ids


def always_right(target, prompt=PROMPT):
    """A script that proposes the target's own continuation."""
    text = continuation(target, prompt=prompt)
    return lambda start, anchor, k: (text[start - len(prompt) + 1 :] + [0] * k)[:k]


def always_wrong(target):
    right = always_right(target)
    return lambda start, anchor, k: [(token + 1) % 32 for token in right(start, anchor, k)]


def right_until(count, target):
    right = always_right(target)

    def script(start, anchor, k):
        tokens = right(start, anchor, k)
        return [t if i < count else (t + 1) % 32 for i, t in enumerate(tokens)]

    return script


@pytest.mark.parametrize("kind", [ToyTarget, RecurrentToyTarget])
@pytest.mark.parametrize("version", ["dflash", "dflash2"])
@pytest.mark.parametrize("block_size", [2, 3, 5, 8])
def test_greedy_equals_the_targets_own_decoding(make_drafter, kind, version, block_size):
    target = kind.random(32, sharpness=3.0)
    expected = continuation(target)[:24]
    decoding, _ = run(target, make_drafter(target, version), block_size=block_size)
    assert decoding.output_ids == expected


@pytest.mark.parametrize("kind", [ToyTarget, RecurrentToyTarget])
@pytest.mark.parametrize("script", [always_right, always_wrong, lambda target: right_until(2, target)])
def test_greedy_does_not_depend_on_the_drafter(scripted, kind, script):
    """Right, wrong and half-right proposals give one text: rejected tokens leave nothing in the target's state."""
    target = kind.random(32, sharpness=3.0)
    decoding, _ = run(target, scripted(target, script(target)))
    assert decoding.output_ids == continuation(target)[:24]


def test_a_state_that_is_not_restored_is_noticed(scripted):
    """The mutant of the test above: cropping tokens but not the running sum changes the text."""

    class Leaky(RecurrentToyTarget):
        rollback = ToyTarget.rollback

    target = Leaky.random(32, sharpness=3.0)
    expected = continuation(RecurrentToyTarget.random(32, sharpness=3.0))[:24]
    decoding, _ = run(target, scripted(target, lambda start, anchor, k: [(anchor + 1) % 32] * k))
    assert decoding.output_ids != expected


@given(st.integers(0, 2**31), st.integers(2, 7), st.integers(1, 20), st.lists(st.integers(0, 31), max_size=3))
def test_greedy_equality_and_identities_on_any_script(seed, block_size, max_new_tokens, stop_ids):
    target = ToyTarget.random(32, seed=seed % 7, sharpness=2.0)
    generator = torch.Generator().manual_seed(seed)
    right = always_right(target)

    def script(start, anchor, k):
        noise = torch.rand(k, generator=generator)
        return [t if noise[i] < 0.7 else (t + 1) % 32 for i, t in enumerate(right(start, anchor, k))]

    params = greedy(max_new_tokens, tuple(stop_ids))
    decoding, steps = run(
        target, toys.ScriptedDrafter(toys.make_drafter(target), script), params, block_size=block_size
    )
    alone, _ = run(target, None, params)
    assert decoding.output_ids == alone.output_ids
    assert decoding.stop_reason is alone.stop_reason
    records = [step.record for step in steps]
    assert len(decoding.output_ids) == 1 + sum(r.commit_length for r in records)
    for record in records:
        assert record.commit_length == record.num_accepted + 1 - record.truncated
        assert (*record.draft_ids[: record.num_accepted], record.bonus_id)[: record.commit_length] == (
            record.committed_ids
        )
        place = record.start - len(PROMPT)
        assert decoding.output_ids[place] == record.anchor_id
        assert tuple(decoding.output_ids[place + 1 : place + 1 + record.commit_length]) == record.committed_ids


def test_proposals_end_with_the_text_they_can_still_fill(scripted, target):
    """The last block is cut to what is left, as z-lab's dflash does."""
    _, steps = run(target, scripted(target, always_wrong(target)), greedy(4), block_size=5)
    assert [len(step.record.draft_ids) for step in steps] == [3, 2, 1]


@pytest.mark.parametrize("max_new_tokens", [1, 2, 4, 5, 6, 11])
def test_never_more_than_max_new_tokens(scripted, target, max_new_tokens):
    decoding, steps = run(target, scripted(target, always_right(target)), greedy(max_new_tokens), block_size=5)
    assert decoding.output_ids == continuation(target)[:max_new_tokens]
    assert decoding.stop_reason is StopReason.LENGTH
    assert len(steps) == -(-(max_new_tokens - 1) // 5)
    assert sum(step.record.truncated for step in steps) == (1 if (max_new_tokens - 1) % 5 else 0)


@pytest.mark.parametrize("place", [0, 1, 3, 4, 5, 7])
def test_a_stop_token_ends_the_text_wherever_it_falls(scripted, place):
    """As the token of prefill, among accepted proposals, as the bonus token (block of 5: places 5, 10, ...)."""
    target = ToyTarget(torch.eye(32).roll(1, 1) * 9)  # counts upwards: 5 is followed by 6, 7, ...
    text = continuation(target)
    assert text[:4] == [6, 7, 8, 9]
    params = greedy(24, (31, text[place], 30))
    decoding, steps = run(target, scripted(target, always_right(target)), params, block_size=5)
    assert decoding.output_ids == text[: place + 1]
    assert decoding.stop_reason is StopReason.STOP
    if place == 0:
        assert steps == []
    else:
        record = steps[-1].record
        assert record.num_accepted == 4
        assert record.truncated == (5 - place % 5) % 5


def test_a_generated_mask_token_is_a_token_like_any_other(scripted):
    table = torch.eye(32).roll(1, 1) * 9
    target = ToyTarget(table)
    prompt = (27,)
    decoding, _ = run(target, scripted(target, always_right(target, prompt)), greedy(12), prompt, block_size=5)
    assert 31 in decoding.output_ids, "31 is the drafter's mask token"
    assert decoding.output_ids == [28, 29, 30, 31, 0, 1, 2, 3, 4, 5, 6, 7]


def test_one_drafter_serves_request_after_request(make_drafter, target):
    """Long, short, long, then a cancelled one: each equals a fresh drafter's."""
    shared = make_drafter(target)

    def records(drafter, prompt):
        return [step.record.draft_ids for step in run(target, drafter, prompt=prompt)[1]]

    for prompt in (tuple(range(30)) * 10, (2,), tuple(range(20)) * 9):
        assert records(shared, prompt) == records(make_drafter(target), prompt)
        decoding = Decoding(target, shared, prompt, greedy())
        for _ in decoding:
            decoding.cancel()
        assert decoding.stop_reason is StopReason.CANCELLED
    assert records(shared, (2,)) == records(make_drafter(target), (2,))


def test_the_context_cache_holds_the_committed_tokens_and_nothing_else(make_drafter, target):
    drafter = make_drafter(target)
    decoding = Decoding(target, drafter, PROMPT, greedy())
    for step in decoding:
        assert drafter.context_length == step.record.start
        assert target._ids.shape[1] == step.record.start + step.record.commit_length


def test_the_first_token_is_there_before_the_first_step(make_drafter, target):
    whole, _ = run(target, make_drafter(target))
    decoding = Decoding(target, make_drafter(target), PROMPT, greedy())
    decoding.prefill()
    assert decoding.output_ids == whole.output_ids[:1]
    assert decoding.time_to_first_token_ms > 0
    assert sum(step.record.commit_length for step in decoding) == len(whole.output_ids) - 1
    assert decoding.output_ids == whole.output_ids


def test_cancelling_takes_effect_before_the_next_step(make_drafter, target):
    decoding = Decoding(target, make_drafter(target), PROMPT, greedy())
    steps = []
    for step in decoding:
        steps.append(step)
        if len(steps) == 3:
            decoding.cancel()
    assert len(steps) == 3
    assert decoding.stop_reason is StopReason.CANCELLED
    assert decoding.summary.num_steps == 3
    assert len(decoding.output_ids) == 1 + sum(step.record.commit_length for step in steps)


def test_the_context_may_be_filled_to_its_end(make_drafter):
    target = ToyTarget.random(32, sharpness=3.0, max_context=12)
    decoding, _ = run(target, make_drafter(target), greedy(24))
    assert len(decoding.output_ids) == 12 - len(PROMPT) + 1
    assert decoding.stop_reason is StopReason.CONTEXT
    with pytest.raises(RequestError, match="the prompt has 12 tokens, the target's context holds 12"):
        Decoding(target, None, range(12), greedy())


def test_autoregressive_decoding_is_the_same_loop(target):
    decoding, steps = run(target, None)
    assert [step.draft for step in steps] == [None] * 23
    assert all(step.record.draft_ids == () and step.record.num_accepted == 0 for step in steps)
    assert [step.output.features for step in steps] == [None] * 23
    assert decoding.block_size == 1


def test_time_is_told_by_phase(make_drafter, target):
    for step in decode(target, make_drafter(target), PROMPT, greedy()):
        timings = step.record.timings
        assert timings.draft_ms > 0 < timings.select_ms
        assert timings.verify_ms > 0 < timings.commit_ms


def test_impossible_requests_are_refused_before_anything_runs(make_drafter, target):
    drafter = make_drafter(target)
    with pytest.raises(RequestError, match="the prompt has no tokens"):
        Decoding(target, drafter, (), greedy())
    with pytest.raises(RequestError, match="block_size must be at least 2"):
        Decoding(target, drafter, PROMPT, greedy(), block_size=1)
    with pytest.raises(RequestError, match="needs a seeded"):
        Decoding(target, drafter, PROMPT, SamplingParams(temperature=1.0))
    assert "above the 5" in Decoding(target, drafter, PROMPT, greedy(), block_size=6).warnings[0]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"temperature": -1}, "temperature must be 0"),
        ({"temperature": float("nan")}, "temperature must be 0"),
        ({"top_p": 0}, r"top_p must be in \(0, 1\], got 0"),
        ({"top_k": -1}, "top_k must be 0"),
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1"),
    ],
)
def test_impossible_sampling_is_refused(values, message):
    with pytest.raises(RequestError, match=message):
        SamplingParams(**values)


def test_penalties_are_not_a_parameter():
    with pytest.raises(TypeError, match="repetition_penalty"):
        SamplingParams(repetition_penalty=1.2)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_drafter_logits_that_are_not_finite_stop_the_run(make_drafter, target, value):
    drafter = make_drafter(target)
    with torch.no_grad():
        drafter.backbone.layers[0].mlp.up_proj.weight[2, 3] = value
    with pytest.raises(NumericsError, match="draft layer 0 of the drafter is not finite at block slot"):
        run(target, drafter)
