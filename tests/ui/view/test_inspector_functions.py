"""The inspector's pure functions, called in the browser they are written for."""

from __future__ import annotations

import re

import numpy as np
import pytest

from dflash_lab.core.trace.metrics import step_analysis
from dflash_lab.core.trace.whatif import what_if
from dflash_lab.ui.view.assets import style_text
from dflash_lab.ui.view.wire import step_wire, trace_summary
from tests.ui.toytraces import make_trace

pytestmark = pytest.mark.browser


@pytest.fixture
def js(inspect):
    """Evaluates an expression with the module as `inspector`."""
    host = inspect(None)
    return lambda code, arg=None: host.page.evaluate(f"(arg) => {code}", arg)


def test_half_precision_is_exact(js):
    got = js("Array.from({ length: 65536 }, (_, bits) => String(inspector.halfToFloat(bits)))")
    want = np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float64)
    np.testing.assert_array_equal(np.array([float(text.replace("Infinity", "inf")) for text in got]), want)


def test_buffers_arrive(js):
    trace = make_trace(3, 6, 4)
    wire = step_wire(trace, 1)
    unary = np.array(js("[...inspector.decodeBuffer(arg)]", wire["unary"]), np.float32)
    np.testing.assert_array_equal(unary, trace.tensor("unary", 1).ravel())
    added = np.array(js("[...inspector.decodeBuffer(arg)]", wire["edges"]), np.float32)
    want = (trace.tensor("edges", 1) - trace.tensor("unary", 1)[:, None, :]).astype(np.float16).ravel()
    np.testing.assert_array_equal(added.astype(np.float16), want)
    assert js("inspector.decodeBuffer(null)") is None


def test_scores_of_a_step_are_the_recorded_ones(js):
    trace = make_trace(6, 8, 8)
    for i in range(6):
        edges, path = trace.tensor("edges", i), trace.tensor("path", i)
        scores = "step.ids.map((column, j) => column.map((_, r) => step.score(j, r)))"
        got = np.array(js(f"((step) => {scores})(inspector.readStep(arg))", step_wire(trace, i)))
        want = np.stack([edges[j, path[j - 1] if j else 0] for j in range(7)])
        np.testing.assert_allclose(got, want, atol=5e-3)


def test_the_strongest_edges_are_the_strongest(js):
    trace = make_trace(2, 8, 8)
    edges = trace.tensor("edges", 1) - trace.tensor("unary", 1)[:, None, :]
    got = js("inspector.strongest(inspector.readStep(arg), 3, 2).map(({ e }) => e)", step_wire(trace, 1))
    assert got == np.argsort(-edges[3, :, 2])[:5].tolist()


PERCENT = {1: "100", 0.704: "70", 0.0996: "10", 0.052: "5.2", 0.004: ".4", 0.0001: "<.1", 0: "<.1"}


@pytest.mark.parametrize(("p", "text"), PERCENT.items())
def test_percent(js, p, text):
    assert js("inspector.percent(arg)", p) == text


def test_numbers_as_text(js):
    assert js("inspector.score(-1.234)") == "−1.23"
    assert js("inspector.score(1.2, 1, true)") == "+1.2"
    assert js("inspector.score(-0.001)") == "0.00"
    assert js("[inspector.score(null), inspector.score(NaN), inspector.score(-Infinity)]") == ["·", "·", "−∞"]


def test_ink_reads_on_every_colour(js):
    """4.5 to 1 on the whole ramp, in light and dark."""
    ends = [re.findall(f"--dfl-{name}: (#[0-9a-f]{{6}})", style_text()) for name in ("ramp0", "ramp1")]
    assert [len(colours) for colours in ends] == [2, 2]
    ramps = [[[int(end[i : i + 2], 16) for i in (1, 3, 5)] for end in theme] for theme in zip(*ends, strict=True)]
    code = """arg.flatMap(([ramp0, ramp1]) => Array.from({ length: 101 }, (_, i) => {
      const rgb = inspector.ramp({ ramp0, ramp1 }, i / 100);
      return [rgb, inspector.inkOn(rgb)];
    }))"""

    def luminance(rgb):
        c = np.array(rgb) / 255
        c = np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)
        return c @ (0.2126, 0.7152, 0.0722)

    for rgb, ink in js(code, ramps):
        a, b = luminance(rgb), {"#000": 0.0, "#fff": 1.0}[ink]
        assert (max(a, b) + 0.05) / (min(a, b) + 0.05) >= 4.5


