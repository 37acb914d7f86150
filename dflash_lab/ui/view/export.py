"""One trace as one HTML file that opens offline: the inspector's module, its style and the data, nothing fetched."""

from __future__ import annotations

import html
import json
from string import Template
from typing import TYPE_CHECKING, Any

from dflash_lab.core.errors import RequestError
from dflash_lab.ui.view.assets import module_text, style_text
from dflash_lab.ui.view.wire import step_wire, trace_summary

if TYPE_CHECKING:
    from dflash_lab.core.trace.schema import Trace

LARGE = 50_000_000
"""Bytes from which a page is slow to open, and worth a word before it is written."""
SAMPLED = 8
"""Steps that an estimate of the size looks at, about."""

PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:">
<title>$title</title>
<style>
html { color-scheme: light dark }
body { margin: 0; background: Canvas }
@media (prefers-color-scheme: dark) { body { background: #10151f } }
#inspector { max-width: 1680px; margin: 0 auto }
$style
</style>
</head>
<body>
<main id="inspector"></main>
<noscript><pre>$fallback</pre></noscript>
<script type="application/json" id="data">$data</script>
<script type="module">
$module
const data = JSON.parse(document.getElementById("data").textContent);
const testing = new URLSearchParams(location.search).has("testing");
mount(document.getElementById("inspector"), {
  summary: data.summary, initial: data.initial, testing, getStep: async (i) => data.steps[i],
});
document.querySelector(".dfl").focus();
</script>
</body>
</html>
""")


def export_html(trace: Trace, step: int = 0) -> str:
    """The whole trace as one HTML page, opened at step number `step` (from 0).

    Raises RequestError if there is no such step.
    """
    if trace.steps and not 0 <= step < len(trace):
        raise RequestError(f"--step must be in 0..{len(trace) - 1} for this trace, got {step}")
    data = {
        "summary": trace_summary(trace),
        "steps": [step_wire(trace, i) for i in range(len(trace))],
        "initial": {"step": step},
    }
    return PAGE.substitute(
        title=html.escape(f"{trace.name} – dflash-lab"),
        style=style_text(),
        fallback=html.escape(f"This page needs JavaScript. The output without it:\n\n{trace.header.text}"),
        data=script_json(data),
        module=module_text(),
    )


def page_bytes(trace: Trace) -> int:
    """About how large `export_html` of `trace` will be, from a few of its steps."""
    some = range(0, len(trace), max(1, len(trace) // SAMPLED))
    steps = [len(script_json(step_wire(trace, i))) for i in some]
    whole = len(trace) * sum(steps) // len(steps) if steps else 0
    return whole + len(script_json(trace_summary(trace))) + len(module_text()) + len(style_text())


def script_json(data: Any) -> str:
    """`data` as JSON that cannot end the script element it stands in."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text
