"""A server looked at again and again, and work on servers in the background: for a page or a notebook, which stay free.

waiting -> running -> done | stopped | failed
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from dflash_lab.core.errors import DFlashLabError, ServerError
from dflash_lab.core.serve.endpoint import Endpoint, base_address
from dflash_lab.core.serve.probe import probe, read_snapshot
from dflash_lab.core.serve.records import ServerInfo, Snapshot

log = logging.getLogger(__name__)

KEPT = 600
"""Snapshots kept of a server that is watched for long."""


class Job:
    """A coroutine in a thread of its own; `state` and `message` say how it goes, nothing is raised out of it."""

    FINAL = ("done", "stopped", "failed")

    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Begins at once. `work` is cancelled to stop it, and may end in peace then."""
        self.state = "waiting"
        self.message: str | None = None
        self._stopping = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task | None = None
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, args=(work,), name="dflash-lab live", daemon=True)
        self._thread.start()

    @property
    def finished(self) -> bool:
        """True when nothing more will change."""
        return self.state in self.FINAL

    def stop(self) -> None:
        """Ask it to end; it does within a moment."""
        with self._lock:
            self._stopping.set()
            if self._loop is not None and self._task is not None:
                self._loop.call_soon_threadsafe(self._task.cancel)

    def join(self, seconds: float | None = None) -> None:
        """Wait for the end, `seconds` at most."""
        self._thread.join(seconds)

    def _run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        ending, message = "done", None
        try:
            asyncio.run(self._work(work))
        except asyncio.CancelledError:
            pass
        except DFlashLabError as error:
            ending, message = "failed", str(error)
        except Exception as error:
            log.exception("the work on a server failed")
            ending, message = "failed", f"{type(error).__name__}: {error}"
        # In this order: who sees a final state finds the message in place.
        self.message = message
        self.state = "stopped" if ending == "done" and self._stopping.is_set() else ending

    async def _work(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        with self._lock:
            if self._stopping.is_set():
                return
            self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
            self.state = "running"
        try:
            await work()
        finally:
            with self._lock:
                self._loop = None


class Watch:
    """Reads a server's own counters every `interval_s`. Sends no requests; a server that is away is waited for."""

    def __init__(self, url: str, model: str | None = None, interval_s: float = 1.0, api_key: str | None = None) -> None:
        """Begins at once. Raises ServerError if `url` is not an address."""
        self.url = base_address(url)
        self.began_at_s = time.time()
        self.info: ServerInfo | None = None
        self.trouble: str | None = None
        self._model, self._interval_s, self._api_key = model, interval_s, api_key
        self._snapshots: deque[Snapshot] = deque(maxlen=KEPT)
        self.job = Job(self._look)

    @property
    def snapshots(self) -> tuple[Snapshot, ...]:
        """What was read, the oldest first; of a long watch the last `KEPT`."""
        while True:
            with contextlib.suppress(RuntimeError):  # it grew meanwhile
                return tuple(self._snapshots)

    async def _look(self) -> None:
        async with Endpoint(self.url, self._api_key) as endpoint:
            self.info = await probe(endpoint, self._model, ask=False)
            while True:
                try:
                    snapshot = await read_snapshot(endpoint, self.info)
                except ServerError as error:
                    self.trouble = str(error)
                else:
                    if snapshot is None:
                        raise ServerError(nothing_to_watch(self.info))
                    self.trouble = None
                    self._snapshots.append(snapshot)
                await asyncio.sleep(self._interval_s)


def nothing_to_watch(info: ServerInfo) -> str:
    """What is said of a server without counters."""
    return (
        f"{info.url} publishes no counters to watch; start SGLang with --enable-metrics, vLLM without "
        "--disable-log-stats, or watch the file of a run"
    )
