"""The walk with another candidate, against the longest way round."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_lab.core.errors import RequestError
from dflash_lab.core.trace.schema import Trace
from dflash_lab.core.trace.whatif import successors, what_if
from tests.ui.toytraces import make_trace


def brute_force(trace, i, position, candidate):
    """Every path that keeps the recorded start and the pick; the one whose every later edge is its row's largest."""
    record = trace.steps[i]
    ids, edges, path = (trace.tensor(name, i) for name in ("candidate_ids", "edges", "path"))
    depth, width = ids.shape
    start = [*path[:position].tolist(), candidate]
    ways = [[*start, *rest] for rest in itertools.product(range(width), repeat=depth - len(start))]

    def greedy(way):
        return all(edges[j, way[j - 1], way[j]] == edges[j, way[j - 1]].max() for j in range(position + 1, depth))

    (way,) = filter(greedy, ways)
    text = trace.header.output_ids[record.start - len(trace.header.prompt_ids) + 1 :]
    accepted = 0
    while accepted < min(depth, len(text)) and ids[accepted, way[accepted]] == text[accepted]:
        accepted += 1
    return way, accepted


@given(st.integers(0, 10**6), st.integers(0, 3), st.integers(0, 2))
def test_walk_and_acceptance_are_those_of_brute_force(seed, position, candidate):
    trace = make_trace(4, 5, 3, seed=seed, skill=0.6)
    for i in range(4):
        way, accepted = brute_force(trace, i, position, candidate)
        found = what_if(trace, i, position, candidate)
        assert list(found.path) == way
        assert found.num_accepted == accepted
        assert found.exact == (accepted < found.known or found.known == 4)


def test_the_recorded_choice_changes_nothing_of_a_greedy_run():
    trace = make_trace(8, 8, 6, seed=2)
    for i, record in enumerate(trace.steps):
        for position, candidate in enumerate(trace.tensor("path", i)):
            found = what_if(trace, i, position, int(candidate))
            assert found.path == tuple(trace.tensor("path", i))
            assert found.num_accepted == record.num_accepted


def test_the_end_of_the_text_bounds_what_is_known():
    """At the last step all of the text agrees, and nobody knows how it would have gone on."""
    trace = make_trace(1, 8, 6, seed=0)
    record, wanted = trace.steps[0], 5
    ids = trace.tensor("candidate_ids", 0).copy()
    path = np.zeros(7, np.int32)
    ids[:, 0] = [*range(200, 200 + wanted), 300, 301]
    committed = tuple(range(200, 200 + wanted))
    record = dataclasses.replace(
        record, draft_ids=(200, 201, 202, 999, 0, 300, 301), num_accepted=3, bonus_id=203, committed_ids=committed[:4]
    )
    header = dataclasses.replace(trace.header, output_ids=(record.anchor_id, *committed))
    arrays = {"candidate_ids": ids, "path": path}
    ended = Trace(header, (record,), lambda name, _: arrays.get(name))
    found = what_if(ended, 0, 3, 0)
    assert (found.num_accepted, found.known, found.exact) == (5, 5, False)
    assert what_if(ended, 0, 3, 1).num_accepted == 3
    assert what_if(ended, 0, 3, 1).exact


def test_without_a_selector_rank_1_follows():
    trace = make_trace(3, 6, 4, kind="dflash")
    assert what_if(trace, 1, 2, 3).path[2:] == (3, 0, 0)
    assert not successors(trace, 1).any()


def test_what_was_not_recorded_is_none():
    assert what_if(make_trace(3, 6, 4, leave_out=("candidate_ids",)), 1, 2, 0) is None
    assert what_if(make_trace(3, 6, 4, leave_out=("path",)), 1, 2, 0) is None
    assert what_if(make_trace(3, kind="ar"), 1, 0, 0) is None


@pytest.mark.parametrize(("position", "candidate"), [(5, 0), (-1, 0), (0, 4), (0, -1)])
def test_a_place_outside_the_grid_is_named(position, candidate):
    with pytest.raises(RequestError, match=r"expected a position in 0\.\.4 and a candidate in 0\.\.3, got"):
        what_if(make_trace(3, 6, 4), 0, position, candidate)
