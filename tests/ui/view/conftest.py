"""A page that hosts the inspector as Gradio or a notebook would, with nothing of either."""

from __future__ import annotations

import json

import pytest

from dflash_lab.ui.view.assets import module_text, style_text
from dflash_lab.ui.view.wire import step_wire, trace_summary

BASE = "http://inspector.localhost/"
PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>host</title>
<link rel="stylesheet" href="inspector.css"><style>body { margin: 0 }</style></head><body><main id="el"></main>
<script type="module">
import * as inspector from "./inspector.js";
const json = (path) => fetch(path).then((r) => (r.ok ? r.json() : Promise.reject(new Error("no such step on disk"))));
window.inspector = inspector;
window.selected = [];
window.links = [];
window.start = (options = {}, summary = undefined) => {
  window.dispose = inspector.mount(document.getElementById("el"), {
    summary, getStep: (i) => json(`step/${i}`), testing: true,
    onSelect: (at) => selected.push(at), onPermalink: (at) => links.push(at), ...options,
  });
  return window.__dflashIdle?.();
};
window.ready = json("setup").then(({ summary, options }) => start(options, summary));
</script></body></html>"""


class Host:
    """A page with the inspector on it."""

    def __init__(self, page, trace):
        self.page, self.trace = page, trace
        self.fetched: list[int] = []
        self.broken: set[int] = set()

    def serve(self, route) -> None:
        """Answers the page's requests from memory."""
        path = route.request.url.removeprefix(BASE)
        if path.startswith("step/"):
            step = int(path.removeprefix("step/"))
            self.fetched.append(step)
            if step in self.broken:
                # An answer with an error status would be logged by the browser as a console error.
                return route.fulfill(body="not json", content_type="text/plain")
            return route.fulfill(body=json.dumps(step_wire(self.trace, step)), content_type="application/json")
        kinds = {"": (PAGE, "text/html"), "inspector.js": (module_text(), "text/javascript")}
        kinds |= {"inspector.css": (style_text(), "text/css"), "setup": (self.setup, "application/json")}
        body, kind = kinds.get(path, ("", "text/plain"))
        return route.fulfill(body=body, content_type=kind)

    def open(self, **options) -> Host:
        """Loads the page and waits until its first step is drawn."""
        summary = trace_summary(self.trace) if self.trace is not None else None
        self.setup = json.dumps({"summary": summary, "options": options}, allow_nan=False)
        self.page.route(BASE + "**", self.serve)
        self.page.goto(BASE)
        self.page.evaluate("window.ready")
        return self

    def idle(self) -> None:
        """Waits until nothing is pending."""
        self.page.evaluate("window.__dflashIdle()")

    def press(self, *keys: str) -> None:
        """Presses keys one after the other and waits."""
        for key in keys:
            self.page.keyboard.press(key)
        self.idle()

    @property
    def step(self) -> int:
        """The step that is shown, from 0, as assistive technology hears it."""
        return int(self.page.get_by_role("slider").get_attribute("aria-valuenow")) - 1

    def focused(self) -> str:
        """Role of the focused element."""
        return self.page.evaluate("document.activeElement.getAttribute('role') ?? document.activeElement.tagName")


@pytest.fixture
def inspect(page):
    """`inspect(trace, **host options)` opens the inspector on a fake host; None is a host without a trace."""
    return lambda trace, **options: Host(page, trace).open(**options)
