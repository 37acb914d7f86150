"""Cells on a local Ray of two workers: the rows of this process, each computed once, and failures in their place."""

import dataclasses
import json

import pytest

from dflash_lab.core.ablate import cluster
from dflash_lab.core.ablate.report import report
from dflash_lab.core.ablate.results import ROWS, load_results
from dflash_lab.core.ablate.runner import run_sweep
from dflash_lab.core.ablate.sweep import Sweep
from dflash_lab.core.errors import BackendError


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(BackendError, match=r"ray is not installed; pip install 'dflash-lab\[ray\]'"):
        cluster.OnRay()


@pytest.fixture
def two_workers():
    ray = pytest.importorskip("ray", reason="ray is an extra of its own: pip install 'dflash-lab[ray]'")
    ray.init(num_cpus=2, log_to_driver=False, configure_logging=False, include_dashboard=False)
    yield ray
    ray.shutdown()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:::ray", "ignore::ResourceWarning", "ignore::FutureWarning")
def test_two_workers_compute_what_one_process_does(disk_pair, tmp_path, two_workers):
    sweep = Sweep(
        target=str(disk_pair.target),
        drafter=(str(disk_pair.drafter),),
        dataset=(str(disk_pair.prompts),),
        num_prompts=3,
        max_new_tokens=20,
        block_size=(2, 6),
        num_candidates=(1, 4),
        conv=(True, False),
    )
    said = []
    for mode in ("replay", "decode"):
        there = dataclasses.replace(sweep, mode=mode)
        outcome = run_sweep(there, tmp_path / "ray", executor=cluster.OnRay(), notify=said.append)
        assert (outcome.num_computed, outcome.failed) == (8, ())
        assert run_sweep(there, tmp_path / "here").num_computed == 8
    assert "2 workers, a CPU each" in said
    assert two_workers.is_initialized(), "a cluster that was there is left"
    numbers = {}
    for place in ("ray", "here"):
        rows = load_results(tmp_path / place).rows
        numbers[place] = {row["key"]: (row["output_hash"], row["mean_acceptance_length"]) for row in rows}
    assert numbers["ray"] == numbers["here"]
    assert report(load_results(tmp_path / "ray"))["agreement"]["num_equal"] == 8
    keys = [json.loads(line)["key"] for line in (tmp_path / "ray" / ROWS).read_text().splitlines()]
    assert len(keys) == len(set(keys)) == 16
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text((disk_pair.drafter / "config.json").read_text())
    (broken / "model.safetensors").write_bytes(b"nothing")
    both = dataclasses.replace(sweep, drafter=(str(disk_pair.drafter), str(broken)), conv=())
    outcome = run_sweep(both, tmp_path / "ray", executor=cluster.OnRay())
    assert (outcome.num_skipped, len(outcome.failed)) == (4, 4)
    assert "not a readable safetensors file" in outcome.failed[0]["error"]
