"""A server over the toy pair, and one that waits to be let go."""

import threading
from collections.abc import Iterator

import pytest
from toy_server import Served, serving

from dflash_lab.core.generate import Generation


@pytest.fixture
def served() -> Iterator[Served]:
    with serving() as it:
        yield it


@pytest.fixture(scope="module")
def shared() -> Iterator[Served]:
    """One server for all tests that do not look at what it has counted."""
    with serving() as it:
        yield it


@pytest.fixture
def slow(monkeypatch) -> threading.Event:
    """Decoding stops before each verification step until this is set."""
    gate, steps = threading.Event(), Generation.__iter__

    def held(self):
        for step in steps(self):
            gate.wait(10)
            yield step

    monkeypatch.setattr(Generation, "__iter__", held)
    gate.set()  # the server warms up
    return gate