@pytest.mark.parametrize(("n", "pixels"), [(1, 1400), (20, 1400), (350, 1400), (351, 1400), (5000, 1400), (7, 10)])
def test_bins_hold_every_step(js, n, pixels):
    bins = js(f"inspector.makeBins({n}, {pixels})")
    assert bins["size"] * bins["count"] >= n > bins["size"] * (bins["count"] - 1)
    assert 4 <= bins["width"] <= 16
    assert bins["count"] * bins["width"] <= max(pixels, 4) + 1e-6


def test_every_output_token_knows_its_step_and_origin(js):
    trace = make_trace(25, 8, 8)
    origins = js("inspector.tokenOrigins(arg)", trace_summary(trace))
    want = [(-1, "prefill")]
    for i, record in enumerate(trace.steps):
        last = "bonus" if record.num_accepted == 7 else "correction"
        want += [(i, "accepted")] * record.num_accepted + [(i, last)]
    assert [(at["step"], at["origin"]) for at in origins] == want


@pytest.mark.parametrize("size", [10, 500])
def test_chunks_cover_the_output(js, size):
    summary = trace_summary(make_trace(200, 8, 8))
    chunks = js(f"inspector.makeChunks(arg, {size})", summary)
    assert [k for start, end in chunks for k in range(start, end)] == list(range(len(summary["output"])))
    assert max(end - start for start, end in chunks) <= size


def test_bytes_are_read_together(js):
    assert js("inspector.byteRun('e28099')") == "⟨E2 80 99⟩ → ’"
    assert js("inspector.byteRun('e2')") == "⟨E2⟩"


def test_shortening_keeps_graphemes_whole(js):
    assert js("inspector.shorten('ab👨‍👩‍👧cd', 4)") == "ab👨‍👩‍👧…"
    assert js("inspector.shorten('abcd', 4)") == "abcd"


QUERIES = {
    " BOXED": lambda trace, i: any(trace.token(t).text == " boxed" for t in trace.steps[i].committed_ids),
    "accepted = 0": lambda trace, i: trace.steps[i].num_accepted == 0,
    "Accepted>=5": lambda trace, i: trace.steps[i].num_accepted >= 5,
    "accepted <= 2": lambda trace, i: trace.steps[i].num_accepted <= 2,
    "accepted<3": lambda trace, i: trace.steps[i].num_accepted < 3,
    "accepted > 6": lambda trace, i: trace.steps[i].num_accepted > 6,
    "cause = Drafter": lambda trace, i: step_analysis(trace, i).cause == "drafter",
    "cause=nothing": lambda trace, i: False,
    "zzz": lambda trace, i: False,
}


@pytest.mark.parametrize("query", QUERIES)
def test_a_filter_leaves_the_steps_it_names(js, query):
    trace = make_trace(80, 8, 8)
    code = "((query) => [...inspector.matchingSteps(arg, inspector.tokenOrigins(arg), query)])"
    assert js(f"{code}({query!r})", trace_summary(trace)) == [i for i in range(80) if QUERIES[query](trace, i)]


def test_text_over_several_tokens_is_found_where_it_begins(js):
    trace = make_trace(40, 8, 8, seed=3)
    text, starts, at = trace.header.text, [], 0
    for k, token in enumerate(trace.header.output_ids):
        starts += [k] * len(trace.token(token).text)
    wanted, hits = " sold4", set()
    while (at := text.find(wanted, at)) >= 0:
        owner = [i for i, r in enumerate(trace.steps) if r.start - 40 < starts[at] <= r.start - 40 + r.commit_length]
        hits.add((owner or [0])[0])
        at += 1
    code = f"[...inspector.matchingSteps(arg, inspector.tokenOrigins(arg), {wanted!r})]"
    assert hits
    assert js(code, trace_summary(trace)) == sorted(hits)


@pytest.mark.parametrize("kind", ["dflash2", "dflash"])
def test_the_page_s_what_if_is_python_s(js, kind):
    trace = make_trace(5, 8, 6, kind=kind, seed=4)
    code = """(({ wires }) => wires.map((wire) => {
      const step = inspector.readStep(wire);
      return step.ids.map((column, j) => column.map((_, r) => inspector.whatIf(step, j, r)));
    }))(arg)"""
    got = js(code, {"wires": [step_wire(trace, i) for i in range(5)]})
    for i, columns in enumerate(got):
        for j, column in enumerate(columns):
            for r, found in enumerate(column):
                want = what_if(trace, i, j, r)
                assert found == {
                    "path": list(want.path), "accepted": want.num_accepted, "known": want.known, "exact": want.exact
                }  # fmt: skip
