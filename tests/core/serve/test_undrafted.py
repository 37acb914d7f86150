"""Steps without a draft, which vLLM leaves out of its count: tokens by steps would be far too high."""

import pytest
from toy_runs import record, run, stats

from dflash_lab.core.serve.report import report
from dflash_lab.core.serve.stats import vllm_stats

# Of a real server, method ngram: 117 tokens, two of three steps found nothing to draft.
COUNTED = {"num_spec_steps": 30, "num_accepted_draft_tokens": 25, "num_draft_tokens": 120, "num_spec_tokens": 4}


def test_no_tokens_per_step_where_steps_are_not_counted():
    undrafted = record(0, completion_tokens=117, stats=vllm_stats(COUNTED))
    assert undrafted.undrafted_tokens == 117 - 1 - 25 - 30
    numbers = report(run([undrafted, record(1, completion_tokens=50, stats=vllm_stats(COUNTED))]))
    assert numbers.zlab_acceptance_length is None
    assert numbers.mean_acceptance_length == pytest.approx(1 + 50 / 60)
    assert any(text.startswith("61 tokens came from steps without a draft") for text in numbers.warnings)


def test_where_every_step_drafts_nothing_is_said():
    drafted = record(0, completion_tokens=54, stats=vllm_stats(COUNTED))
    assert drafted.undrafted_tokens == 0
    numbers = report(run([drafted]))
    assert numbers.zlab_acceptance_length == pytest.approx(54 / 30)
    assert not any("without a draft" in text for text in numbers.warnings)
    assert record(0, completion_tokens=999, stats=stats([1, 2])).undrafted_tokens == 0, "SGLang counts every step"
