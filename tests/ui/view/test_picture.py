"""The grid as a file: whole, well-formed whatever the tokens are, and the same drawing as PNG."""

from __future__ import annotations

import io
import json
import xml.etree.ElementTree as ElementTree

import pytest

from dflash_lab.ui.view.text import visible
from tests.ui.toytraces import make_trace

pytestmark = pytest.mark.browser
NS = "{http://www.w3.org/2000/svg}"


def save(page, kind):
    with page.expect_download() as waiting:
        page.get_by_role("button", name=f"Save the grid as {kind}").click()
    return waiting.value


@pytest.mark.parametrize("hostile", [False, True])
def test_the_svg_has_every_cell_and_the_path(inspect, hostile, tmp_path):
    trace = make_trace(8, 8, 8, hostile=hostile)
    host = inspect(trace, initial={"step": 4})
    saved = save(host.page, "SVG")
    assert saved.suggested_filename == "step-4.svg"
    saved.save_as(tmp_path / "grid.svg")
    tree = ElementTree.parse(tmp_path / "grid.svg")
    texts = {node.text for node in tree.iter(f"{NS}text")}
    short = host.page.evaluate("(all) => all.map((text) => inspector.shorten(text, 8))", [
        visible(trace.token(int(i)).text) for i in trace.tensor("candidate_ids", 4).ravel()
    ])  # fmt: skip
    assert set(short) <= texts
    paths = [node for node in tree.iter(f"{NS}path") if node.get("d").count("C")]
    assert len(paths) == 7
    assert sum(node.get("stroke-dasharray") == "" for node in paths) == trace.steps[4].num_accepted
    assert host.page.evaluate("window.__pwned") is None


def test_the_what_if_path_is_in_it(inspect, tmp_path):
    host = inspect(make_trace(8, 8, 8), initial={"step": 2, "pos": 3})
    host.page.get_by_role("grid").focus()
    host.press("ArrowDown", "w")
    saved = save(host.page, "SVG")
    saved.save_as(tmp_path / "grid.svg")
    paths = list(ElementTree.parse(tmp_path / "grid.svg").iter(f"{NS}path"))
    assert sum(node.get("stroke-dasharray") == "9 3 2 3" for node in paths) == 5


def test_the_png_is_the_same_drawing(inspect, tmp_path):
    image = pytest.importorskip("PIL.Image")
    host = inspect(make_trace(8, 8, 8), initial={"step": 4})
    saved = save(host.page, "PNG")
    saved.save_as(tmp_path / "grid.png")
    with image.open(io.BytesIO((tmp_path / "grid.png").read_bytes())) as picture:
        assert picture.width > 1500
        assert len(picture.convert("RGB").getcolors(1 << 20)) > 100


def test_without_a_grid_there_is_nothing_to_save(inspect):
    page = inspect(make_trace(3, kind="ar")).page
    assert not page.get_by_role("button", name="Save the grid as SVG").is_visible()


@pytest.mark.parametrize(
    ("text", "written"), [("a<b>&\"'", "a&#60;b&#62;&#38;&#34;&#39;"), ("\0x\ud800", "\ufffdx\ufffd"), ("é👍", "é👍")]
)
def test_any_text_can_stand_in_it(inspect, text, written):
    # As JSON twice, since half a surrogate pair does not travel to the browser by itself.
    code = f"inspector.escapeXml(JSON.parse({json.dumps(json.dumps(text))}))"
    assert inspect(None).page.evaluate(code) == written
