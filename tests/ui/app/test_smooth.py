"""Thousands of steps: the first picture comes soon, and every step of a scrub is on the screen in time."""

from __future__ import annotations

import time

import pytest
from toytraces import make_trace

from dflash_lab.core.trace import store as trace_store
from dflash_lab.ui.app.session import TraceStore

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

# One key press after the other, each timed until the frame after its step was in the grid.
SCRUB = """async (starts) => {
  const slider = document.querySelector("#dfa-inspector [role=slider]");
  const frame = () => new Promise((resolve) => requestAnimationFrame(resolve));
  const times = [];
  slider.focus();
  for (const start of starts) {
    const began = performance.now();
    slider.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight", bubbles: true }));
    const shown = () => document.querySelector(".dfl-grid thead th:nth-child(3)").title;
    while (!shown().startsWith(`position 1, sequence ${start + 1}:`)) await frame();
    await frame();
    times.push(performance.now() - began);
  }
  return times;
}"""


def test_200_steps_of_5000_and_the_first_picture(page, serve, tmp_path):
    trace_store.save(make_trace(5000, 16, 16), tmp_path / "long.safetensors")
    store = TraceStore(make_trace(2))
    entry = store.open(tmp_path / "long.safetensors")
    url = f"{serve(store)}?testing=1&step=1000"
    starts = [record.start for record in entry.trace.steps[1001:1201]]
    seconds, late = [], []
    # The best of a few: the machine may be busy with something else.
    while len(late) < 6 and not (seconds and min(seconds) < 2 and min(late) < 60):
        page.goto("about:blank")
        began = time.monotonic()
        page.goto(url)
        page.locator("#dfa-inspector .dfl-grid td").first.wait_for()
        seconds.append(time.monotonic() - began)
        times = sorted(page.evaluate(SCRUB, starts))
        late.append(times[int(0.95 * len(times))])
    print(f"first picture {min(seconds):.2f} s, p95 of a step {min(late):.0f} ms")
    assert min(seconds) < 2
    assert min(late) < 60
