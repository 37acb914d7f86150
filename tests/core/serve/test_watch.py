"""Work on servers in the background: it ends by itself, by a stop, by an error, and says which."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from dflash_lab.core.errors import ServerError
from dflash_lab.core.serve.fake_model import FakeModel
from dflash_lab.core.serve.fake_server import FakeServer
from dflash_lab.core.serve.watch import KEPT, Job, Watch


def wait_for(condition, seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.005)


def test_a_job_ends_by_itself():
    done = []

    async def work() -> None:
        await asyncio.sleep(0)
        done.append(threading.current_thread().name)

    job = Job(work)
    job.join(5)
    assert (job.state, job.message, job.finished) == ("done", None, True)
    assert done == ["dflash-lab live"]


def test_a_job_is_stopped_and_may_tidy_up():
    tidied = threading.Event()

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            tidied.set()

    job = Job(work)
    wait_for(lambda: job.state == "running")
    job.stop()
    job.join(5)
    assert job.state == "stopped"
    assert tidied.is_set()
    job.stop()


@pytest.mark.parametrize(
    ("error", "said"), [(ServerError("no such model"), "no such model"), (KeyError("oops"), "KeyError: 'oops'")]
)
def test_an_error_is_kept_in_one_line(error, said):
    async def work() -> None:
        raise error

    job = Job(work)
    job.join(5)
    assert (job.state, job.message) == ("failed", said)


def test_an_address_that_is_none_is_refused_at_once():
    with pytest.raises(ServerError, match="expected a server's address"):
        Watch("no address")


def test_a_watch_keeps_its_last_snapshots_and_stops_at_once():
    with FakeServer(FakeModel(backend="vllm")) as server:
        watch = Watch(server.url, interval_s=0.001)
        wait_for(lambda: len(watch.snapshots) >= 3)
        assert watch.info.hardware == "NVIDIA GB300"
        assert server.ledger.bodies == []
        times = [snapshot.at_s for snapshot in watch.snapshots]
        assert times == sorted(times)
        assert len(times) <= KEPT
        began = time.monotonic()
        watch.job.stop()
        watch.job.join(5)
        assert time.monotonic() - began < 1
        assert watch.job.state == "stopped"


def test_a_server_that_is_away_for_a_while_is_waited_for():
    with FakeServer(FakeModel(backend="vllm")) as server:
        watch = Watch(server.url, interval_s=0.01)
        wait_for(lambda: watch.snapshots)
        server._loop.call_soon_threadsafe(server.die)
        wait_for(lambda: watch.trouble)
        assert "no server answers" in watch.trouble
        assert watch.job.state == "running"
        watch.job.stop()
        watch.job.join(5)
