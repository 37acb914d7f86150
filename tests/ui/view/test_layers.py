"""What the target found of each output token, against the recorded scores one by one."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dflash_lab.core.trace.schema import Trace
from dflash_lab.ui.view.layers import token_layers
from tests.ui.toytraces import make_trace


def test_every_token_has_the_targets_probability_and_margin():
    trace = make_trace(15, 8, 8)
    p, margin = token_layers(trace)
    assert len(p) == len(margin) == len(trace.header.output_ids)
    assert math.isnan(p[0])
    assert math.isnan(margin[0])
    for i, record in enumerate(trace.steps):
        top2, norm = trace.tensor("target_top2", i), trace.tensor("target_log_norm", i)
        for slot in range(record.commit_length):
            k = record.start + slot + 1 - 40
            assert p[k] == pytest.approx(math.exp(top2[slot, 0] - norm[slot]), rel=1e-6)
            assert margin[k] == top2[slot, 0] - top2[slot, 1]


def test_a_drawn_token_has_its_own_logit_or_none():
    """One step that drew a candidate which is not the arg-max, one that drew something outside the list."""
    trace = make_trace(15, 8, 8)
    i = next(i for i, r in enumerate(trace.steps) if 0 < r.num_accepted < 7)
    record, other = trace.steps[i], trace.tensor("target_ids", i).copy()
    other[: record.commit_length] = -1
    drawn = Trace(trace.header, trace.steps, lambda n, s: other if (n, s) == ("target_ids", i) else trace.tensor(n, s))
    p, _ = token_layers(drawn)
    ids, logits, norm = (trace.tensor(name, i) for name in ("candidate_ids", "target_logit", "target_log_norm"))
    for slot, token in enumerate(record.committed_ids):
        found = np.flatnonzero(ids[slot] == token)
        got = p[record.start + slot + 1 - 40]
        if found.size:
            assert got == pytest.approx(math.exp(logits[slot, found[0]] - norm[slot]), rel=1e-6)
        else:
            assert math.isnan(got)


@pytest.mark.parametrize("kind", ["dflash", "ar"])
def test_every_kind_of_trace_has_layers(kind):
    assert np.isfinite(token_layers(make_trace(5, kind=kind))[0][1:]).all()


@pytest.mark.parametrize("missing", ["target_top2", "target_log_norm"])
def test_none_where_the_target_was_not_recorded(missing):
    assert token_layers(make_trace(5, leave_out=(missing,))) is None
    assert token_layers(make_trace(0)) is None
