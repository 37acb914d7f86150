"""Beside z-lab's own client on the same fake server: the same requests in the same order, the same throughput."""

from __future__ import annotations

import argparse
import random
import re

import pytest
from toy_runs import PromptSet, measure, prompts

from dflash_lab.core.serve.fake_model import FakeModel
from dflash_lab.core.serve.fake_server import FakeServer
from dflash_lab.core.serve.records import LoadPlan
from dflash_lab.core.serve.report import report

OURS = {"return_spec_tokens_details"}
"""What we add to a request."""


def in_the_order_of_seed_42(count: int) -> list:
    """Prompts so that a shuffle by z-lab's seed gives them in their own order."""
    order = list(range(count))
    random.Random(42).shuffle(order)
    rows: list = [None] * count
    for place, index in enumerate(order):
        rows[index] = prompts(count)[place]
    return rows


@pytest.mark.parametrize(("concurrency", "step_s"), [(1, 0.0005), (4, 0.012)])
def test_the_same_load_as_z_labs_client(concurrency, step_s, tmp_path, monkeypatch, capsys):
    zlab = pytest.importorskip("dflash.benchmark", reason="z-lab's dflash is not installed")
    rows = in_the_order_of_seed_42(40)
    monkeypatch.setattr(zlab, "load_and_process_dataset", lambda name: [{"turns": [row.text]} for row in rows])
    monkeypatch.setattr(zlab, "tqdm", lambda items, **options: items)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    model = FakeModel(output_tokens=120, step_s=step_s)
    with FakeServer(model) as server:
        zlab.run(
            argparse.Namespace(
                backend="openai", base_url=server.url, model=model.name, dataset="gsm8k", num_prompts=8,
                concurrency=concurrency, max_new_tokens=2048, temperature=1.0, top_p=0.95, top_k=20,
                reasoning="xhigh", timeout_s=60,
            )
        )  # fmt: skip
        theirs = list(server.ledger.bodies)
        plan = LoadPlan(
            "toy", 8, concurrency, temperature=1.0, top_p=0.95, top_k=20, reasoning="xhigh", num_warmup=concurrency
        )
        numbers = report(measure(server.url, plan, tmp_path / "run.jsonl", PromptSet("toy", prompts(40)).prompts))
        ours = server.ledger.bodies[len(theirs) + 1 :]  # after the probe's
    by_text = {body["messages"][0]["content"]: body for body in ours}
    for body in theirs:
        assert {key: value for key, value in by_text[body["messages"][0]["content"]].items() if key not in OURS} == body
    if concurrency == 1:
        assert [body["messages"] for body in ours] == [body["messages"] for body in theirs], "one after another"
    printed = capsys.readouterr().out
    throughput = float(re.search(r"Throughput: +([\d,.]+) tok/s", printed)[1].replace(",", ""))
    if concurrency > 1:  # long enough for the clients' own time not to count
        assert numbers.throughput_tok_s == pytest.approx(throughput, rel=0.05)
    # It looks for the statistics where SGLang does not put them.
    assert "Accept length" not in printed
    assert numbers.zlab_acceptance_length == pytest.approx(model.acceptance_length, rel=0.15)
