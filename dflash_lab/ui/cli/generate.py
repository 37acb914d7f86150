"""`dflash-lab generate`: decode a prompt, show whose tokens they are, keep the trace."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dflash_lab.core.errors import RequestError
from dflash_lab.core.types import RECORD_LEVELS, GenerateRequest, SamplingParams, StopReason
from dflash_lab.ui.cli.options import check_writable, drafter_name, pair_options, sampling_options
from dflash_lab.ui.cli.output import INTERRUPTED, Output, Result, story

if TYPE_CHECKING:
    from dflash_lab.core.generate import Generation
    from dflash_lab.core.trace.metrics import TraceMetrics
    from dflash_lab.core.trace.schema import Trace
    from dflash_lab.ui.view.parts import Part

STYLES = {"accepted": {"fg": "cyan"}, "corrected": {"fg": "yellow"}, "bonus": {"fg": "magenta", "underline": True}}
"""How a token looks on a terminal by its origin: a proposal kept, the target's own in its place, one on top."""


@click.command()
@click.argument("prompt", required=False)
@click.option(
    "--prompt-file", type=click.Path(path_type=Path), metavar="FILE", help="Read the prompt from FILE; - is stdin."
)
@pair_options
@sampling_options
@click.option("--no-chat", is_flag=True, help="Take the prompt as it is, without the chat template.")
@click.option("--record", type=click.Choice(RECORD_LEVELS), help="What the trace keeps; scores when --trace is given.")
@click.option(
    "--trace", type=click.Path(path_type=Path), metavar="FILE", help="Write the trace to FILE (.safetensors)."
)
@story
def generate(
    out: Output, prompt: str | None, prompt_file: Path | None, trace: Path | None, record: str | None, **options: Any
) -> Result:
    """Decode PROMPT, tell whose tokens they are, keep a trace.

    PROMPT may be - for stdin. The text is the target's own, with or without a drafter.
    """
    check_writable(trace, "--trace")
    request = _request(_read_prompt(prompt, prompt_file), _record_level(record, trace), options)

    from dflash_lab.core.generate import generate as start
    from dflash_lab.core.generate import load_pair
    from dflash_lab.core.trace import store
    from dflash_lab.core.trace.metrics import trace_metrics

    pair = load_pair(
        request.target,
        request.drafter,
        device=request.device,
        dtype=request.dtype,
        kernels=request.kernels,
        forward=request.forward,
        loop=request.loop,
        notify=out.note,
    )
    generation = start(pair, request)
    _stream(out, generation, pair.text.decode)
    made = generation.trace()
    for warning in made.header.warnings:
        out.warn(warning)
    if trace is not None:
        store.save(made, trace)
    metrics = trace_metrics(made)
    out.note(_summary(made, metrics, trace))
    cancelled = made.header.stop_reason == StopReason.CANCELLED
    return Result(_document(made, metrics, trace), exit_code=INTERRUPTED if cancelled else 0)


def _read_prompt(prompt: str | None, file: Path | None) -> str:
    """The prompt from the argument, a file, or stdin for `-`. Raises RequestError."""
    if (prompt is None) == (file is None):
        raise RequestError("expected one prompt: give PROMPT, or - to read stdin, or --prompt-file FILE")
    if "-" in (prompt, str(file)):
        return sys.stdin.read()
    if file is None:
        return prompt
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"--prompt-file {file} cannot be read as UTF-8 text: {error}") from error


def _record_level(record: str | None, trace: Path | None) -> str:
    """`scores` is what a trace is for; a level without a file, or the other way round, is a mistake.

    Without a file the steps are kept all the same: the numbers of the summary come from them.
    """
    if trace is None and record not in (None, "none"):
        raise RequestError(f"--record {record} needs --trace FILE to write the record to")
    if trace is not None and record == "none":
        raise RequestError("--trace FILE with --record none would be empty; leave one of them out")
    return "steps" if trace is None else record or "scores"


def _request(prompt: str, record: str, options: dict[str, Any]) -> GenerateRequest:
    """The request behind this command line; `options` as click gives them."""
    sampling = SamplingParams(**{name: options[name] for name in ("temperature", "top_p", "top_k", "max_new_tokens")})
    same = ("target", "block_size", "num_candidates", "seed", "kernels", "device", "dtype", "loop", "forward")
    return GenerateRequest(
        prompt=prompt,
        sampling=sampling,
        drafter=drafter_name(options["drafter"]),
        record=record,
        chat=not options["no_chat"],
        **{name: options[name] for name in same},
    )


