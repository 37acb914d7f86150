"""The Help tab: how to read a step, the keys, the words, and where numbers come from."""

from __future__ import annotations

import gradio as gr

TAB = "help"

READING = """
## How to read a step

A **draft block** starts with the **anchor token**, the last one that is certain. For each position after it the
drafter lists its **candidates**, best on top; the selector walks a **path** through them, the **proposal**. The target
reads the whole block at once and keeps the proposal as far as it agrees.

| in the grid | means |
|---|---|
| fill of a cell | the score: darker is more probable |
| solid outline, ✓ | accepted: the target agrees |
| dashed outline, ✗ | first mismatch: here the target wanted another token |
| dotted outline, hatched column | not used: behind the mismatch |
| amber ring | the candidate that the target wanted |
| ◆ in the target row | the target's correction, with its rank in our list, or *not in list* |
| ★ | bonus token: the target's own token after a fully accepted block |
| `·`  `−∞`  `▲▼` | not recorded, masked, clipped |

**Why was it refused?** *selector*: the token stood in the column but was not chosen. *drafter*: it was not in the
list. *sampled*: the target drew another token although its most probable one was ours. *stop*: the text ended inside
the block. *full*: nothing was refused. *unknown*: the trace does not hold the target's side.

**What if** another candidate had been taken (`w`)? The path up to it stays; from there the walk takes the best edge
score at every position. What would have been accepted is judged against the target's own text, as far as that is
known; where it is not, the page says *at least*.

**Compare** links two traces by output token, not by step. A lossless method gives the target's own text, so greedy runs
of one prompt should not part; where they do, a margin below 0.25 between the target's two best logits is a tie that
rounding may flip.
"""

KEYS = """
## Keys

They work while the focus is inside the inspector; Tab always leaves it.

| key | | key | |
|---|---|---|---|
| `←` `→` or `,` `.` | step | `↑` `↓` | candidate in the column |
| `Shift` `←` `→` | position | `PgUp` `PgDn` | 10 steps |
| `Home` `End` | first, last step | `n` `N` | next, previous rejection or filtered step |
| `g` | go to a step | `/` | filter steps: text, `accepted = 0`, `cause = drafter` |
| `Space` | play, pause | `Enter` | pin the cell |
| `w` | what if: take this candidate | `r` | rows: rank, selector score |
| `e` | edges: focus, all, path | `p` | fill: probability, logit, selector score |
| `l` | text: origin, probability, margin, plain | `d` | density |
| `f` | full screen | `y` | copy a link |
| `?` | this list | | |
| `Esc` | unpin, close, leave | | |
"""

WORDS = """
## Words

| word | meaning |
|---|---|
| accepted | leading proposals kept in a step, 0 to K, *without* the bonus token |
| bonus token | the target's own token after the accepted ones; every step commits one such token |
| commit length | tokens appended by a step, cut at stop or length |
| acceptance length | 1 + accepted, mean over steps, not cut |
| acceptance rate | accepted / proposed; falls as the block grows, so compare it only at equal block size |
| survival[i] | share of steps that accepted at least i proposals |
| unary score | the drafter's logit of a candidate |
| edge score | unary score plus what the selector gives this token after that one |
| three lengths | what the first-ranked path, the selected path and the best path in the grid would have kept |
| block size L | slots in a block with the anchor; K = L − 1 are proposed |
"""

NUMBERS = """
## Where numbers come from

Everything about a trace is read from it or computed from it; nothing is fetched. The Live tab asks the address typed
there and no other. With *n* output tokens, *m* steps
and *clip* tokens cut off at the end:

| name | formula |
|---|---|
| acceptance length (this page, vLLM) | 1 + Σ accepted / m |
| list mean of z-lab's dflash | ours − clip / m |
| `spec_accept_length` of SGLang | n / m = ours − clip / m + 1 / m |

**Probabilities** are of the full vocabulary, so a column need not sum to 1. **Times** come from the device's clock
where it has one, by phase: draft, select, verify, commit. **tok/s** counts committed tokens after the first, from the
first token to the last; while a run goes on it is taken from time stamps, and not shown in its first half second.
"""


LIVE = """
## Live servers

**Watch** reads a server's own counters once a second and sends no requests. **Measure** sends prompts as z-lab's client
does, and writes runs to `live-runs`; **Open runs…** shows runs of `dflash-lab live bench`. Runs named when the page was
started are followed while they are written. `DFLASH_LAB_API_KEY` is sent as the server's key.

| in the charts | means |
|---|---|
| solid, filled | our own load, by its requests |
| dashed | the server's counters |
| ◇, thin line | published: dotted where settings differ; for other hardware in the legend only |
| ✗ | a request that failed |

Throughput is completion tokens by wall time, first request to last answer. Published acceptance is completion tokens by
steps, which reads up to 1 / steps higher than 1 + accepted / steps. A measured value is never divided by one of other
hardware or settings. **Pause** freezes the view, not what is measured; zoom with the mouse, a double click ends it.
"""

SWEEP = """
## Ablations

A cell is one setting of the drafter on one prompt set. **Replay** walks along the target's own greedy texts, which no
setting changes: exactly what decoding would do, many cells at once, with step times measured apart. **Decode** runs the
real loop, at any temperature.

| in the grid | means |
|---|---|
| ★, ring | the best cell of the number that is shown |
| small numbers | 95 % of the acceptance length, by drawing the *n* prompts again |
| hatched | not run, or failed; why is in a table below |
| † | allowed, but not as trained: a block above the trained one |

**Open in Inspect**, or a prompt's name, decodes that prompt here with the cell's setting, and says whether it went as
in the sweep. A sweep that the page runs lies in `sweeps`; the same form goes on where it was stopped. **Open results…**
takes the `results.jsonl` of another machine, and `sweep.json` with it.
"""


def build() -> None:
    """Draw the tab; all of it is constant."""
    with gr.Row(elem_id="dfa-help"):
        with gr.Column(min_width=320):
            gr.Markdown(READING)
            gr.Markdown(SWEEP)
            gr.Markdown(NUMBERS)
        with gr.Column(min_width=320):
            gr.Markdown(KEYS)
            gr.Markdown(LIVE)
            gr.Markdown(WORDS)
