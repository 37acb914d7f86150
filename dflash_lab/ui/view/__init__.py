"""Records to pictures: a trace becomes wire dicts, terminal text or one HTML file; no Gradio, no anywidget.

wire.py      trace_summary(trace), step_wire(trace, i): what the page is given, JSON-ready
layers.py    token_layers(trace): what the target found of each output token
text.py      how any token reads on one line, whatever is in it
terminal.py  draw_step(trace, i): a step for a terminal
still.py     step_html(trace, i): a step as a table that needs no script
export.py    export_html(trace, step): one offline file
charts.py    survival_curves(traces), curves_svg(curves), plotly_template(theme): acceptance by position
opening.py   example_trace(), second_example(), opening_step(trace): what is shown before anyone chose
comparison.py  comparison_wire(a, b): two traces side by side, JSON-ready
sweep.py     slice_figures(report, i), grid_cells(grid, metric), grid_svg(grid): a sweep in pictures
sweep_page.py  sweep_html(report): a sweep as one offline file
assets.py    module_text(), style_text(), STATIC_DIR: the page's module and its style sheet
"""
