"""The grid against a picture of it that was looked at: what no assertion on nodes would notice."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from tests.ui.toytraces import make_trace

pytestmark = pytest.mark.browser

REFERENCE = Path(__file__).with_name("grid.png")
FAR = 60
"""Difference of a channel, of 255, above which a pixel counts as another one: other font renderings stay below."""
MOST = 0.01
"""Share of other pixels that is let pass."""


def test_the_grid_looks_as_it_did(inspect, tmp_path):
    """If the change is meant, look at the new picture and copy it over the reference."""
    image, chops = pytest.importorskip("PIL.Image"), pytest.importorskip("PIL.ImageChops")
    host = inspect(make_trace(12, 8, 8, seed=4), initial={"step": 7})
    taken = tmp_path / "grid.png"
    taken.write_bytes(host.page.locator(".dfl-scroll").screenshot())
    with image.open(io.BytesIO(taken.read_bytes())) as now, image.open(REFERENCE) as before:
        assert now.size == before.size, f"expected {before.size}, got {now.size}: {taken}"
        difference = chops.difference(now.convert("RGB"), before.convert("RGB")).convert("L")
        other = sum(difference.histogram()[FAR:]) / (now.width * now.height)
    assert other <= MOST, f"{100 * other:.1f} % of the pixels differ from {REFERENCE.name}: {taken}"
