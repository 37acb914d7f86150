"""The live client against the local server: what it measures is what the decoder did."""

import asyncio

import pytest
from toy_pair import make_pair

from dflash_lab.core.acceptance import from_counts
from dflash_lab.core.data.prompts import Prompt
from dflash_lab.core.generate import generate
from dflash_lab.core.serve.endpoint import Endpoint
from dflash_lab.core.serve.load import Load
from dflash_lab.core.serve.metrics import between
from dflash_lab.core.serve.plan import make_header, select
from dflash_lab.core.serve.probe import probe
from dflash_lab.core.serve.records import LoadPlan, ServerInfo
from dflash_lab.core.serve.runfile import Run, RunWriter, read_run
from dflash_lab.core.serve.stats import pooled
from dflash_lab.core.types import GenerateRequest, SamplingParams

TEXTS = ("the duck", "a duck and a duck", "no duck at all", "count to ten", "who is there", "one more")


def measure(url: str, plan: LoadPlan, path) -> tuple[ServerInfo, Run]:
    async def run() -> ServerInfo:
        async with Endpoint(url) as endpoint:
            info = await probe(endpoint)
            prompts = [Prompt(f"toy/{i}", text, "toy", "toy") for i, text in enumerate(TEXTS)]
            selection = select(prompts, plan)
            header = make_header(plan, info, selection, "toy", len(prompts))
            with RunWriter(path, header) as writer:
                await Load(endpoint, header, selection, writer).run(range(plan.num_prompts))
            return info

    info = asyncio.run(run())
    return info, read_run(path)


def decoders_own(num_prompts: int, max_new_tokens: int):
    pair, counts, tokens = make_pair(), [], 0
    for text in TEXTS[:num_prompts]:
        generation = generate(pair, GenerateRequest(text, SamplingParams(max_new_tokens=max_new_tokens)))
        counts += [(len(step.record.draft_ids), step.record.num_accepted) for step in generation]
        tokens += len(generation.output_ids)
    return from_counts(counts), tokens


@pytest.mark.parametrize("stream", [False, True])
def test_acceptance_and_tokens_are_the_decoders_own(served, tmp_path, monkeypatch, stream):
    # The probe's own question has letters that the toy does not know.
    monkeypatch.setattr("dflash_lab.core.serve.probe._TEST_PROMPT", "who are you")
    plan = LoadPlan("toy", 4, max_new_tokens=33, num_warmup=2, stream=stream)
    info, run = measure(served.url, plan, tmp_path / "run.jsonl")
    assert (info.backend, info.algorithm, info.drafts_per_step) == ("dflash-lab", "DFLASH", 3)
    assert info.statistics == ("meta_info", "metrics", "sglext")
    assert info.settings["synthetic_acceptance"] == "off"
    assert run.status == "complete"
    assert all(record.ok and not record.stats.broken for record in run.requests)
    own, tokens = decoders_own(4, 33)
    found = pooled(record.stats for record in run.requests)
    assert found.mean_acceptance_length == own.mean_acceptance_length
    assert found.acceptance_histogram == own.acceptance_histogram
    assert found.survival == own.survival
    assert sum(record.completion_tokens for record in run.requests) == tokens
    counted = between(run.snapshots[0], run.snapshots[-1])
    assert counted.stats.num_steps == own.num_steps
    assert counted.output_tokens == tokens
    if stream:
        assert all(len(record.chunk_s) > 3 for record in run.requests)
