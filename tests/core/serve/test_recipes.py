"""Launch commands: the cards' own, flag by flag, and the two other ways to decode the same target."""

from __future__ import annotations

import dataclasses
import json
import shlex

import pytest

from dflash_lab.core.errors import ConfigError
from dflash_lab.core.serve.recipes import PAIRS, Recipe, pair_named, pair_of, placed, recipes
from dflash_lab.core.serve.records import ServerInfo

CARDS = {
    ("qwen3.6-35b-a3b", "sglang"): """python -m sglang.launch_server --model-path Qwen/Qwen3.6-35B-A3B
        --speculative-algorithm DFLASH --speculative-draft-model-path incoai/Qwen3.6-35B-A3B-DFlash2
        --speculative-num-draft-tokens 8 --attention-backend flashinfer --speculative-draft-attention-backend fa4""",
    ("qwen3.6-35b-a3b", "vllm"): """vllm serve Qwen/Qwen3.6-35B-A3B --speculative-config '{"method": "dflash",
        "model": "incoai/Qwen3.6-35B-A3B-DFlash2", "num_speculative_tokens": 7}'""",
    ("qwen3.8-flash-next", "sglang"): """python -m sglang.launch_server --model-path Qwen/Qwen3.8-Flash-Next-FP8
        --linear-attn-verify-backend triton --mamba-ssm-dtype bfloat16 --speculative-algorithm DFLASH
        --speculative-draft-model-path incoai/Qwen3.8-Flash-Next-DFlash2 --speculative-draft-model-quantization unquant
        --speculative-num-draft-tokens 4""",
}
"""The model cards' commands."""


def flags(words) -> dict[str, str]:
    """Flag to value; the program and its positional words under the empty name."""
    words = list(words)
    first = next(i for i, word in enumerate([*words, "--"]) if word.startswith("--"))
    found = {"": " ".join(words[:first])}
    return found | dict(zip(words[first::2], words[first + 1 :: 2], strict=False))


def one(name: str, engine: str, method: str, block_size: int | None = None) -> Recipe:
    (found,) = (r for r in recipes(pair_named(name), block_size) if (r.engine, r.method) == (engine, method))
    return found


@pytest.mark.parametrize(("name", "engine"), CARDS)
def test_dflash2_is_the_cards_command_and_what_makes_it_tell(name, engine):
    card, ours = flags(shlex.split(CARDS[name, engine])), flags(w for w in one(name, engine, "dflash2").command
                                                               if w != "--enable-metrics")  # fmt: skip
    if engine == "vllm":
        assert ours.pop("--per-request-spec-decode-metrics") == "summary"
        card["--speculative-config"] = json.loads(card["--speculative-config"])
        ours["--speculative-config"] = json.loads(ours["--speculative-config"])
    else:
        assert "--enable-metrics" in one(name, engine, "dflash2").command
    assert ours == card


def test_the_text_is_the_command_as_a_shell_reads_it():
    for pair in PAIRS.values():
        for item in recipes(pair):
            assert shlex.split(item.text.replace("\\\n", " ")) == list(item.command)


def test_flash_next_has_its_commit_and_its_patch():
    setup = one("qwen3.8-flash-next", "sglang", "dflash2").setup
    assert setup[2] == "git checkout 3c560089e1818a5217a73f2168273485a5350341"
    assert setup[3] == (
        'git apply "$(hf download incoai/Qwen3.8-Flash-Next-DFlash2 patches/qwen38-dflash2-capture.patch --quiet)"'
    )
    assert any("not known" in note for note in one("qwen3.8-flash-next", "vllm", "dflash2").notes)


@pytest.mark.parametrize("name", ["qwen3.6-35b-a3b", "qwen3.8-flash-next"])
def test_all_six_ways_and_as_many_drafts_as_the_card(name):
    pair = pair_named(name)
    found = recipes(pair)
    assert [(item.engine, item.method) for item in found] == [
        (engine, method) for engine in ("sglang", "vllm") for method in ("autoregressive", "mtp", "dflash2")
    ]
    for item in found:
        text = item.text
        assert item.drafts_per_step == (0 if item.method == "autoregressive" else pair.block_size - 1)
        assert ("speculative" in text.replace("linear-attn-verify", "")) == (item.method != "autoregressive")
        assert all("--max-new-tokens 4096" in line and "--temperature 1 " in line for line in item.bench)
        assert len(item.bench) == 3
    mtp = flags(w for w in one(name, "sglang", "mtp").command if w != "--enable-metrics")
    assert mtp["--speculative-algorithm"] == "NEXTN"
    assert int(mtp["--speculative-num-steps"]) == pair.block_size - 1
    assert int(mtp["--speculative-num-draft-tokens"]) == pair.block_size


def test_sglang_counts_the_anchor_and_vllm_does_not():
    """Checkpoint block 8: vLLM 7, SGLang 8; more than the checkpoint's is refused, less is noted."""
    pair = dataclasses.replace(pair_named("qwen3.6-35b-a3b"), block_size=8, checkpoint_block=8)
    by_engine = {item.engine: item for item in recipes(pair) if item.method == "dflash2"}
    assert '"num_speculative_tokens": 7' in by_engine["vllm"].text
    assert "--speculative-num-draft-tokens 8" in by_engine["sglang"].text
    assert {item.drafts_per_step for item in by_engine.values()} == {7}
    fewer = next(item for item in recipes(pair, 4) if item.method == "dflash2")
    assert any("3 drafts per step: fewer than the 7" in note for note in fewer.notes)
    for block in (9, 16, 1, 0):
        with pytest.raises(ConfigError, match=r"block size must be 2 to 8 \(the anchor and 7 drafts\), got"):
            recipes(pair, block)


def test_the_bundled_pair_is_in_its_folders(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"dflash_config": {"block_size": 12}}))
    pair = placed(pair_named("bundled"), "/models/small", str(tmp_path))
    found = recipes(pair)
    assert {item.method for item in found} == {"autoregressive", "dflash2"}, "the target has no heads to draft with"
    assert f"--speculative-draft-model-path {tmp_path}" in found[1].text
    assert "--speculative-num-draft-tokens 12" in found[1].text
    with pytest.raises(ConfigError, match="holds no drafter"):
        placed(pair, "/models/small", str(tmp_path / "nothing"))


def test_a_server_is_known_by_its_drafter():
    info = ServerInfo("http://h", "sglang", "m", speculation=True, drafter="z-lab/Qwen3.6-35B-A3B-DFlash2")
    assert pair_of(info).name == "qwen3.6-35b-a3b"
    assert pair_of(dataclasses.replace(info, drafter="someone/else")) is None
    assert pair_of(dataclasses.replace(info, speculation=False)) is None
    with pytest.raises(ConfigError, match=r"no recipe 'gpt'; there are qwen3.6-35b-a3b, qwen3.8-flash-next, bundled"):
        pair_named("gpt")
