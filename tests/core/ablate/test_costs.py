"""What a step costs is read from the real loop."""

import dataclasses
import itertools

import pytest

from dflash_lab.core.ablate import costs
from dflash_lab.core.ablate.costs import LEAST_STEPS, MOST_STEPS, WARMUPS, measure_cost, speed
from dflash_lab.core.generate import generate, load_pair


@pytest.fixture
def asked(monkeypatch):
    """Requests that were made."""
    requests = []

    def watched(pair, request):
        requests.append(request)
        return generate(dataclasses.replace(pair, engine=None), request)

    monkeypatch.setattr(costs, "generate", watched)
    return requests


@pytest.mark.parametrize(("captured", "record"), [(False, "none"), (True, "scores")])
def test_a_captured_step_is_timed_where_it_reads_the_clock(disk_pair, asked, captured, record):
    pair = load_pair(disk_pair.target, disk_pair.drafter, device="cpu", dtype="float32")
    pair = dataclasses.replace(pair, engine=object() if captured else None)
    cost = measure_cost(pair, "one two three", 2, 4)
    assert [request.record for request in asked] == [record]
    assert LEAST_STEPS <= cost.cost_steps + WARMUPS <= WARMUPS + MOST_STEPS
    assert cost.step_ms == pytest.approx(cost.draft_ms + cost.select_ms + cost.verify_ms + cost.commit_ms)
    assert all(phase > 0 for phase in itertools.islice(dataclasses.astuple(cost), 4))
    assert speed(2.5, cost)["tok_s"] == pytest.approx(2500 / cost.step_ms)
