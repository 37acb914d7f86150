"""Bench: arms in turn, warm-up outside, equal text before any number, ratios by prompt."""

import sys

import pytest

from dflash_lab.core.bench import (
    ArmRun,
    Difference,
    Memory,
    Spread,
    find_differences,
    import_zlab,
    interleave,
    paired_ratio,
    process_peak_bytes,
)
from dflash_lab.core.errors import BackendError, RequestError


def run(ids, seconds=1.0, steps=2):
    return ArmRun(tuple(ids), seconds, steps)


def test_every_prompt_goes_through_all_arms_starting_with_another_each_time():
    calls = []

    def arm(name):
        def decode(prompt):
            calls.append((name, prompt))
            return run([1, 2, len(calls)])

        return decode

    advanced = []
    runs = interleave({"a": arm("a"), "b": arm("b")}, ["x", "y", "z"], "warm", lambda: advanced.append(1))
    assert calls[:2] == [("a", "warm"), ("b", "warm")]
    assert "".join(name for name, _ in calls[2:]) == "abbaab"
    assert [prompt for _, prompt in calls[2:]] == list("xxyyzz")
    assert [len(done) for done in runs.values()] == [3, 3]
    assert len(advanced) == 3


def test_a_text_of_one_token_has_no_speed():
    with pytest.raises(RequestError, match="prompt 0 gave one token with a: no speed to measure"):
        interleave({"a": lambda prompt: run([1])}, ["x"], "warm")


def test_an_interrupt_keeps_the_prompts_that_all_arms_have_decoded():
    def arm(prompt):
        if prompt == "stop":
            raise KeyboardInterrupt
        return run([1, 2])

    runs = interleave({"a": lambda prompt: run([1, 2]), "b": arm}, ["x", "stop", "y"], "warm")
    assert [len(done) for done in runs.values()] == [1, 1]
    with pytest.raises(KeyboardInterrupt):
        interleave({"b": arm}, ["stop", "x"], "warm")


def test_speed_counts_tokens_after_the_first():
    assert run(range(9), seconds=2.0).decode_tok_s == 4.0
    assert run(range(9), steps=4).mean_commit_length == 2.0


def test_ratios_are_taken_prompt_by_prompt():
    ours = [run(range(11), 1.0), run(range(11), 4.0), run(range(11), 2.0)]
    theirs = [run(range(11), 2.0), run(range(11), 2.0), run(range(11), 6.0)]
    ratio = paired_ratio(ours, theirs)
    assert ratio.per_prompt == (2.0, 0.5, 3.0)
    assert (ratio.q1, ratio.median, ratio.q3) == (1.25, 2.0, 2.5)
    assert Spread.of([5.0]) == Spread(5.0, 5.0, 5.0, (5.0,))


@pytest.mark.parametrize(("dtype", "margin", "rounding"), [("float32", 0.01, False), ("bfloat16", 0.2, True)])
def test_differences_come_with_the_margin_where_they_start(dtype, margin, rounding):
    asked = []

    def margin_at(prompt, ids):
        asked.append((prompt, ids))
        return margin

    runs = {"alone": [run([1, 2, 3]), run([1, 2, 3])], "drafted": [run([1, 2, 3]), run([1, 7, 3])]}
    assert find_differences(runs, "alone", dtype, margin_at) == (Difference(1, "drafted", 1, 2, 7, margin, rounding),)
    assert asked == [(1, (1,))]


@pytest.mark.parametrize(("ids", "expected", "found"), [([1, 2], 3, None), ([1, 2, 3, 4], None, 4)])
def test_a_text_that_ends_elsewhere_is_never_rounding(ids, expected, found):
    runs = {"alone": [run([1, 2, 3])], "drafted": [run(ids)]}
    (difference,) = find_differences(runs, "alone", "bfloat16", lambda prompt, ids: 0.0)
    assert (difference.expected_id, difference.found_id, difference.rounding) == (expected, found, False)


def test_memory_against_weights():
    assert Memory(weights_bytes=100, peak_bytes=125).peak_over_weights == 1.25
    assert process_peak_bytes() > 1_000_000


def test_zlab_missing_is_one_line_that_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "dflash", None)
    with pytest.raises(BackendError, match=r"pip install --no-deps dflash==0\.1\.0, then --against zlab again"):
        import_zlab()