def _stream(out: Output, generation: Generation, decode: Callable[[Sequence[int]], str]) -> None:
    """Write the text as it is decoded; Ctrl-C, or a reader that went away, cancels between two steps."""
    from dflash_lab.ui.view.parts import TextParts

    if out.color:
        out.note(" · ".join(click.style(name, **style) for name, style in STYLES.items()) + " · first token plain")
    text, shown = TextParts(decode), 0
    with _cancel_on_interrupt(generation.cancel):
        for step in generation:
            if step.record.index == 0:
                text.add(generation.output_ids[: -step.record.commit_length], "first")
            text.add_step(step.record)
            shown = _write_parts(out, text.parts, shown)
            if out.closed:
                generation.cancel()
    if not text.parts:
        text.add(generation.output_ids, "first")
    text.flush()
    _write_parts(out, text.parts, shown)
    out.write("\n")


def _write_parts(out: Output, parts: Sequence[Part], shown: int) -> int:
    """Write the parts after the first `shown`, coloured by origin on a terminal; returns how many are shown now."""
    for part in parts[shown:]:
        style = STYLES.get(part.origin) if out.color and part.text else None
        out.write(click.style(part.text, **style) if style else part.text)
    return len(parts)


@contextlib.contextmanager
def _cancel_on_interrupt(cancel: Callable[[], None]) -> Iterator[None]:
    """The first Ctrl-C asks the decoder to stop after its step, the second interrupts as usual."""

    def handle(number: int, frame: Any) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        cancel()

    previous = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def _summary(trace: Trace, metrics: TraceMetrics, path: Path | None) -> str:
    """A few lines for people: acceptance length first, each ratio with its denominator."""
    header, ran = trace.header, trace.header.backends
    lines = []
    if header.drafter is not None and metrics.num_steps:
        lines.append(
            f"acceptance length {metrics.mean_acceptance_length:.2f} over {metrics.num_steps} steps"
            f" · accepted {metrics.num_accepted} of {metrics.num_proposed} proposed ({metrics.acceptance_rate:.0%})"
        )
    speed = f"{metrics.decode_tok_s:.1f} tok/s" if metrics.decode_tok_s else "no speed: nothing after the first token"
    lines.append(
        f"{len(header.output_ids)} tokens · {speed} · first token {header.time_to_first_token_ms:.0f} ms"
        f" · ended by {header.stop_reason}"
    )
    drafter = f"drafter {header.drafter['name']}, block {header.block_size}" if header.drafter else "no drafter"
    how = f"{ran['forward']} forward, {ran['kernels']} kernels, {ran['dtype']}, {ran['device']}"
    lines.append(f"target {header.target['name']} · {drafter} · {how}")
    if path is not None:
        lines.append(f"trace in {path}; look at it: dflash-lab ui {path}")
    return "\n".join(lines)


def _document(trace: Trace, metrics: TraceMetrics, path: Path | None) -> dict[str, Any]:
    """The JSON document; an acceptance number is null where nothing was proposed."""
    header, ran = trace.header, trace.header.backends
    drafted = header.drafter is not None and metrics.num_steps > 0
    return {
        "prompt_ids": header.prompt_ids,
        "output_ids": header.output_ids,
        "text": header.text,
        "stop_reason": header.stop_reason,
        "num_steps": metrics.num_steps,
        "produced_per_step": metrics.produced_per_step,
        "mean_acceptance_length": metrics.mean_acceptance_length if drafted else None,
        "zlab_acceptance_length": metrics.zlab_acceptance_length if drafted else None,
        "acceptance_rate": metrics.acceptance_rate if drafted else None,
        "survival": metrics.survival if drafted else None,
        "decode_tok_s": metrics.decode_tok_s,
        "time_to_first_token_ms": header.time_to_first_token_ms,
        "device": ran["device"],
        "dtype": ran["dtype"],
        "kernels": ran["kernels"],
        "forward": ran["forward"],
        "loop": ran["loop"],
        "target": header.target["name"],
        "drafter": header.drafter["name"] if header.drafter else None,
        "block_size": header.block_size,
        "num_candidates": header.num_candidates,
        "seed": header.request["seed"],
        "trace": None if path is None else str(path),
        "warnings": header.warnings,
        "provenance": header.provenance,
    }
