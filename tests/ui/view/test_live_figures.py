"""Figures of a live server: what is drawn, what is left out, and what is said instead. No browser, no Plotly."""

from __future__ import annotations

import dataclasses
import json

import pytest

from dflash_lab.core.serve.fake_model import FakeModel
from dflash_lab.core.serve.records import ServerInfo, Snapshot
from dflash_lab.ui.view import live_figures as figures
from dflash_lab.ui.view.live import (
    late_window_s,
    load_series,
    position_chart,
    published_beside,
    run_acceptance,
    server_series,
)
from dflash_lab.ui.view.live_view import run_view, watch_view
from tests.ui.toyruns import CARD, fake_run

GB300 = ServerInfo(
    "http://127.0.0.1:1", "sglang", "Qwen/Qwen3.8-Flash-Next-FP8", speculation=True, method="DFlash 2",
    drafts_per_step=3, hardware="NVIDIA GB300", num_devices=1,
)  # fmt: skip
NO_SERIES = server_series([])


def named(figure, name):
    return next(trace for trace in figure["data"] if trace.get("name", "").startswith(name))


def texts(figure) -> list[str]:
    return [text for trace in figure["data"] for text in trace.get("text", ()) if text]


def test_every_figure_is_json_and_has_its_data_or_a_reason(tmp_path):
    for model in (FakeModel(), FakeModel(acceptance=None), FakeModel(backend="other"), FakeModel(per_request=False)):
        view = run_view(fake_run(tmp_path, model))
        json.dumps(view, allow_nan=False)
        assert [figure["id"] for figure in view["figures"]] == [
            "throughput", "acceptance", "requests", "histogram", "survival",
        ]  # fmt: skip
        assert all(bool(figure["data"]) != bool(figure["empty"]) for figure in view["figures"])


def test_histogram_and_survival_are_the_runs_own(tmp_path):
    run = fake_run(tmp_path, FakeModel())
    acceptance = run_acceptance(run)
    (bars,) = figures.histogram(position_chart(acceptance), "")["data"]
    assert bars["customdata"] == list(acceptance.acceptance_histogram)
    assert sum(bars["y"]) == pytest.approx(1, abs=1e-4)
    survival = named(figures.survival(position_chart(acceptance), ""), "accepted up to here")
    assert survival["y"] == pytest.approx(acceptance.survival, abs=1e-5)
    assert 1 + sum(survival["y"]) == pytest.approx(acceptance.mean_acceptance_length, abs=1e-4)


def test_published_values_stand_beside_on_the_same_hardware():
    load = {"t_s": [1.0, 2.0], "tok_s": [300.0, 310.0]}
    figure = figures.throughput(load, None, published_beside(GB300, "gsm8k", "1"))
    lines = [trace for trace in figure["data"] if trace.get("legendgroup")]
    assert [line["y"][0] for line in lines] == [205.4, 326.0, 368.2]
    assert texts(figure) == ["◇ Autoregressive 205.4", "◇ MTP 326.0", "◇ DFlash 2 368.2"]
    assert {line["visible"] for line in lines} == {True}
    assert {line["name"] for line in lines} == {"◇ published, 1x NVIDIA GB300, other settings"}
    assert "model card Qwen3.8-Flash-Next-DFlash2" in lines[0]["hovertemplate"]
    assert len({line["x"][1] for line in lines}) == 3
    assert figure["layout"]["yaxis"]["autorangeoptions"]["include"] > 368.2


@pytest.mark.parametrize("hardware", ["NVIDIA H200", None])
def test_other_hardware_is_in_the_legend_and_drawn_on_demand(hardware):
    info = dataclasses.replace(GB300, hardware=hardware)
    load = {"t_s": [1.0, 2.0], "tok_s": [20.0, 21.0]}
    figure = figures.throughput(load, None, published_beside(info, "gsm8k", "1"))
    lines = [trace for trace in figure["data"] if trace.get("legendgroup")]
    assert {line["visible"] for line in lines} == {"legendonly"}
    assert {line["name"] for line in lines} == {"◇ published, 1x NVIDIA GB300, other hardware"}
    assert figure["layout"]["yaxis"]["autorangeoptions"]["include"] < 30


def test_published_values_alone_are_no_measurement():
    published = published_beside(GB300, "gsm8k", "1")
    assert figures.throughput(None, NO_SERIES, published)["empty"] == "No tokens yet."
    assert figures.acceptance(None, NO_SERIES, published, "", "why")["data"] == []


def test_many_points_are_thinned_and_the_newest_stays():
    load = {"t_s": [float(i) for i in range(1234)], "tok_s": [float(i) for i in range(1234)]}
    (line,) = figures.throughput(load, None, [])["data"]
    assert len(line["x"]) <= figures.MOST_POINTS
    assert (line["x"][-1], line["y"][-1]) == (1233.0, 1233.0)


def test_failures_are_crosses_and_their_words_are_no_markup():
    series = server_series([Snapshot(10.0 + i, "metrics", running=2, waiting=i) for i in range(3)])
    failures = [{"t_s": 1.5, "kind": "status", "message": "<b>HTTP 500</b>"}]
    cross = named(figures.requests(series, failures), "failed")
    assert cross["text"] == ["status: &lt;b&gt;HTTP 500&lt;/b&gt;"]
    assert figures.requests(server_series([]), failures)["data"] == []


