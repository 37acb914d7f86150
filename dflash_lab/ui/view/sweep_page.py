"""A sweep's report as one HTML file that opens offline: Plotly's script, the figures, the tables, nothing fetched."""

from __future__ import annotations

import html
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Any

from dflash_lab.ui.view.assets import plotly_js
from dflash_lab.ui.view.charts import plotly_template
from dflash_lab.ui.view.export import script_json
from dflash_lab.ui.view.sweep import slice_figures

PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:">
<title>$title</title>
<style>
html { color-scheme: light dark }
body { margin: 0 auto; max-width: 1400px; padding: 12px 20px; font: 15px/1.45 system-ui, sans-serif;
  background: #ffffff; color: #1f2328 }
h1 { font-size: 1.4em } h2 { font-size: 1.1em; margin: 1.6em 0 .4em }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(520px, 100%), 1fr)); gap: 18px }
figure { margin: 0; min-width: 0 } figcaption { font-size: .87em }
.plot { height: 380px }
.scroll { overflow-x: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: 3px 10px; text-align: right; border-bottom: 1px solid rgba(128,128,128,.35) }
th:first-child, td:first-child { text-align: left }
select { font: inherit; padding: 3px 6px }
.note { font-size: .87em; margin: .4em 0 }
@media (prefers-color-scheme: dark) { body { background: #10151f; color: #d5dae1 } }
</style>
</head>
<body>
<main>
<h1>$title</h1>
$warnings
<p $hidden><label for="slice">What is drawn: </label><select id="slice">$options</select></p>
<div class="figures" id="figures"></div>
<noscript><p>The pictures need JavaScript; the tables below do not.</p></noscript>
$tables
</main>
<script>$plotly</script>
<script type="application/json" id="data">$data</script>
<script>
"use strict";
const { slices, templates } = JSON.parse(document.getElementById("data").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)");
const place = document.getElementById("figures");
const chosen = document.getElementById("slice");
function draw() {
  const template = templates[dark.matches ? "dark" : "light"];
  place.querySelectorAll(".plot").forEach((plot) => Plotly.purge(plot));
  const figures = slices[Number(chosen.value) || 0] ?? [];
  // All places first: a figure takes the size that its place has when it is drawn.
  place.replaceChildren(...figures.map(({ note }) => {
    const figure = document.createElement("figure");
    const caption = document.createElement("figcaption");
    figure.append(document.createElement("div"), caption);
    figure.firstChild.className = "plot";
    caption.textContent = note;
    return figure;
  }));
  figures.forEach(({ title, data, layout }, i) => {
    const shared = { margin: { l: 64, r: 20, t: 48, b: 52 }, title: { text: title, font: { size: 15 } }, template };
    const plot = place.children[i].firstChild;
    Plotly.newPlot(plot, data, { ...shared, ...layout }, { responsive: true, displaylogo: false });
  });
}
chosen.addEventListener("change", draw);
dark.addEventListener("change", draw);
draw();
</script>
</body>
</html>
""")


def sweep_html(report: Mapping[str, Any]) -> str:
    """The report as a page. Raises BackendError without Plotly, whose script goes into it."""
    grids = report["grids"]
    data = {
        "slices": [slice_figures(report, index) for index in range(len(grids))],
        "templates": {theme: plotly_template(theme) for theme in ("light", "dark")},
    }
    names = [f"{grid['label']} ({grid['mode']}, n = {grid['num_prompts']})" for grid in grids]
    return PAGE.substitute(
        title=html.escape(f"Sweep {Path(report['folder']).name} – dflash-lab"),
        warnings="".join(f'<p role="note">{html.escape(text)}</p>' for text in report["warnings"]),
        hidden="hidden" if len(grids) < 2 else "",
        options="".join(f'<option value="{i}">{html.escape(name)}</option>' for i, name in enumerate(names)),
        tables="".join(map(_table, report["tables"])),
        plotly=plotly_js().read_text(encoding="utf-8"),
        data=script_json(data),
    )


def _table(table: Mapping[str, Any]) -> str:
    head = "".join(f'<th scope="col">{html.escape(text)}</th>' for text in table["head"])
    lines = "".join(
        "<tr>" + "".join(f"<td>{html.escape(text)}</td>" for text in line) + "</tr>" for line in table["lines"]
    )
    note = f'<p class="note">{html.escape(table["note"])}</p>' if table["note"] else ""
    return (
        f'<h2>{html.escape(table["title"])}</h2><div class="scroll" tabindex="0"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>{note}"
    )
