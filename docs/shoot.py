"""Pictures of every tab, light and dark, beside this file: `make screenshots`. Decodes once with the bundled pair."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from dflash_lab.ui.app import build
from dflash_lab.ui.app.session import read_traces

HERE = Path(__file__).parent
TABS = {
    "inspect": "#dfa-inspector .dfl-grid td",
    "generate": "#dfa-run",
    "compare": "#dfa-comparison .dfl-grid td",
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


def main() -> None:
    app = build.build_app(read_traces([]))
    url = build.serve(app, server_name="127.0.0.1", quiet=True)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for scheme in ("light", "dark"):
            page = browser.new_page(viewport=SIZE, color_scheme=scheme)
            for tab, drawn in TABS.items():
                page.goto(f"{url}?testing=1&tab={tab}")
                page.locator(drawn).first.wait_for()
                if tab == "generate":
                    decode(page)
                page.wait_for_timeout(1500)
                shoot(page, f"{tab}-{scheme}")
        browser.close()
    app.close(verbose=False)


if __name__ == "__main__":
    main()
