"""The acceptance curve: a Plotly figure without a share button, and the same as a picture."""

import json
from xml.etree import ElementTree

import pytest
from toytraces import make_trace

from dflash_lab.core.errors import RequestError
from dflash_lab.core.trace.metrics import trace_metrics

pytest.importorskip("plotly")
from dflash_lab.ui.widgets.curve import PLOTLY_MIME, AcceptanceCurve


def test_one_trace_is_its_survival():
    trace = make_trace(30)
    (curve,) = AcceptanceCurve(trace).curves
    assert curve.values == trace_metrics(trace).survival
    assert curve.acceptance_length == pytest.approx(1 + sum(curve.values))


def test_traces_under_one_name_are_pooled():
    traces = [make_trace(10), make_trace(40, seed=1, skill=0.6)]
    both, first = AcceptanceCurve({"both": traces, "first": traces[0]}).curves
    steps = [step for trace in traces for step in trace.steps]
    assert both.values[0] == pytest.approx(sum(step.num_accepted >= 1 for step in steps) / 50)
    assert first.values == trace_metrics(traces[0]).survival


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_what_a_notebook_gets(theme):
    name = "<b>bold</b> & ${x}"
    bundle = AcceptanceCurve({name: make_trace(30), "other": make_trace(30, seed=2)}, theme)._repr_mimebundle_()
    figure = bundle[PLOTLY_MIME]
    json.dumps(figure, allow_nan=False)
    assert "sendChartToCloud" in figure["config"]["modeBarButtonsToRemove"]
    assert figure["layout"]["template"]["layout"]["modebar"]["remove"] == ["sendChartToCloud"]
    assert figure["layout"]["template"]["layout"]["paper_bgcolor"] == "rgba(0,0,0,0)"
    assert "<b>" not in figure["data"][0]["name"]
    picture = ElementTree.fromstring(bundle["image/svg+xml"])
    assert any(name in (node.text or "") for node in picture.iter())
    assert bundle["text/plain"].count("acceptance length") == 2


@pytest.mark.parametrize("trace", [make_trace(0), make_trace(3, kind="ar")])
def test_nothing_proposed_is_an_empty_curve(trace):
    bundle = AcceptanceCurve(trace)._repr_mimebundle_()
    ElementTree.fromstring(bundle["image/svg+xml"])
    assert "acceptance length 1.00" in bundle["text/plain"]


def test_an_unknown_theme_is_named():
    with pytest.raises(RequestError, match="theme must be light or dark, got 'blue'"):
        AcceptanceCurve(make_trace(1), "blue")
