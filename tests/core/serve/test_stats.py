"""Statistics under every name, in one schema, held against their identities; what is missing stays missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dflash_lab.core.serve.records import CONVENTIONS
from dflash_lab.core.serve.stats import SOURCES, pooled, sglang_stats, stats_of, vllm_stats

CAPTURES = Path(__file__).parent / "captures"
HISTOGRAM, STEPS, ACCEPTED, PROPOSED, TOKENS = [11, 14, 11, 4, 0, 3], 43, 63, 215, 106
"""The worked example of case P32: 43 steps of 5 drafts, 106 tokens."""

GENERATIONS = {
    "sglang <= 0.5.10": ("spec_accept_token_num", "spec_draft_token_num", "spec_accept_histogram"),
    "sglang 0.5.11": ("spec_accepted_drafts", "spec_proposed_drafts", "spec_accept_histogram"),
    "sglang >= 0.5.12": ("spec_num_correct_drafts", "spec_num_proposed_drafts", "spec_correct_drafts_histogram"),
}


def fields(generation: str = "sglang >= 0.5.12", **other) -> dict:
    """The worked example under the names of a release."""
    accepted, proposed, histogram = GENERATIONS[generation]
    told = {
        "spec_verify_ct": STEPS,
        "spec_accept_length": TOKENS / STEPS,
        "spec_accept_rate": ACCEPTED / PROPOSED,
        accepted: ACCEPTED,
        proposed: PROPOSED,
        histogram: HISTOGRAM,
    }
    return told | other


@pytest.mark.parametrize("generation", GENERATIONS)
def test_three_generations_of_names_give_the_same_numbers(generation):
    found = sglang_stats(fields(generation), "meta_info", TOKENS)
    assert found.names == generation
    assert (found.num_steps, found.num_accepted, found.num_proposed) == (STEPS, ACCEPTED, PROPOSED)
    assert found.histogram == tuple(HISTOGRAM)
    assert found.drafts_per_step == 5
    assert found.convention == "tokens_per_step"
    assert (found.broken, found.warnings) == ((), ())


def test_the_worked_example_gives_its_survival():
    acceptance = pooled([sglang_stats(fields(), "meta_info", TOKENS)])
    assert acceptance.mean_acceptance_length == pytest.approx(2.46512, abs=1e-5)
    assert acceptance.acceptance_rate == pytest.approx(0.29302, abs=1e-5)
    assert acceptance.survival == pytest.approx((0.744, 0.419, 0.163, 0.070, 0.070), abs=5e-4)
    assert acceptance.conditional_rate == pytest.approx((0.744, 0.5625, 0.389, 0.429, 1.0), abs=5e-4)
    assert acceptance.conditional_n[-1] == 3


@pytest.mark.parametrize(
    ("change", "identity"),
    [
        ({"spec_verify_ct": 44}, "steps = sum(histogram)"),
        ({"spec_num_correct_drafts": 62}, "accepted = sum(i * histogram[i])"),
        ({"spec_num_proposed_drafts": 216}, "no multiple of 43"),
        ({"spec_num_proposed_drafts": 258}, "acceptance rate = accepted / proposed"),
        ({"spec_accept_rate": 0.31}, "acceptance rate = accepted / proposed"),
        ({"spec_accept_length": 2.6}, "accept length = tokens / steps"),
        ({"spec_correct_drafts_histogram": [11, 14, 11, 4, 1, 3]}, "steps = sum(histogram)"),
        ({"spec_correct_drafts_histogram": [11, 14, 11, 4, 0, 0, 3]}, "histogram has at most"),
        ({"spec_verify_ct": "43"}, "spec_verify_ct is '43', expected a count"),
        ({"spec_accept_rate": float("nan")}, "expected a number"),
        ({"spec_correct_drafts_histogram": "none"}, "expected a list of counts"),
        ({"spec_num_correct_drafts": -1}, "expected a count"),
    ],
)
def test_any_perturbed_field_is_named(change, identity):
    found = sglang_stats(fields(**change), "meta_info", TOKENS)
    assert any(identity in text for text in found.broken), found.broken


def test_other_tokens_break_the_length():
    assert sglang_stats(fields(), "meta_info", TOKENS + 1).broken


def test_missing_is_none_and_never_zero_or_one():
    found = sglang_stats({"spec_verify_ct": 7}, "meta_info", None)
    assert found.num_steps == 7
    assert (found.num_accepted, found.num_proposed, found.histogram) == (None, None, None)
    assert (found.acceptance_length, found.reported_length, found.convention) == (None, None, None)
    assert found.broken == ()
    assert pooled([found]) is None
    assert pooled([]) is None


def test_old_and_new_names_that_differ_are_told():
    both = fields() | {"spec_accepted_drafts": 60, "spec_proposed_drafts": PROPOSED}
    found = sglang_stats(both, "meta_info", TOKENS)
    assert found.num_accepted == ACCEPTED
    assert (
        "spec_num_correct_drafts = 63, spec_accepted_drafts = 60; spec_num_correct_drafts is taken" in found.warnings[0]
    )


def test_where_they_stand():
    spec = fields()
    assert stats_of({"choices": [{"meta_info": spec}]}, TOKENS).source == "meta_info"
    assert stats_of({"sglext": {"spec_tokens_details": spec}}, TOKENS).source == "sglext"
    assert stats_of({"sglext": {"spec_tokens_details": [spec]}}, TOKENS).source == "sglext"
    assert {"meta_info", "sglext", "vllm_metrics", "metrics"} <= set(SOURCES)
    # z-lab's client looks at the top level, where SGLang has never put it.
    assert stats_of({"meta_info": spec}, TOKENS) is None
    for nothing in ({}, {"choices": []}, {"choices": [{"meta_info": {"id": "x"}}]}, {"sglext": None}, {"metrics": {}}):
        assert stats_of(nothing, 5) is None


def test_a_captured_answer_of_vllm():
    body = json.loads((CAPTURES / "vllm_0.32.0_chat_ngram_detailed.json").read_text())
    found = stats_of(body, body["usage"]["completion_tokens"])
    assert (found.num_steps, found.num_accepted, found.num_proposed, found.drafts_per_step) == (9, 29, 29, 4)
    assert found.acceptance_length == pytest.approx(found.reported_length) == pytest.approx(4.2222, abs=1e-4)
    assert found.broken == ()
    assert "vLLM" in CONVENTIONS[found.convention]
    acceptance = pooled([found])
    # Steps drafted 1, 1, 3, 4, .. tokens: what each position was proposed is not told, and nothing is made up.
    assert acceptance.acceptance_rate == 1.0
    assert acceptance.conditional_rate == (None,) * 4
    assert acceptance.survival == pytest.approx((1, 7 / 9, 7 / 9, 6 / 9))


@pytest.mark.parametrize("change", [{"num_spec_steps": 8}, {"mean_acceptance_length": 3.0}, {"num_draft_tokens": 28}])
def test_vllm_is_held_to_its_own_identities(change):
    body = json.loads((CAPTURES / "vllm_0.32.0_chat_ngram_detailed.json").read_text())
    assert vllm_stats(body["metrics"]["speculative_decoding"] | change).broken
