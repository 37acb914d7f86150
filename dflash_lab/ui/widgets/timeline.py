"""All steps of a trace in one strip."""

from __future__ import annotations

import traitlets

from dflash_lab.ui.widgets.base import TraceWidget


class StepTimeline(TraceWidget):
    """Proposals accepted and milliseconds by step; drag it to move. Link its `step` to a `Grid`'s."""

    _show = traitlets.Unicode("timeline").tag(sync=True)
