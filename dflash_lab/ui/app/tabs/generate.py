"""The Generate tab: decode a prompt with the bundled pair, watch it, stop it, open its trace."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import gradio as gr

from dflash_lab.core.errors import RequestError
from dflash_lab.core.types import GenerateRequest, SamplingParams
from dflash_lab.ui.app.header import QUIET
from dflash_lab.ui.app.run import Run, refused
from dflash_lab.ui.app.session import Runs

TAB = "generate"
PROMPT = (
    "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May. "
    "How many clips did Natalia sell altogether in April and May?"
)
POLL_S = 0.2
"""The page is told at most this often."""

# Constant text: page.js fills it with textContent.
OUTPUT = """
<div class="dfa-tiles"></div>
<p class="dfa-status" role="status">Press Start: the first run loads the pair, which takes a moment.</p>
<p class="dfa-warnings"></p>
<div class="dfa-output" tabindex="0" role="region" aria-label="Output text"></div>
<p class="dfa-key" aria-hidden="true">
  <span class="dfa-accepted">accepted proposals</span>
  <span class="dfa-corrected">the target's correction</span>
  <span class="dfa-bonus">bonus after a full block</span>
</p>
"""


@dataclass(frozen=True)
class Form:
    """The request's fields as the page holds them, in the order of `make_request`."""

    prompt: gr.Textbox
    """The user's text."""
    drafter: gr.Checkbox
    """Off decodes autoregressively."""
    block_size: gr.Number
    """L, with the anchor."""
    num_candidates: gr.Number
    """C at each position."""
    temperature: gr.Number
    """0 is greedy."""
    top_p: gr.Number
    """1 keeps all."""
    top_k: gr.Number
    """0 keeps all."""
    max_new_tokens: gr.Number
    """Most tokens to commit."""
    seed: gr.Number
    """Of the random generator."""

    @property
    def fields(self) -> list[Any]:
        """The components in order."""
        return list(vars(self).values())


def make_request(
    prompt: str,
    drafter: bool,
    block_size: float | None,
    num_candidates: float | None,
    temperature: float | None,
    top_p: float | None,
    top_k: float | None,
    max_new_tokens: float | None,
    seed: float | None,
) -> GenerateRequest:
    """The request of the form. Raises RequestError, naming what is empty or out of range."""
    given = {
        "block size": block_size,
        "candidates": num_candidates,
        "temperature": temperature,
        "top-p": top_p,
        "top-k": top_k,
        "max tokens": max_new_tokens,
        "seed": seed,
    }
    empty = [name for name, value in given.items() if value is None]
    if empty:
        raise RequestError(f"expected a number for {', '.join(empty)}, got none; fill it in")
    if not prompt.strip():
        raise RequestError("expected a prompt, got none; write one")
    if drafter and block_size < 2:
        raise RequestError(f"block size must be 2 or more with a drafter, got {block_size}; or switch the drafter off")
    if drafter and num_candidates < 1:
        raise RequestError(f"candidates must be 1 or more, got {num_candidates}")
    sampling = SamplingParams(float(temperature), float(top_p), int(top_k), int(max_new_tokens))
    return GenerateRequest(
        prompt=prompt,
        sampling=sampling,
        drafter="bundled" if drafter else None,
        block_size=int(block_size) if drafter else None,
        num_candidates=int(num_candidates) if drafter else None,
        seed=int(seed),
        record="scores",
    )


def command_line(request: GenerateRequest) -> str:
    """The command that does the same in a terminal, in lines that a shell joins."""
    sampling = request.sampling
    if request.drafter is None:
        draft = ["--drafter", "none"]
    else:
        draft = ["--block-size", str(request.block_size), "--num-candidates", str(request.num_candidates)]
    target = ["--temperature", f"{sampling.temperature:g}", "--top-p", f"{sampling.top_p:g}"]
    target += ["--top-k", str(sampling.top_k), "--seed", str(request.seed)]
    length = ["--max-new-tokens", str(sampling.max_new_tokens), "--trace", "trace.safetensors"]
    # Last and behind "--", so that a prompt may begin with a dash.
    lines = [["dflash-lab", "generate", *draft], target, length, ["--", request.prompt]]
    return " \\\n  ".join(shlex.join(line) for line in lines)


