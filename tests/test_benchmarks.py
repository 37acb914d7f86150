"""The committed results of a real vLLM server say what they are quoted for."""

import json
from pathlib import Path

import pytest

RESULTS = Path(__file__).parents[1] / "benchmarks/results"
VLLM = sorted(RESULTS.glob("vllm-cpu-*.json"))


@pytest.mark.parametrize("file", VLLM, ids=lambda file: file.stem)
def test_answers_and_the_servers_own_counters_agree(file: Path):
    result = json.loads(file.read_text(encoding="utf-8"))
    bench, agreement = result["live_bench"], result["agreement"]
    assert agreement["agree"]
    assert agreement["answers"] == agreement["counters"]
    assert agreement["answers"]["completion_tokens"] == bench["output_tokens"] > 0
    assert (bench["status"], bench["num_failed"], bench["broken"]) == ("complete", 0, [])
    if result["speculative_config"] is None:
        assert bench["speculation"] == "off"
    else:
        steps, accepted = (agreement["counters"][key] for key in ("verification_steps", "accepted"))
        assert bench["mean_acceptance_length"] == pytest.approx(1 + accepted / steps)
        assert bench["counters"]["histogram"] == bench["acceptance"]["acceptance_histogram"]
        assert accepted > 0


def test_every_method_wrote_the_same_text():
    hashes = {file.stem: json.loads(file.read_text(encoding="utf-8"))["output_hashes"] for file in VLLM}
    assert len(hashes) >= 2
    assert len({tuple(texts) for texts in hashes.values()}) == 1, hashes
