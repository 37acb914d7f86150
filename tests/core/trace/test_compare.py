import dataclasses

import numpy as np
import pytest
from toy_traces import make_trace, sampled, with_header, without

from dflash_lab.core.trace import store
from dflash_lab.core.trace.compare import VERDICTS, Difference, compare, first_divergence, margin_at
from dflash_lab.core.trace.schema import Trace

TEXT = [0, 1, 2, 3, 4, 5, 0, 1, 2, 3]
BLOCK = make_trace(TEXT, [3])
SINGLE = make_trace(TEXT, [0])


def parted(index, token=9):
    """A run whose text is TEXT but for one token."""
    return make_trace([*TEXT[:index], token, *TEXT[index + 1 :]], [2], seed=5)


def with_margin(trace, margin):
    def fetch(name, step):
        top2 = trace.tensor(name, step)
        return top2 if name != "target_top2" else np.tile(np.array([margin, 0.0], np.float32), (len(top2), 1))

    return Trace(trace.header, trace.steps, fetch, trace.name)


def test_the_same_text_by_block_and_by_single_tokens_is_identical():
    comparison = compare(BLOCK, SINGLE)
    assert comparison.comparable
    assert (comparison.verdict, comparison.divergence) == ("identical", None)
    assert comparison.num_compared == len(TEXT)
    assert comparison.notes == ()
    assert {d.name for d in comparison.differences} == {"block_size"}
    metrics = {d.name: d for d in comparison.metrics}
    assert metrics["num_output_tokens"] == Difference("num_output_tokens", len(TEXT), len(TEXT))
    assert metrics["acceptance_rate"].b is None


@pytest.mark.parametrize("index", range(len(TEXT)))
def test_the_first_divergence_has_its_index_and_tokens(index):
    divergence = first_divergence(BLOCK, parted(index))
    assert (divergence.index, divergence.a_id, divergence.b_id) == (index, TEXT[index], 9)
    # The first token comes from prefill, which no step judged.
    expected = None if index == 0 else 1.0
    assert divergence.margin_a == divergence.margin_b == expected


@pytest.mark.parametrize(
    ("margin_a", "margin_b", "verdict"),
    [(0.1, 0.1, "rounding"), (0.1, 2.0, "rounding"), (2.0, 0.0, "rounding"), (0.25, 0.3, "clear"), (0.6, 2.4, "clear")],
)
def test_the_verdict_is_by_the_smaller_margin(margin_a, margin_b, verdict):
    comparison = compare(with_margin(BLOCK, margin_a), with_margin(parted(4), margin_b))
    assert comparison.verdict == verdict
    assert comparison.num_compared == 4
    assert verdict in VERDICTS


def test_one_margin_is_enough_and_none_is_said():
    blind = without(parted(4), "target_top2")
    assert compare(with_margin(BLOCK, 0.1), blind).verdict == "rounding"
    assert compare(without(BLOCK, "target_top2"), blind).verdict == "unknown"
    assert compare(sampled(BLOCK), sampled(parted(4))).verdict == "unknown"


def test_a_shorter_text_that_agrees_is_identical_as_far_as_it_goes():
    comparison = compare(BLOCK, make_trace(TEXT, [3], max_new=5))
    assert (comparison.verdict, comparison.num_compared) == ("identical", 5)


def test_the_margin_is_that_of_the_slot_that_judged_the_token():
    trace = make_trace([0, 0, 0, 0, 0], [3], num_candidates=1, seed=2)

    def fetch(name, step):
        if name != "target_top2":
            return trace.tensor(name, step)
        slots = len(trace.steps[step].draft_ids) + 1
        return np.array([[10 * step + slot, 0] for slot in range(slots)], np.float32)

    numbered = Trace(trace.header, trace.steps, fetch)
    expected = [None, *(10.0 * r.index + slot for r in trace.steps for slot in range(r.commit_length))]
    assert [margin_at(numbered, index) for index in range(5)] == expected
    assert margin_at(numbered, 5) is None


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (make_trace(TEXT, [3], prompt=(1, 7)), "prompts differ from token 1 on (2 and 2 tokens): another text or"),
        (make_trace(TEXT, [3], prompt=(1, 2, 3)), "prompts differ from token 2 on (2 and 3 tokens)"),
        (with_header(BLOCK, target={"name": "other"}), "targets differ: toy and other"),
        (sampled(BLOCK), "sampling differs: temperature 0.0 and 1.0"),
    ],
)
def test_not_comparable_says_why(other, reason):
    comparison = compare(BLOCK, other)
    assert not comparison.comparable
    assert len(comparison.reasons) == 1
    assert comparison.reasons[0].startswith(reason)


def test_notes_warn_of_different_denominators_and_early_ends():
    notes = compare(BLOCK, with_header(make_trace(TEXT, [5]), status="cancelled")).notes
    assert notes == (
        "3 and 5 drafts per step: compare acceptance lengths, not acceptance rates",
        "trace is cancelled: its text ends early",
    )


def test_configuration_differences_by_dotted_name(tmp_path):
    header = dataclasses.replace(
        BLOCK.header,
        backends={"dtype": "float32", "stop_ids": (1, 2)},
        provenance={"created": "now", "argv": ["a"], "packages": {"torch": "2.13"}},
    )
    a = Trace(header, BLOCK.steps, BLOCK.tensor)
    b = with_header(
        a,
        backends={"dtype": "bfloat16", "stop_ids": (1, 2), "graph": True},
        provenance={"created": "then", "argv": ["b"], "packages": {"torch": "2.12"}},
        drafter=None,
    )
    differences = {d.name: (d.a, d.b) for d in compare(a, b).differences}
    assert differences["backends.dtype"] == ("float32", "bfloat16")
    assert differences["backends.graph"] == (None, True)
    assert differences["provenance.packages.torch"] == ("2.13", "2.12")
    assert differences["drafter.name"] == ("toy", None)
    assert not {"provenance.created", "provenance.argv", "backends.stop_ids"} & differences.keys()
    # A trace from a file has lists where the one in memory had tuples.
    store.save(a, tmp_path / "a")
    assert compare(a, store.load(tmp_path / "a")).differences == ()