def same_command(*fields: Any) -> str:
    """The command of the form as it stands, or what is wrong with it."""
    try:
        return command_line(make_request(*fields))
    except RequestError as error:
        return f"# {error}"


def draw_form() -> Form:
    """The request's fields, with defaults that suit the bundled pair on a CPU."""
    prompt = gr.Textbox(PROMPT, label="Prompt", lines=4, max_lines=10)
    with gr.Row(elem_classes="dfa-fields"):
        block_size = _number(8, "Block size", 1)
        num_candidates = _number(16, "Candidates", 1)
        max_new_tokens = _number(256, "Max tokens", 1)
        seed = _number(0, "Seed", 1)
    with gr.Row(elem_classes="dfa-fields"):
        temperature = _number(0, "Temperature", 0.1)
        top_p = _number(1, "Top-p", 0.05)
        top_k = _number(0, "Top-k", 1)
        drafter = gr.Checkbox(True, label="Drafter", min_width=60, elem_id="dfa-drafter")
    return Form(prompt, drafter, block_size, num_candidates, temperature, top_p, top_k, max_new_tokens, seed)


def _number(value: float, label: str, step: float) -> gr.Number:
    return gr.Number(value, label=label, step=step, precision=0 if step == 1 else None, min_width=60)


def build(runs: Runs) -> gr.Button:
    """Draw the tab and connect it to the runs of the session; gives the button that opens a run in Inspect."""
    with gr.Row(elem_classes="dfa-generate"):
        with gr.Column(scale=2, min_width=320):
            form = draw_form()
            with gr.Row(elem_classes="dfa-fields"):
                start = gr.Button("Start", variant="primary", size="md", min_width=80)
                stop = gr.Button("Stop", variant="stop", size="md", min_width=80, interactive=False)
            command = gr.Textbox(
                same_command(*(field.value for field in form.fields)),
                label="Same as this command",
                interactive=False,
                lines=4,
                max_lines=10,
                buttons=["copy"],
                elem_id="dfa-command",
            )
        with gr.Column(scale=3, min_width=320):
            output = gr.HTML(
                html_template=OUTPUT,
                js_on_load="dflashLab.output(element, props, watch)",
                apply_default_css=False,
                elem_id="dfa-run",
            )
            opened = gr.Button("Open in Inspect", size="md", interactive=False, elem_id="dfa-open-run")
    _connect(runs, form, [output, start, stop, opened])
    changed = [field.change for field in form.fields]
    gr.on(changed, same_command, form.fields, command, trigger_mode="always_last", **QUIET)
    return opened


def _connect(runs: Runs, form: Form, outputs: list[Any]) -> None:
    _, start, stop, _ = outputs

    def prepare(request: gr.Request, *fields: Any) -> list[Any]:
        try:
            run = runs.prepare(request.session_hash, make_request(*fields))
        except RequestError as error:
            return [refused(error), *_buttons(running=False, seen=False)]
        return show_run(run)

    def follow(request: gr.Request) -> Iterator[list[Any]]:
        run = runs.get(request.session_hash)
        if run is None or run.finished:
            return
        run.start()
        try:
            finished = False
            while not finished:
                finished = run.finished
                yield show_run(run)
                run.join(POLL_S)
        finally:
            # Also when the browser is gone: the model is free again before the next run gets its turn.
            run.cancel()
            run.join()

    def halt(request: gr.Request) -> list[Any]:
        run = runs.get(request.session_hash)
        if run is not None:
            run.cancel()
            if run.finished:
                return show_run(run)
        # The rest comes with the end of the run; a view sent from here might arrive after that.
        return [gr.skip(), gr.skip(), gr.Button(interactive=False), gr.skip()]

    started = start.click(prepare, form.fields, outputs, **QUIET)
    started.success(follow, None, outputs, concurrency_id="model", concurrency_limit=1, **{**QUIET, "queue": True})
    stop.click(halt, None, outputs, **QUIET)


def show_run(run: Run) -> list[Any]:
    """The output's value and the state of Start, Stop and Open."""
    seen = run.state == "running" or run.trace_id is not None
    return [run.view(), *_buttons(running=not run.finished, seen=seen)]


def _buttons(running: bool, seen: bool) -> list[gr.Button]:
    opened = gr.Button("Watch in Inspect" if running else "Open in Inspect", interactive=seen)
    return [gr.Button(interactive=not running), gr.Button(interactive=running), opened]
