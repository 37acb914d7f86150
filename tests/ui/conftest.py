"""A headless Chromium for everything under tests/ui: no console error and no outside request goes unnoticed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --disable-background-networking --disable-component-update "
    "--disable-sync --font-render-hinting=none --force-device-scale-factor=1"
).split()
AT_HOME = {"127.0.0.1", "localhost", "inspector.localhost", ""}


@pytest.fixture(scope="session")
def browser() -> Iterator:
    """The system's Chromium, one for the session."""
    playwright = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no chromium on this machine; Debian: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def page(browser) -> Iterator:
    """A fresh page, 1440 px wide; the test fails if it logs an error or asks anything of another machine."""
    context = browser.new_context(viewport={"width": 1440, "height": 1000}, color_scheme="light")
    page = context.new_page()
    problems: list[str] = []
    page.on("console", lambda message: message.type == "error" and problems.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: problems.append(f"exception: {error}"))
    page.on("request", lambda request: _at_home(request.url) or problems.append(f"outside request: {request.url}"))
    yield page
    context.close()
    assert problems == []


def _at_home(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme in ("file", "data", "blob", "about") or parts.hostname in AT_HOME
