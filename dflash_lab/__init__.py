"""dflash-lab: decode with DFlash 2, keep every step, look at it.

The names below are imported on first use, so that `import dflash_lab` itself loads none of the heavy libraries.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "AcceptanceCurve": "dflash_lab.ui.widgets.curve",
    "DFlashLabError": "dflash_lab.core.errors",
    "GenerateRequest": "dflash_lab.core.types",
    "Grid": "dflash_lab.ui.widgets.grid",
    "Live": "dflash_lab.ui.widgets.live",
    "LiveServer": "dflash_lab.ui.widgets.server",
    "SamplingParams": "dflash_lab.core.types",
    "StepTimeline": "dflash_lab.ui.widgets.timeline",
    "Sweep": "dflash_lab.core.ablate.sweep",
    "SweepGrid": "dflash_lab.ui.widgets.sweep",
    "example_sweep": "dflash_lab.ui.view.opening",
    "example_trace": "dflash_lab.ui.view.opening",
    "export_html": "dflash_lab.ui.view.export",
    "generate": "dflash_lab.core.generate",
    "inspect": "dflash_lab.ui.widgets.inspector",
    "load_pair": "dflash_lab.core.generate",
    "load_prompts": "dflash_lab.core.data.prompts",
    "load_sweep": "dflash_lab.core.ablate.results",
    "load_trace": "dflash_lab.core.trace.store",
    "run_sweep": "dflash_lab.core.ablate.runner",
    "save_trace": "dflash_lab.core.trace.store",
    "trace_metrics": "dflash_lab.core.trace.metrics",
}
_NAMES_AT_HOME = {"load_sweep": "load_results", "load_trace": "load", "save_trace": "save"}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), _NAMES_AT_HOME.get(name, name))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
