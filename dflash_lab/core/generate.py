"""From names to a running generation: loads a pair, decodes a request, records it, makes the trace."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from dflash_lab.core.decode.graph import Engine
from dflash_lab.core.decode.loop import Decoding, Step
from dflash_lab.core.errors import BackendError, HookError, TargetError
from dflash_lab.core.hooks import NO_HOOKS, Hooks
from dflash_lab.core.kernels import choose_backend
from dflash_lab.core.kernels.linear import pack_linears
from dflash_lab.core.model.checkpoint import load_checkpoint
from dflash_lab.core.model.drafter import Drafter, bind
from dflash_lab.core.provenance import provenance
from dflash_lab.core.target import bundled
from dflash_lab.core.target.base import Target
from dflash_lab.core.target.text import Text
from dflash_lab.core.trace.recorder import Recorder
from dflash_lab.core.trace.schema import TokenInfo, Trace, TraceHeader
from dflash_lab.core.types import GenerateRequest, RunSummary, StopReason

BUNDLED = "bundled"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
FORWARDS = ("auto", "lean", "transformers")
LOOPS = ("auto", "eager", "graph")
WEIGHTS = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]
"""What is fetched from a hub: data, never code or pickles."""


@dataclass(frozen=True)
class Pair:
    """A target and its drafter, loaded and checked against each other."""

    target: Target
    """The model whose text is produced."""
    drafter: Drafter | None
    """Drafts for it; None decodes autoregressively."""
    text: Text
    """The target's tokenizer."""
    target_folder: Path
    """Where the target's files are."""
    backends: Mapping[str, Any]
    """What runs: kernels, dtype, device, cache, threads."""
    warnings: tuple[str, ...]
    """What a user should know about the two."""
    engine: Engine | None = None
    """Captures and replays steps; None runs the eager loop."""
    loop: str = "auto"
    """As asked for: with `auto` a request that needs tensors of its own runs in the eager loop."""


def load_pair(
    target: str = BUNDLED,
    drafter: str | None = BUNDLED,
    *,
    device: str = "auto",
    dtype: str = "auto",
    kernels: str = "auto",
    forward: str = "auto",
    loop: str = "auto",
    notify: Callable[[str], None] = lambda text: None,
) -> Pair:
    """Load by name: `bundled`, a local folder or a hub id; `notify` is told what takes long.

    `forward` is whose forward pass the target runs on: `lean` (ours), `transformers`, or `auto` for the first where
    the architecture has one. `loop` is `eager`, `graph` (captured CUDA graphs), or `auto`: graph on a GPU with the lean
    forward pass.

    Raises the one-line errors of core.errors for everything that does not fit together.
    """
    where = choose_device(device)
    precision = choose_dtype(dtype, where)
    if loop not in LOOPS:
        raise BackendError(f"loop must be one of {', '.join(LOOPS)}, got {loop!r}")
    if loop == "graph" and where.type != "cuda":
        raise BackendError("--loop graph captures CUDA graphs, and this run is on the CPU: use --loop eager")
    folder = bundled.ensure_target(notify) if target == BUNDLED else resolve(target, notify)
    notify(f"loading target {target}")
    loaded, passed = _load_target(folder, target, precision, where, forward)
    if loop == "graph" and passed != "lean":
        raise BackendError("--loop graph needs the lean forward pass, and this run has transformers': use --loop eager")
    looping = "graph" if where.type == "cuda" and passed == "lean" and loop != "eager" else "eager"
    backend = choose_backend(kernels, looping)
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise TargetError(f"target {target!r} has no tokenizer that loads: {str(error).splitlines()[0]}") from None
    warnings = list(loaded.info.warnings)
    made = None
    if drafter is not None:
        notify(f"loading drafter {drafter}")
        made, said = load_drafter(drafter, loaded, notify)
        warnings += said
    backends = {
        "kernels": backend,
        "forward": passed,
        "loop": looping,
        "dtype": str(precision).removeprefix("torch."),
        "device": str(where),
        "cache": "static" if looping == "graph" else "reserved, grown by doubling",
        "threads": torch.get_num_threads(),
    }
    engine = Engine(loaded, made, backend) if looping == "graph" else None
    return Pair(loaded, made, Text(tokenizer, target), folder, backends, tuple(warnings), engine, loop)