def test_off_dead_and_unknown_do_not_look_alike(tmp_path):
    said = {}
    for name, model in {
        "off": FakeModel(acceptance=None),
        "dead": FakeModel(acceptance=(0.0, 0.0, 0.0)),
        "unknown": FakeModel(backend="other"),
        "silent": FakeModel(per_request=False, metrics=False),
    }.items():
        view = run_view(fake_run(tmp_path, model))
        said[name] = (view["speculation"], view["figures"][3]["empty"])
    assert said["off"][0] == "speculation is not active: the target decodes alone"
    assert said["dead"] == ("speculation is active but the drafter contributes nothing", None)
    assert said["unknown"][0] == "the server does not tell whether it speculates"
    assert len(set(said.values())) == 4


def test_statistics_that_do_not_add_up_are_not_drawn(tmp_path):
    model = FakeModel(distort=lambda fields: fields | {"spec_verify_ct": fields["spec_verify_ct"] + 1})
    view = run_view(fake_run(tmp_path, model))
    assert "do not add up" in view["figures"][3]["empty"]
    assert any("steps = sum(histogram)" in warning for warning in view["warnings"])


def test_a_run_that_goes_on_ends_where_open_requests_began(tmp_path):
    run = fake_run(tmp_path, FakeModel(), concurrency=4, num_prompts=16)
    whole = load_series(run)
    run.ends.clear()
    assert run.status == "running"
    ends = sorted(record.end_at_s for record in run.attempts)
    part = load_series(run)
    known = sum(part["tok_s"][i] for i in range(len(part["t_s"]))) > 0
    assert known
    assert 2 * part["t_s"][-1] <= ends[-4] - run.segments[0].begin_at_s + 1e-6 < 2 * whole["t_s"][-1] + 1e-6


def test_a_measured_cell_names_what_is_published_of_it(tmp_path):
    view = run_view(fake_run(tmp_path, FakeModel(), **CARD))
    beside = {item["name"]: item["published"] for item in view["numbers"]}
    assert beside["throughput"] == ["◇ 368.2 on 1x NVIDIA GB300"]
    assert beside["tokens / step"] == ["◇ 3.26 on 1x NVIDIA GB300"]
    assert beside["latency"] == []
    (table,) = view["published"]
    assert (table["same_hardware"], table["differs"]) == (True, [])


@pytest.mark.parametrize(
    ("name", "dataset", "said"),
    [
        ("Qwen/Qwen3.6-35B-A3B", "gsm8k", "the settings are known and the numbers are not"),
        ("nobody/Knows-1B", "gsm8k", "Nothing is published of nobody/Knows-1B that is known here."),
        ("Qwen/Qwen3.8-Flash-Next-FP8", "own", "Nothing is published of own on 1x NVIDIA GB300; the table has GSM8K"),
    ],
)
def test_what_is_not_known_is_said(tmp_path, name, dataset, said):
    view = run_view(fake_run(tmp_path, FakeModel(name=name), dataset=dataset))
    assert view["published"] == []
    assert said in "".join(view["missing"])


def test_a_watch_goes_from_nothing_to_numbers():
    assert watch_view(None, [], 5.0, "running", None)["message"] == "Asking the server…"
    snapshots = [
        Snapshot(10.0 + i, "metrics", running=2, output_tokens=100 * i, num_steps=40 * i, num_accepted=60 * i,
                 num_proposed=120 * i, accepted_by_position=(30 * i, 20 * i, 10 * i))
        for i in range(4)
    ]  # fmt: skip
    view = watch_view(GB300, snapshots, 5.0, "running", None)
    values = {item["name"]: item["value"] for item in view["numbers"]}
    assert values["throughput"] == pytest.approx(100)
    assert values["acceptance length"] == pytest.approx(2.5)
    assert values["acceptance rate"] == pytest.approx(0.5)
    assert view["figures"][0]["data"][0]["x"][0] == 6.0
    (bars,) = view["figures"][3]["data"]
    assert bars["customdata"] == [30, 30, 30, 30]


def test_a_restarted_server_is_a_gap():
    snapshots = [Snapshot(float(i), "metrics", running=1, output_tokens=n) for i, n in enumerate((100, 200, 50, 150))]
    series = server_series(snapshots)
    assert series["tok_s"] == [100.0, None, 100.0]
    assert series["restarts"] == [2.0]


def test_counters_that_come_late_are_averaged():
    """SGLang counts a request's tokens when it ends: between two looks that is all or nothing."""
    tokens = [0, 0, 0, 600, 600, 600, 1200, 1200, 1200, 1800, 1800, 1800, 2400]
    late = [Snapshot(10.0 + 2 * i, "metrics", running=1, output_tokens=n) for i, n in enumerate(tokens)]
    assert late_window_s(GB300, late) == 10
    assert max(server_series(late)["tok_s"]) == 300
    smooth = server_series(late, window_s=late_window_s(GB300, late))["tok_s"]
    assert all(60 <= rate <= 120 for rate in smooth[4:])
    assert late_window_s(dataclasses.replace(GB300, backend="vllm"), late) == 0
    steady = [dataclasses.replace(snapshot, decoded_tokens=5) for snapshot in late]
    assert late_window_s(GB300, steady) == 0
