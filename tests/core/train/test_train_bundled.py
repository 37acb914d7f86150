"""The shipped recipe from the command line: it learns, and a killed run ends with the very weights."""

import json
import signal
import statistics
import subprocess
import sys
import time

import pytest

from dflash_lab.core.train.state import STATE

pytestmark = [pytest.mark.network, pytest.mark.slow]
LIMIT_S = 300


def start(out):
    command = [sys.executable, "-m", "dflash_lab", "train", "run", "--recipe", "smollm2-135m"]
    command += ["--steps", "20", "--device", "cpu", "--out", str(out), "--json"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_twenty_steps_lower_the_loss_and_a_killed_run_resumes_to_the_same_weights(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    done = start(whole)
    stdout, stderr = done.communicate(timeout=LIMIT_S)
    assert done.returncode == 0, stderr
    log = [json.loads(line) for line in (whole / "training.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in log]
    assert [line["step"] for line in log] == list(range(1, 21))
    assert statistics.mean(losses[-5:]) < statistics.mean(losses[:5])
    assert json.loads(stdout.splitlines()[-1])["loss"] == losses[-1]

    first = start(killed)
    deadline = time.monotonic() + LIMIT_S
    while not (killed / STATE).exists() and first.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    assert first.returncode == -signal.SIGKILL, "the run ended before it could be killed"
    second = start(killed)
    _, stderr = second.communicate(timeout=LIMIT_S)
    assert second.returncode == 0, stderr
    assert "continuing" in stderr
    assert (killed / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
