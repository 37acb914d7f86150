"""The static step captured as a CUDA graph and replayed: the host reads one step behind what the device does.

A step needs nothing of the host, so the next one is launched before the last one is read. Its record goes to pinned
memory by an asynchronous copy behind it, into a ring of two places.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch

from dflash_lab.core.decode.static import HEADER, STAMPS, Shape, StaticStep
from dflash_lab.core.errors import BackendError, NumericsError
from dflash_lab.core.kernels.ops import Ops
from dflash_lab.core.model.drafter import Drafter
from dflash_lab.core.target.lean import LeanTarget
from dflash_lab.core.types import StepTimings

LEAST_PLACES = 1024
"""Places of a cache at least, so that most requests share one capture."""
WARMUPS = 2
"""Steps before a capture: kernels compile, libraries allocate."""


class RowStep(NamedTuple):
    """What one step did to one request, on the host."""

    num_accepted: int
    bonus_id: int
    num_committed: int
    """0 where the request was over before."""
    over: int
    """1 after a stop token, 2 at the end of the length, else 0."""
    draft_ids: tuple[int, ...]
    arrays: Mapping[str, np.ndarray]
    """What was recorded, by the recorder's names."""
    timings: StepTimings


@dataclass(frozen=True)
class Start:
    """A request that has been read and has its first token."""

    length: int
    """Tokens before the anchor."""
    anchor_id: int
    """The first token."""
    left: int
    """Tokens that it may still commit."""


class Engine:
    """Steps of one pair on one device, captured once for each shape."""

    def __init__(self, target: LeanTarget, drafter: Drafter | None, kernels: str) -> None:
        """`kernels` is `reference` or `triton`. Raises BackendError for Triton that is not installed."""
        self.target, self.drafter, self.kernels = target, drafter, kernels
        self._ops = Ops(kernels, target.device)
        self._runners: dict[Shape, _Runner] = {}
        self._places = 0

    def open(self, shape: Shape) -> Batch:
        """A batch of `shape`, all of its requests free. Raises BackendError where memory or capture fails."""
        if shape.places > self._places:
            # Longer caches serve shorter requests too: what was captured for less is given back.
            self._runners.clear()
            self._places = shape.places
        shape = replace(shape, places=self._places)
        if shape not in self._runners:
            self._runners[shape] = _Runner(self, shape)
        runner = self._runners[shape]
        runner.step.clear()
        return Batch(runner, self)

    def make_step(self, shape: Shape, rng: torch.Generator | None) -> StaticStep:
        """A new static step. Raises BackendError if its caches do not fit."""
        drafter = self.drafter if shape.block_size > 1 else None
        need = self.cache_bytes(shape)
        if self.target.device.type == "cuda":
            free = torch.cuda.mem_get_info(self.target.device)[0]
            if need > free:
                raise BackendError(
                    f"caches of {shape.batch} requests of {shape.places} tokens take {need / 1e9:.1f} GB and "
                    f"{free / 1e9:.1f} GB are free: lower the batch or max_new_tokens"
                )
        return StaticStep(self.target, drafter, self._ops, shape, rng)

    def cache_bytes(self, shape: Shape) -> int:
        """Memory of the caches of a batch."""
        layers, two, _, heads, _, head_dim = self.target.cache.shape
        values = layers * two * heads * head_dim
        if self.drafter is not None and shape.block_size > 1:
            config = self.drafter.config
            values += 2 * config.num_layers * config.num_kv_heads * config.head_dim
        return values * shape.batch * shape.places * self.target.dtype.itemsize


