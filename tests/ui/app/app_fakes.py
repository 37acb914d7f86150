"""A generation without models: the steps of a synthetic trace, at a pace the test sets. And what the address says."""

from __future__ import annotations

import dataclasses
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

from toytraces import make_trace

from dflash_lab.core.errors import DFlashLabError
from dflash_lab.core.trace.schema import Trace
from dflash_lab.core.types import GenerateRequest
from dflash_lab.ui.app.run import Engine

if TYPE_CHECKING:
    from playwright.sync_api import Page

_count = itertools.count()


@dataclasses.dataclass(frozen=True)
class FakePair:
    """What the page needs of a Pair."""

    text: SimpleNamespace
    drafter: str | None = "toy"


class FakeGeneration:
    """Decodes nothing: plays the steps of `played`."""

    def __init__(self, played: Trace, request: GenerateRequest, step_s: float) -> None:
        self.request = request
        self.warnings = ("this pair is a toy",)
        self.output_ids: list[int] = [played.header.output_ids[0]]
        self.done: list[int] = []
        self._played, self._step_s = played, step_s
        self._cancelled = threading.Event()
        self._stop_reason = "length"

    def cancel(self) -> None:
        self._cancelled.set()

    def __iter__(self) -> Iterator[SimpleNamespace]:
        for record in self._played.steps:
            if self._cancelled.is_set():
                self._stop_reason = "cancelled"
                return
            time.sleep(self._step_s)
            self.output_ids += record.committed_ids
            self.done.append(record.index)
            yield SimpleNamespace(record=record)

    def trace(self) -> Trace:
        header = dataclasses.replace(
            self._played.header,
            created=f"run {next(_count)}",
            request={"prompt": self.request.prompt, "sampling": {"temperature": 0.0}},
            output_ids=tuple(self.output_ids),
            status="cancelled" if self._stop_reason == "cancelled" else "complete",
            stop_reason=self._stop_reason,
        )
        return Trace(header, self._played.steps[: len(self.done)], self._played.tensor, "run")


class FakeEngine(Engine):
    """An engine whose generations play `played`; `made` lists them."""

    def __init__(self, played: Trace | None = None, step_s: float = 0.0, error: Exception | None = None) -> None:
        self.made: list[FakeGeneration] = []
        self.pairs: list[FakePair] = []
        self._played = make_trace(12, 8, 4) if played is None else played
        self._step_s, self._error = step_s, error
        super().__init__(self._load_fake, self._generate_fake)

    def _load_fake(self, notify: Callable[[str], None]) -> FakePair:
        notify("loading the toy pair")

        def decode(ids: Sequence[int]) -> str:
            return "".join(self._played.token(i).text for i in ids)

        return FakePair(SimpleNamespace(decode=decode))

    def _generate_fake(self, pair: FakePair, request: GenerateRequest) -> FakeGeneration:
        if isinstance(self._error, DFlashLabError):
            raise self._error
        self.pairs.append(pair)
        generation = FakeGeneration(self._played, request, self._step_s)
        self.made.append(generation)
        return generation


def query(page: Page) -> dict[str, str]:
    """What the address names."""
    return {key: values[0] for key, values in parse_qs(urlsplit(page.url).query).items()}


def wait_query(page: Page, **wanted: object) -> None:
    """Until the address names what is wanted."""
    end = time.monotonic() + 5
    while any(query(page).get(key) != str(value) for key, value in wanted.items()):
        assert time.monotonic() < end, f"{page.url} does not name {wanted}"
        page.wait_for_timeout(20)
