import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_lab.core.acceptance import check_identities, from_counts, from_histogram
from dflash_lab.core.errors import TraceError

GOLDEN = [11, 14, 11, 4, 0, 3]


def test_the_golden_request_under_every_identity():
    acceptance = from_histogram(GOLDEN, num_draft=5, num_tokens=106)
    assert acceptance.num_steps == 43
    assert acceptance.num_accepted == 63
    assert acceptance.num_proposed == 215
    assert acceptance.acceptance_rate == pytest.approx(0.29302, abs=1e-5)
    assert acceptance.mean_acceptance_length == pytest.approx(2.46512, abs=1e-5)
    assert acceptance.survival == pytest.approx([0.744, 0.419, 0.163, 0.070, 0.070], abs=1e-3)
    assert acceptance.conditional_rate == pytest.approx([0.744, 0.5625, 0.389, 0.429, 1.0], abs=1e-3)
    assert acceptance.conditional_n == (43, 32, 18, 7, 3)
    assert acceptance.drafted_n == (43,) * 5


@pytest.mark.parametrize(
    ("field", "value", "identity"),
    [
        ("num_steps", 44, "steps = sum(histogram)"),
        ("num_accepted", 62, "accepted = sum(i * histogram[i])"),
        ("num_proposed", 258, "proposed = sum(K * steps that drafted K)"),
        ("num_tokens", 107, "tokens = steps + accepted"),
        ("acceptance_rate", 0.3, "acceptance rate = accepted / proposed"),
        ("mean_acceptance_length", 2.5, "acceptance length = 1 + accepted / steps"),
        ("acceptance_histogram", (11, 14, 11, 4, 1, 3), "histogram = sum of the histograms by draft length"),
        ("survival", (0.744, 0.419, 0.163, 0.070, 0.07), "survival[i] = steps with i or more accepted / steps"),
        ("conditional_rate", (0.744, 0.5625, 0.389, 0.5, 1.0), "conditional_rate[i] = survivors at i"),
        ("conditional_n", (43, 32, 18, 7, 4), "conditional n[i] = survivors at i - 1"),
        ("drafted_n", (43, 43, 43, 43, 42), "drafted n[i] = steps that drafted i or more"),
        ("histogram_by_draft_length", {5: (12, 14, 11, 4, 0, 3)}, "steps = sum(histogram)"),
    ],
)
def test_a_perturbed_field_names_its_identity(field, value, identity):
    acceptance = from_histogram(GOLDEN, num_draft=5, num_tokens=106)
    with pytest.raises(TraceError, match="broken identity") as caught:
        check_identities(dataclasses.replace(acceptance, **{field: value}))
    assert identity in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_field_is_perturbed_above():
    assert len(dataclasses.fields(from_counts([]))) == 12


@pytest.mark.parametrize("entry", range(6))
def test_a_wrong_histogram_does_not_fit_the_token_count(entry):
    histogram = list(GOLDEN)
    histogram[entry] += 1
    with pytest.raises(TraceError, match=r"tokens = steps \+ accepted"):
        from_histogram(histogram, num_draft=5, num_tokens=106)


def test_trailing_zeros_may_be_left_out_but_not_more_entries_than_drafts():
    assert from_histogram([1, 1], 7, 3) == from_histogram([1, 1, 0, 0, 0, 0, 0, 0], 7, 3)
    with pytest.raises(TraceError, match="at most 3 histogram entries, got 4; drafts per step do not count the anchor"):
        from_histogram([1, 1, 1, 1], 2, 10)


def test_nothing_measured_is_none_not_zero_or_one():
    nothing = from_counts([])
    assert nothing.mean_acceptance_length is None
    assert nothing.acceptance_rate is None
    assert nothing.survival == ()
    autoregressive = from_counts([(0, 0)] * 5)
    assert autoregressive.mean_acceptance_length == 1.0
    assert autoregressive.acceptance_rate is None
    check_identities(nothing)
    check_identities(autoregressive)


def test_a_short_last_block_is_no_rejection():
    acceptance = from_counts([(7, 7), (7, 7), (2, 2)])
    assert acceptance.acceptance_rate == 1.0
    assert acceptance.conditional_rate == (1.0,) * 7
    assert acceptance.conditional_n == (3, 3, 2, 2, 2, 2, 2)
    assert acceptance.survival == (1.0, 1.0, *[2 / 3] * 5)


@given(st.lists(st.integers(0, 6).flatmap(lambda k: st.tuples(st.just(k), st.integers(0, k))), min_size=1))
def test_counts_against_brute_force(steps):
    acceptance = from_counts(steps)
    check_identities(acceptance)
    assert 1 + sum(acceptance.survival) == pytest.approx(acceptance.mean_acceptance_length)
    assert acceptance.mean_acceptance_length == pytest.approx(sum(1 + a for _, a in steps) / len(steps))
    for i in range(1, max(k for k, _ in steps) + 1):
        reached = [(k, a) for k, a in steps if k >= i and a >= i - 1]
        assert acceptance.survival[i - 1] == pytest.approx(sum(a >= i for _, a in steps) / len(steps))
        assert acceptance.conditional_n[i - 1] == len(reached)
        if reached:
            assert acceptance.conditional_rate[i - 1] == pytest.approx(sum(a >= i for _, a in reached) / len(reached))
        else:
            assert acceptance.conditional_rate[i - 1] is None