class _Runner:
    """A static step with its graph, if the device has graphs."""

    def __init__(self, engine: Engine, shape: Shape) -> None:
        device = engine.target.device
        self.rng = torch.Generator(device) if shape.temperature else None
        self.step = engine.make_step(shape, self.rng)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.packed: torch.Tensor | None = None
        if device.type == "cuda":
            self._capture()

    def _capture(self) -> None:
        try:
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(WARMUPS):
                    self.packed = self.step.run()
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            if self.rng is not None:
                graph.register_generator_state(self.rng)
            with torch.cuda.graph(graph):
                self.packed = self.step.run()
        except torch.OutOfMemoryError:
            raise BackendError(
                "out of memory while capturing a step: lower the batch or max_new_tokens, or use --loop eager"
            ) from None
        except RuntimeError as error:
            if isinstance(error, BackendError):
                raise
            first = str(error).strip().splitlines()[0]
            raise BackendError(f"the step could not be captured as a CUDA graph ({first}): use --loop eager") from None
        self.graph = graph
        words = self.packed.shape
        self.ring = [torch.empty(words, dtype=torch.int32, pin_memory=True) for _ in range(2)]
        self.events = [torch.cuda.Event() for _ in range(2)]


class Batch:
    """Requests side by side. `load` each after the target has read it, then iterate `steps`."""

    def __init__(self, runner: _Runner, engine: Engine) -> None:
        self._runner, self._step, self._engine = runner, runner.step, engine
        self._launched = 0

    def seed(self, state: torch.Generator | None) -> None:
        """Go on from this generator's state."""
        if self._runner.rng is not None:
            self._runner.rng.set_state(state.get_state())

    @torch.inference_mode()
    def load(self, row: int, start: Start, features: torch.Tensor | None) -> None:
        """Request `row` is what the target has read last; `features [1, S, F*D]` are its prompt's."""
        self._step.target.load(row, start.length)
        if self._step.drafter:
            self._step.drafter.load(row, features)
        self._step.place(row, length=start.length, anchor_id=start.anchor_id, left=start.left)

    def steps(self) -> Iterator[list[RowStep]]:
        """One list of all requests' steps after another, until all are over. Raises NumericsError.

        A step that is read has been followed by the launch of the next; past the end that one changes nothing.
        """
        ahead = self._runner.graph is not None
        pending = self._launch()
        while True:
            following = self._launch() if ahead else None
            rows = self._read(pending)
            yield rows
            if all(row.over for row in rows):
                return
            pending = following if ahead else self._launch()

    def _launch(self) -> int:
        """Start a step; returns its place in the ring."""
        runner, place = self._runner, self._launched % 2
        self._launched += 1
        if runner.graph is None:
            runner.packed = self._step.run()
            return place
        runner.graph.replay()
        runner.ring[place].copy_(runner.packed, non_blocking=True)
        runner.events[place].record()
        return place

    def _read(self, place: int) -> list[RowStep]:
        if self._runner.graph is None:
            words = self._runner.packed.numpy()
        else:
            self._runner.events[place].synchronize()
            # The ring's place is written again by the launch after next.
            words = self._runner.ring[place].numpy().copy()
        return [self._row(row) for row in words]

    def _row(self, words: np.ndarray) -> RowStep:
        """Unpack one request's record."""
        end = HEADER + self._step.shape.block_size - 1
        head = words[:end].tolist()
        arrays = {}
        for name, (shape, floating) in self._step.layout.items():
            start, end = end, end + int(np.prod(shape, dtype=int))
            array = words[start:end]
            arrays[name] = (array.view(np.float32) if floating else array).reshape(tuple(shape))
        total = arrays.pop("sum", None)
        if total is not None and not np.isfinite(total):
            raise NumericsError(
                "the drafter's scores are not finite: try --dtype float32, or --loop eager to name the layer"
            )
        return RowStep(*head[:HEADER], tuple(head[HEADER:]), arrays, _timings(words[-2 * (len(STAMPS) + 1) :]))


def _timings(words: np.ndarray) -> StepTimings:
    """Milliseconds between the stamps; zero where there is no device clock."""
    stamps = np.ascontiguousarray(words).view(np.int64)
    draft, select, verify, commit = np.diff(stamps) / 1e6
    return StepTimings(float(draft), float(select), float(verify), float(commit))


def places_for(tokens: int) -> int:
    """Places of a cache for requests of up to `tokens` tokens, a block included."""
    return max(LEAST_PLACES, 1 << (tokens - 1).bit_length())
