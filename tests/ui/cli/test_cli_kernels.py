"""`kernels`: what there is, checks with their exit codes, and the bench that needs a GPU."""

import json

import pytest
import torch

from dflash_lab.core.kernels import OPS, check
from dflash_lab.core.kernels.bench import Ceilings, Timing
from dflash_lab.ui.cli.kernels import _timing, _timings_text

pytest.importorskip("triton", reason="no triton on this platform: pip install 'dflash-lab[triton]' on Linux")


def test_lists_every_operation(command):
    found = json.loads(command("kernels", "list", "--json").out)
    assert [op["name"] for op in found["ops"]] == list(OPS)
    assert found["triton"] == ("compiled" if torch.cuda.is_available() else "interpreter")
    assert all("float32" in op["dtypes"] and "bfloat16" in op["dtypes"] for op in found["ops"])
    assert "kernels run" in command("kernels", "list").out


def test_checks_one_operation(command):
    done = command("kernels", "check", "--op", "grouped_conv", "--json")
    assert done.code == 0
    assert done.err == ""
    found = json.loads(done.out)
    assert found["passed"]
    assert found["num_checked"] == len(found["checks"]) > 0
    assert found["path"] == ("compiled" if torch.cuda.is_available() else "interpreter")
    assert {"triton", "device", "provenance"} < set(found)
    assert all(item["errors"]["out"] <= item["tolerance"] and item["faults"] == [] for item in found["checks"])
    text = command("kernels", "check", "--op", "grouped_conv").out
    assert text.startswith("grouped_conv      float32 ")
    assert "passed" in text


def test_a_check_that_fails_says_where_and_exits_with_1(command, monkeypatch):
    from dflash_lab.core.kernels.grouped_conv.reference import grouped_conv

    monkeypatch.setattr(check, "load_kernel", lambda *_: grouped_conv)
    done = command("kernels", "check", "--op", "grouped_conv")
    assert done.code == 1
    assert "FAILED" in done.out
    assert "grouped_conv float32, batch 1, slots 1, channels 16, group size 16" in done.out
    assert "no Triton kernel was launched" in done.out


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("bench",), "kernels bench needs a CUDA device and torch sees none on this machine"),
        (("check", "--device", "cuda"), "--device cuda: torch sees no CUDA device on this machine; use --device cpu"),
        (("check", "--op", "walk"), "'walk' is not one of 'edge_walk'"),
    ],
)
def test_what_cannot_be_done_is_one_line(command, arguments, said):
    done = command("kernels", *arguments)
    assert done.code == 2
    assert said in done.err
    assert done.err.count("\n") == 1
    assert done.out == ""


def test_no_time_is_shown_for_a_kernel_that_failed_its_check():
    good = check.CaseCheck("edge_walk", "batch 1", "bfloat16", {"path": 0.0}, 1e-5, ())
    bad = check.CaseCheck("edge_walk", "batch 8", "bfloat16", {"path": 1.0}, 1e-5, ())
    timings = [Timing("edge_walk", "batch 1", good, 1.0, 2.0, 9.0, 4.0, 3.0), Timing("edge_walk", "batch 8", bad, 1.0)]
    text = _timings_text(timings, Ceilings(4.3e12, 790e12))
    assert "this chip copies 4.30 TB/s and multiplies 790 TFLOP/s" in text
    assert "     2.00      1.00    50%      9.00      4.00      3.00  edge_walk, batch 1" in text
    assert "no time, its check failed: edge_walk, batch 8" in text
    shown, hidden = map(_timing, timings)
    ratios = ("share_of_floor", "speedup_vs_torch", "speedup_vs_compiled", "speedup_vs_other")
    assert [shown[name] for name in ratios] == [0.5, 4.5, 2.0, 1.5]
    assert [hidden[name] for name in ratios] == [None] * 4


@pytest.mark.gpu
@pytest.mark.slow
def test_benches_on_a_gpu(command, tmp_path):
    done = command("kernels", "bench", "--op", "grouped_conv", "--json", "--out", tmp_path / "kernels.json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["passed"]
    assert all(timing["kernel_us"] > 0 for timing in found["timings"])
    assert json.loads((tmp_path / "kernels.json").read_text()) == found
