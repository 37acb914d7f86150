"""The app on a free port, over synthetic traces and an engine that plays one."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from app_fakes import FakeEngine
from toytraces import make_trace

from dflash_lab.ui.app.session import TraceStore


@pytest.fixture
def store() -> TraceStore:
    """A store with an example of 24 steps."""
    return TraceStore(make_trace(24, 16, 8, seed=7))


@pytest.fixture
def tidy() -> Iterator[None]:
    """What gradio leaves behind goes at the end of its test and under its filters, not in the middle of another."""
    yield
    gc.collect()


@pytest.fixture
def serve(tidy) -> Iterator[Callable[..., str]]:
    """`serve(store, engine)` starts the app and gives its address; more options are build_app's."""
    from dflash_lab.ui.app import build

    apps = []

    def start(store: TraceStore, engine: FakeEngine | None = None, **options: Any) -> str:
        apps.append(build.build_app(store, engine or FakeEngine(), **options))
        return build.serve(apps[-1], server_name="127.0.0.1", quiet=True)

    yield start
    for app in apps:
        app.close(verbose=False)


@pytest.fixture
def page(serve, page):
    """The page of tests/ui, closed before the server is."""
    page.set_default_timeout(10_000)
    return page
