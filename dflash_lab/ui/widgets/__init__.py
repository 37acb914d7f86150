"""The inspector in a notebook. Needs `pip install 'dflash-lab[notebook]'`; without a display nothing raises.

base.py      TraceWidget: step, pos, selected; steps sent on demand; a static picture for where no widget lives
inspector.py inspect(trace): the whole inspector, as a widget or as one page in a frame
grid.py      Grid: the candidates of a step
timeline.py  StepTimeline: the strip of steps and their timings
curve.py     AcceptanceCurve: how far blocks are accepted, as a Plotly figure
live.py      Live: a decode in a worker thread, watched while it runs
server.py    LiveServer: a live server, or a run on one, watched while it goes on
sweep.py     SweepGrid: a sweep's results, block size by candidates
static/      what the widgets add to the inspector's module and style sheet
"""
