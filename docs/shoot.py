"""Pictures of every tab, light and dark, beside this file: `make screenshots`, or `shoot.py TAB ...` for some.

Decodes once with the bundled pair. The Live tab is shown over a fake server that says so, at the pace of the published
table: its looks, no measurement.
"""

from __future__ import annotations

import asyncio
import dataclasses
import io
import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from dflash_lab.core.data.prompts import Prompt, PromptSet
from dflash_lab.core.serve.endpoint import Endpoint
from dflash_lab.core.serve.fake_model import FakeModel
from dflash_lab.core.serve.fake_server import FakeServer
from dflash_lab.core.serve.measure import make_task, next_go, send
from dflash_lab.core.serve.probe import probe
from dflash_lab.core.serve.records import LoadPlan
from dflash_lab.ui.app import build
from dflash_lab.ui.app.live import LiveStore
from dflash_lab.ui.app.session import read_traces

HERE = Path(__file__).parent
TABS = {
    "inspect": "#dfa-inspector .dfl-grid td",
    "generate": "#dfa-run",
    "live": ".dfl-live-survival .main-svg",
    "compare": "#dfa-comparison .dfl-grid td",
    "sweep": ".dfl-figure:nth-child(3) .main-svg",
    "help": "#dfa-help h2",
}
"""By tab what is there once it is drawn."""
SIZE = {"width": 1440, "height": 1000}


def shoot(page: Page, name: str) -> None:
    """The page as it stands, in `docs/NAME.png`."""
    with Image.open(io.BytesIO(page.screenshot())) as picture:
        # All colours are kept: a palette would bend the ramp that the fill of a cell is read by.
        picture.convert("RGB").save(HERE / f"{name}.png", optimize=True)


def decode(page: Page) -> None:
    """Fill the Generate tab with a finished run."""
    page.get_by_label("Max tokens").fill("128")
    page.get_by_role("button", name="Start").click()
    page.get_by_text("Finished:").wait_for(timeout=120_000)


ARMS = {
    "Autoregressive": FakeModel(acceptance=None, step_s=0.0049),
    "MTP": FakeModel(acceptance=(0.88, 0.78, 0.7), algorithm="NEXTN", drafter=None, step_s=0.0092),
    "DFlash 2": FakeModel(acceptance=(0.91, 0.83, 0.76), step_s=0.0088),
}
"""How each method drafts, and how long its step takes with one request."""


def measure(model: FakeModel, concurrency: int, path: Path) -> None:
    """A run on a fake server with the settings of the published table."""
    prompts = tuple(Prompt(f"gsm8k/{i}", f"What is {i} and {i}?", "math", "gsm8k") for i in range(200))
    sampling = {"temperature": 1.0, "top_p": 0.95, "top_k": 20, "reasoning": "xhigh", "max_new_tokens": 4096}
    plan = LoadPlan("gsm8k", 12 + 4 * concurrency, concurrency, stream=True, **sampling)
    task = make_task(PromptSet("gsm8k", prompts, "made up", len(prompts), 0, ()), plan)

    async def go(url: str) -> None:
        async with Endpoint(url) as endpoint:
            await send(endpoint, task, next_go(task, await probe(endpoint), path))

    slower = 1 + 0.15 * (concurrency - 1)
    faked = dataclasses.replace(
        model, step_s=slower * model.step_s, prefill_s=0.03, output_tokens=420, settings={"version": "fake"}
    )
    with FakeServer(faked) as server:
        asyncio.run(go(server.url))


def fake_runs(folder: Path) -> list[Path]:
    """Runs of all methods with one request and with eight, the one to be shown last."""
    paths = []
    for concurrency in (8, 1):
        for name, model in ARMS.items():
            paths.append(folder / f"{name.lower().replace(' ', '')}-c{concurrency}.jsonl")
            measure(model, concurrency, paths[-1])
    return paths


def main() -> None:
    tabs = sys.argv[1:] or list(TABS)
    folder = tempfile.TemporaryDirectory()
    runs = fake_runs(Path(folder.name)) if "live" in tabs else []
    app = build.build_app(read_traces([]), servers=LiveStore(runs))
    url = build.serve(app, server_name="127.0.0.1", quiet=True)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for scheme in ("light", "dark"):
            page = browser.new_page(viewport=SIZE, color_scheme=scheme)
            for tab in tabs:
                page.goto(f"{url}?testing=1&tab={tab}")
                page.locator(TABS[tab]).first.wait_for()
                if tab == "generate":
                    decode(page)
                page.wait_for_timeout(1500)
                shoot(page, f"{tab}-{scheme}")
        browser.close()
    app.close(verbose=False)
    folder.cleanup()


if __name__ == "__main__":
    main()