def _load_target(folder: Path, name: str, dtype: torch.dtype, device: torch.device, forward: str) -> tuple[Target, str]:
    """The target, and whose forward pass it runs on."""
    from dflash_lab.core.target import lean
    from dflash_lab.core.target.config import load_config
    from dflash_lab.core.target.hf import HfTarget, load_model

    if forward not in FORWARDS:
        raise BackendError(f"forward must be one of {', '.join(FORWARDS)}, got {forward!r}")
    if forward == "lean" or (forward == "auto" and lean.supports(load_config(folder, name))):
        return lean.LeanTarget(folder, name, dtype=dtype, device=device), "lean"
    return HfTarget(load_model(folder, dtype=dtype, device=device), name), "transformers"


def load_drafter(
    name: str, target: Target, notify: Callable[[str], None] = lambda text: None
) -> tuple[Drafter, list[str]]:
    """A drafter by name, bound to `target`, with its warnings."""
    folder = bundled.drafter_folder() if name == BUNDLED else resolve(name, notify)
    checkpoint = load_checkpoint(folder, dtype=target.dtype, device=target.device)
    drafter = bind(checkpoint, target, name)
    pack_linears(checkpoint.model)
    return drafter, checkpoint.warnings


def resolve(name: str, notify: Callable[[str], None] = lambda text: None) -> Path:
    """The folder of a model: `name` itself if it is one, else fetched from the hub into its cache."""
    if Path(name).is_dir():
        return Path(name)
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise TargetError(f"{name!r} is neither 'bundled', a folder, nor a hub id of the form owner/name")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    notify(f"looking up {name} on the hub")
    try:
        return Path(snapshot_download(name, allow_patterns=WEIGHTS))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise TargetError(f"{name!r} could not be fetched from the hub: {first}") from None


class Generation:
    """A request being decoded. Iterate for its steps; then `summary` and `trace()`."""

    def __init__(self, pair: Pair, request: GenerateRequest, hooks: Hooks | None = None) -> None:
        self.pair, self.request = pair, request
        ids, self.rendered = pair.text.encode(request.prompt, request.chat)
        stop_ids = tuple(dict.fromkeys((*request.sampling.stop_ids, *pair.target.info.stop_ids)))
        self.sampling = dataclasses.replace(request.sampling, stop_ids=stop_ids)
        self._recorder = None if request.record == "none" else Recorder(request.record)
        engine = _engine_for(pair, request, hooks)
        self.backends = dict(pair.backends)
        if engine is None:
            self.backends |= _EAGER if pair.engine else {}
            hooks = hooks or Hooks()
            if self._recorder:
                hooks = self._recorder.attach(hooks)
        self._decoding = Decoding(
            pair.target,
            pair.drafter,
            ids,
            self.sampling,
            block_size=request.block_size,
            num_candidates=request.num_candidates,
            rng=_generator(pair.target.device, request.seed),
            hooks=hooks or NO_HOOKS,
            engine=engine,
            recorded=request.record == "scores",
        )
        self._created = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self._failed = False
        self._over = False

    def __iter__(self) -> Iterator[Step]:
        try:
            for step in self._decoding:
                if self._recorder:
                    self._recorder.add(step)
                yield step
        except Exception:
            self._failed = True
            raise
        finally:
            self._over = True

    def prefill(self) -> None:
        """Read the prompt and commit the first token now; without this call the iteration begins with it."""
        self._decoding.prefill()

    def cancel(self) -> None:
        """Stop before the next step; may be called from another thread."""
        self._decoding.cancel()

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        """The prompt's token ids."""
        return self._decoding.prompt_ids

    @property
    def output_ids(self) -> list[int]:
        """Committed tokens so far, the one from prefill first."""
        return self._decoding.output_ids

    @property
    def block_size(self) -> int:
        """L in use; 1 without a drafter."""
        return self._decoding.block_size

    @property
    def num_candidates(self) -> int:
        """C in use; 0 without a drafter."""
        return self._decoding.num_candidates

    @property
    def warnings(self) -> tuple[str, ...]:
        """Everything a user should know, of the pair and of the request."""
        return (*self.pair.warnings, *self._decoding.warnings)

    @property
    def summary(self) -> RunSummary:
        """What came of it so far."""
        return self._decoding.summary

    def trace(self) -> Trace:
        """The trace of what was decoded so far, also between two steps; needs a record level other than `none`."""
        assert self._recorder is not None, "nothing is recorded at level 'none'"
        take = self._recorder.finish if self._over else self._recorder.snapshot
        return take(self.header(), self._tokens)

    def header(self) -> TraceHeader:
        """The trace header without its token texts."""
        summary, pair = self.summary, self.pair
        cancelled = summary.stop_reason is StopReason.CANCELLED
        info = dataclasses.asdict(pair.target.info)
        return TraceHeader(
            created=self._created,
            status="failed" if self._failed else "cancelled" if cancelled else "complete",
            level=self.request.record,
            request={**dataclasses.asdict(self.request), "sampling": dataclasses.asdict(self.sampling)},
            prompt=self.rendered,
            prompt_ids=summary.prompt_ids,
            output_ids=summary.output_ids,
            text=pair.text.decode(summary.output_ids),
            stop_reason=None if self._failed else summary.stop_reason.value,
            time_to_first_token_ms=summary.time_to_first_token_ms,
            decode_s=summary.decode_s,
            target={**info, "warnings": list(info["warnings"])},
            drafter=describe_drafter(pair.drafter) if pair.drafter else None,
            block_size=self.block_size,
            num_candidates=self.num_candidates,
            backends=self.backends,
            provenance=self._provenance,
            warnings=self.warnings,
        )

    @cached_property
    def _provenance(self) -> dict[str, Any]:
        return provenance()

    def _tokens(self, ids) -> dict[int, TokenInfo]:
        return {i: TokenInfo(*entry) for i, entry in self.pair.text.tokens(ids).items()}


