"""The candidates of one step, without what stands around them."""

from __future__ import annotations

import traitlets

from dflash_lab.ui.widgets.base import TraceWidget


class Grid(TraceWidget):
    """The candidate grid of a step with its details; `step`, `pos` and `selected` are its traits."""

    _show = traitlets.Unicode("grid").tag(sync=True)
