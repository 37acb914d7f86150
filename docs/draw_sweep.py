"""Draw a sweep's results as one SVG: `python docs/draw_sweep.py RESULTS OUT.svg [--metric tok_s]`.

RESULTS is a folder that `sweep run` has made, or a JSON file with its report (`sweep report DIR --json`).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from dflash_lab.core.ablate.report import report
from dflash_lab.core.ablate.results import load_results
from dflash_lab.ui.view.sweep import METRIC_WORDS
from dflash_lab.ui.view.sweep_picture import sweep_svg


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, metavar="RESULTS")
    parser.add_argument("out", type=Path, metavar="OUT.svg")
    parser.add_argument("--metric", choices=METRIC_WORDS, default="mean_acceptance_length")
    options = parser.parse_args()
    if options.results.is_dir():
        found = report(load_results(options.results))
    else:
        found = json.loads(options.results.read_text(encoding="utf-8"))
    part = options.out.with_name(f".{options.out.name}.part")
    part.write_text(sweep_svg(found, options.metric) + "\n", encoding="utf-8")
    part.replace(options.out)


if __name__ == "__main__":
    main()
