"""The decoder behind the server: one request at a time, the others wait in order of arrival."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dflash_lab.core.errors import DFlashLabError
from dflash_lab.core.types import Conversation, GenerateRequest, SamplingParams, StopReason
from dflash_lab.ui.server.counters import Counters
from dflash_lab.ui.view.parts import TextParts

if TYPE_CHECKING:
    from dflash_lab.core.generate import Generation, Pair

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Piece:
    """Text that a verification step, or the prompt's reading, has added."""

    text: str
    """May be empty while a character is not complete."""
    num_tokens: int
    """Tokens committed so far."""


@dataclass(frozen=True)
class Finished:
    """What came of a request."""

    text: str
    """The whole answer."""
    stop_reason: StopReason
    """Why it ended."""
    last_id: int
    """The last committed token: the stop token where one ended it."""
    num_prompt_tokens: int
    """Tokens of the prompt, after the chat template."""
    num_tokens: int
    """Committed tokens, the one from prefill and a stop token included."""
    histogram: tuple[int, ...]
    """Verification steps that accepted 0, 1, .. proposals; empty without a drafter."""
    received_at_s: float
    """When it was received, Unix seconds."""
    queue_s: float
    """From then until decoding began."""
    first_token_s: float
    """From being received to the first token."""
    duration_s: float
    """From being received to the last token."""


@dataclass(frozen=True)
class Failed:
    """Decoding broke off."""

    message: str
    """Why, in one line."""


Event = Piece | Finished | Failed


class Job:
    """A request in the queue or being decoded; `events()` ends with Finished or Failed."""

    def __init__(self, generation: Generation, streamed: bool) -> None:
        self.generation, self.streamed = generation, streamed
        self.received_at_s, self.received = time.time(), time.perf_counter()
        self.cancelled = False
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Event] = asyncio.Queue()

    def emit(self, event: Event) -> None:
        """Pass on `event`, from the decoder's thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._queue.put_nowait, event)

    async def events(self) -> AsyncIterator[Event]:
        """What happens, as it happens."""
        while True:
            event = await self._queue.get()
            yield event
            if not isinstance(event, Piece):
                return

    async def result(self) -> Finished | Failed:
        """How it ended."""
        last: Event | None = None
        async for event in self.events():
            last = event
        return last

    def cancel(self) -> None:
        """Nobody waits for it any more: leave the queue, or stop before the next step. No effect once it is over."""
        self.cancelled = True
        self.generation.cancel()


class Engine:
    """The loaded pair and the thread that decodes with it."""

    def __init__(self, pair: Pair, template: GenerateRequest) -> None:
        """`template` holds everything that a request of a client does not say. Raises RequestError."""
        from dflash_lab.core.generate import generate

        self.pair, self.template = pair, template
        self._generate = generate
        self._num_submitted = 0
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="dflash-lab decode")
        trial = dataclasses.replace(template, prompt="hello", sampling=SamplingParams(max_new_tokens=16))
        warm = generate(pair, trial)
        for _ in warm:  # the first tokens of a process are slow, and not a client's to pay for
            pass
        self.block_size, self.num_candidates, self.warnings = warm.block_size, warm.num_candidates, warm.warnings
        self.counters = Counters(self.block_size)

    @property
    def description(self) -> str:
        """What decodes, in a few words."""
        if self.pair.drafter is None:
            return "no drafter"
        return f"drafter {self.pair.drafter.name}, block {self.block_size}, {self.num_candidates} candidates"

    def submit(
        self, conversation: Conversation, sampling: SamplingParams, seed: int | None = None, streamed: bool = False
    ) -> Job:
        """Queue a request. Raises RequestError if it cannot be decoded.

        Without a `seed` the requests' running number is taken: a server that is started anew and asked the same
        answers the same.
        """
        self._num_submitted += 1
        seed = self._num_submitted if seed is None else seed
        request = dataclasses.replace(self.template, prompt=conversation, sampling=sampling, seed=seed)
        job = Job(self._generate(self.pair, request), streamed)
        self.counters.queue()
        self._worker.submit(self._run, job)
        return job

    def close(self) -> None:
        """Wait for the request that is being decoded, which must have been cancelled; drop the rest."""
        self._worker.shutdown(wait=True, cancel_futures=True)

    def _run(self, job: Job) -> None:
        if job.cancelled:
            self.counters.drop()
            return
        self.counters.start()
        try:
            finished = self._decode(job)
        except Exception as error:
            self.counters.end(None, job.streamed)
            known = isinstance(error, DFlashLabError)
            if not known:
                log.exception("decoding broke off")
            job.emit(Failed(str(error) if known else f"{type(error).__name__}: {error}"))
            return
        self.counters.end(finished, job.streamed)
        job.emit(finished)

    def _decode(self, job: Job) -> Finished:
        generation, decode = job.generation, self.pair.text.decode
        began = time.perf_counter()
        generation.prefill()
        first = time.perf_counter()
        self.counters.prefilled(len(generation.prompt_ids))
        text, shown = TextParts(decode), 0
        histogram = [0] * self.block_size if generation.pair.drafter else []

        def pass_on() -> None:
            nonlocal shown
            new = "".join(part.text for part in text.parts[shown:])
            shown = len(text.parts)
            job.emit(Piece(new, len(generation.output_ids)))

        text.add(generation.output_ids, "target")
        pass_on()
        for step in generation:
            if histogram:
                histogram[step.record.num_accepted] += 1
            self.counters.step(step.record)
            text.add_step(step.record)
            pass_on()
        text.flush()
        pass_on()
        ended, summary = time.perf_counter(), generation.summary
        return Finished(
            text=decode(summary.output_ids),
            stop_reason=summary.stop_reason,
            last_id=summary.output_ids[-1],
            num_prompt_tokens=len(summary.prompt_ids),
            num_tokens=len(summary.output_ids),
            histogram=tuple(histogram),
            received_at_s=job.received_at_s,
            queue_s=began - job.received,
            first_token_s=first - job.received,
            duration_s=ended - job.received,
        )