def generate(pair: Pair, request: GenerateRequest, hooks: Hooks | None = None) -> Generation:
    """Start decoding `request` with `pair`; nothing runs before the first iteration. Raises RequestError."""
    return Generation(pair, request, hooks)


_EAGER = {"loop": "eager", "kernels": "reference", "cache": "reserved, grown by doubling"}
"""What runs where a request leaves the captured loop."""


def _engine_for(pair: Pair, request: GenerateRequest, hooks: Hooks | None) -> Engine | None:
    """The engine for this request, if it may run there. Raises HookError where it was asked for and may not."""
    needs = None
    if hooks is not None:
        needs = "hooks are called with tensors"
    elif request.record == "features":
        needs = "--record features keeps tensors"
    if pair.engine is None or needs is None:
        return pair.engine
    if pair.loop == "graph":
        raise HookError(f"{needs} that fused kernels never materialise: use --loop eager")
    return None


def describe_drafter(drafter: Drafter) -> dict[str, Any]:
    """Name, version and the configuration of a drafter, value by value with its origin."""
    config = dataclasses.asdict(drafter.config)
    origins = dict(config.pop("origins"))
    config.pop("warnings")
    return {
        "name": drafter.name,
        "version": config.pop("version"),
        "config": config,
        "origins": origins,
        "head": drafter.head.source,
    }


def _generator(device: torch.device, seed: int) -> torch.Generator:
    return torch.Generator(device=device).manual_seed(seed)


def choose_device(name: str) -> torch.device:
    """The device for `auto`, `cpu` or `cuda`. Raises BackendError if it is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name not in ("cpu", "cuda"):
        raise BackendError(f"device must be auto, cpu or cuda, got {name!r}")
    if name == "cuda" and not torch.cuda.is_available():
        raise BackendError("device cuda was asked for, but torch finds no CUDA device: use --device cpu")
    return torch.device(name)


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """The dtype for a name of `DTYPES`, or for `auto` on this device. Raises BackendError."""
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    if name not in DTYPES:
        raise BackendError(f"dtype must be auto, {', '.join(DTYPES)}, got {name!r}")
    return DTYPES[name]
