"""How to launch a pair of the published tables: SGLang and vLLM, each autoregressive, with MTP and with DFlash 2.

The DFlash 2 commands are the model cards', flag by flag, with what makes the server tell its statistics added. The
others keep the card's flags for the target and change only how it drafts, as many tokens per step as in the card.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dflash_lab.core.errors import ConfigError
from dflash_lab.core.serve.drafters import read_drafter
from dflash_lab.core.serve.records import ServerInfo

ENGINES = ("sglang", "vllm")
METHODS = ("autoregressive", "mtp", "dflash2")
PORTS = {"sglang": 30000, "vllm": 8000}
"""Where each engine listens unless told otherwise."""

_DATASETS = "gsm8k,math500,humaneval,mbpp,mt-bench"


@dataclass(frozen=True)
class Pair:
    """A target with its drafter, as a card tells to serve them."""

    name: str
    """Short name, as given to `live recipe`."""
    target: str
    """Hub id or folder."""
    drafter: str
    """Hub id or folder."""
    block_size: int
    """B of the commands, with the anchor: SGLang is given B, vLLM the drafts B - 1."""
    checkpoint_block: int
    """The block the drafter was trained for, as far as it is known; more is refused."""
    mtp: bool
    """Whether the target has heads of its own to draft with."""
    source: str
    """Where the commands come from."""
    target_flags: Sequence[str] = ()
    """SGLang: the card's flags for the target."""
    draft_flags: Sequence[str] = ()
    """SGLang: the card's flags for the drafter beside path and block."""
    setup: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Engine to what must be installed first, line by line."""
    bench: Sequence[str] = ()
    """Options of `live bench` for each of the card's concurrencies."""
    thinking: bool | None = None
    """Whether the drafter was made for reasoning answers; None if nothing tells."""
    notes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Engine to what the commands do not say."""


@dataclass(frozen=True)
class Recipe:
    """One way to launch a pair."""

    pair: str
    """Short name of the pair."""
    engine: str
    """`sglang` or `vllm`."""
    method: str
    """`autoregressive`, `mtp` or `dflash2`."""
    setup: tuple[str, ...]
    """Shell lines to run once, before."""
    command: tuple[str, ...]
    """The command, word by word."""
    drafts_per_step: int
    """Tokens proposed per step; 0 without speculation."""
    bench: tuple[str, ...]
    """`dflash-lab live bench` lines that measure it with the card's settings."""
    source: str
    """Where it comes from."""
    notes: tuple[str, ...]
    """What the command does not say."""

    @property
    def text(self) -> str:
        """The command as shell text, a flag with its value on each line."""
        words = [shlex.quote(word) for word in self.command]
        lines: list[str] = []
        for word in words:
            if word.startswith("--") or not lines:
                lines.append(word)
            else:
                lines[-1] += f" {word}"
        return " \\\n  ".join(lines)


PAIRS = {
    pair.name: pair
    for pair in (
        Pair(
            name="qwen3.6-35b-a3b",
            target="Qwen/Qwen3.6-35B-A3B",
            drafter="incoai/Qwen3.6-35B-A3B-DFlash2",
            block_size=8,
            checkpoint_block=8,
            mtp=True,
            source="model card Qwen3.6-35B-A3B-DFlash2",
            target_flags=("--attention-backend", "flashinfer"),
            draft_flags=("--speculative-draft-attention-backend", "fa4"),
            setup={
                "sglang": (
                    'pip install "sglang[all] @ git+https://github.com/sgl-project/sglang.git#subdirectory=python"',
                ),
                "vllm": ('pip install -U "vllm @ git+https://github.com/vllm-project/vllm.git@refs/pull/52816/head"',),
            },
            bench=tuple(
                f"--concurrency {concurrency} --num-prompts 32 --temperature 1 --top-p 0.95 --top-k 20 --reasoning on "
                "--max-new-tokens 4096"
                for concurrency in (1, 8, 32)
            ),
            thinking=True,
            notes={
                "sglang": ("releases from 0.5.19 on have DFlash 2 too",),
                "vllm": ("releases from 0.28.0 on have DFlash 2 too",),
            },
        ),
        Pair(
            name="qwen3.8-flash-next",
            target="Qwen/Qwen3.8-Flash-Next-FP8",
            drafter="incoai/Qwen3.8-Flash-Next-DFlash2",
            block_size=4,
            checkpoint_block=4,
            mtp=True,
            source="model card Qwen3.8-Flash-Next-DFlash2",
            target_flags=("--linear-attn-verify-backend", "triton", "--mamba-ssm-dtype", "bfloat16"),
            draft_flags=("--speculative-draft-model-quantization", "unquant"),
            setup={
                "sglang": (
                    "git clone https://github.com/sgl-project/sglang.git",
                    "cd sglang",
                    "git checkout 3c560089e1818a5217a73f2168273485a5350341",
                    'git apply "$(hf download incoai/Qwen3.8-Flash-Next-DFlash2 '
                    'patches/qwen38-dflash2-capture.patch --quiet)"',
                    'pip install -e "python[all]"',
                ),
                "vllm": ('pip install -U "vllm>=0.28.0"',),
            },
            bench=tuple(
                f"--concurrency {concurrency} --num-prompts {prompts} --repeat --temperature 1 --top-p 0.95 --top-k 20 "
                "--reasoning xhigh --max-new-tokens 4096"
                for concurrency, prompts in ((1, 128), (8, 1024), (32, 1024))
            ),
            thinking=True,
            notes={
                "sglang": (
                    "the capture patch is in the drafter's repository; the card validates it at TP1",
                    "block 4 is the limit of the target's sparse attention",
                ),
                "vllm": ("the card serves this pair with SGLang only: whether vLLM can is not known",),
            },
        ),
        Pair(
            name="bundled",
            target="SmolLM2-135M-Instruct",
            drafter="bundled",
            block_size=16,
            checkpoint_block=16,
            mtp=False,
            source="dflash-lab; not run on a GPU server yet",
            bench=("--concurrency 1 --num-prompts 8 --max-new-tokens 256",),
            thinking=False,
            notes={
                "sglang": ("SGLang refuses DFLASH without a GPU; `dflash-lab live serve` needs none",),
                "vllm": ("DFlash 2 needs a GPU with Triton in vLLM; `dflash-lab live serve` needs none",),
            },
        ),
    )
}
"""The pairs with recipes, by name."""


def pair_named(name: str) -> Pair:
    """The pair called `name`. Raises ConfigError."""
    if name not in PAIRS:
        raise ConfigError(f"no recipe {name!r}; there are {', '.join(PAIRS)}")
    return PAIRS[name]


def pair_of(info: ServerInfo) -> Pair | None:
    """The pair that a server runs, by the last part of its drafter's name; the bundled one by its target's."""
    names = {_last_part(info.drafter)} if info.speculation else set()
    for pair in PAIRS.values():
        if _last_part(pair.drafter) in names or (names and pair.target == (info.target or info.model)):
            return pair
    return None


def _last_part(name: str | None) -> str:
    return (name or "").rstrip("/").rsplit("/", 1)[-1].lower()


def placed(pair: Pair, target: str, drafter: str) -> Pair:
    """The pair in local folders, with the block of the drafter that is there. Raises ConfigError without one."""
    folder = read_drafter(drafter)
    if folder is None or folder.block_size is None:
        raise ConfigError(f"{drafter} holds no drafter: expected a config.json with dflash_config.block_size")
    block = folder.block_size
    return replace(pair, target=target, drafter=drafter, block_size=block, checkpoint_block=block)


def recipes(pair: Pair, block_size: int | None = None) -> tuple[Recipe, ...]:
    """All ways to launch a pair, with another block than the card's if asked for.

    Raises ConfigError for a block that the drafter was not trained for.
    """
    block = pair.block_size if block_size is None else block_size
    if not 2 <= block <= pair.checkpoint_block:
        raise ConfigError(
            f"block size must be 2 to {pair.checkpoint_block} (the anchor and {pair.checkpoint_block - 1} drafts), got "
            f"{block}: the drafter was not trained for it"
        )
    return tuple(
        _recipe(pair, engine, method, block) for engine in ENGINES for method in METHODS if pair.mtp or method != "mtp"
    )


def _recipe(pair: Pair, engine: str, method: str, block: int) -> Recipe:
    drafts = 0 if method == "autoregressive" else block - 1
    notes = list(pair.notes.get(engine, ()))
    if drafts and block < pair.checkpoint_block:
        notes.append(f"{drafts} drafts per step: fewer than the {pair.checkpoint_block - 1} the drafter can give")
    if engine == "vllm" and method == "dflash2":
        notes.append('at temperature above 0, "draft_sample_method": "probabilistic" samples the path as SGLang does')
    command = _sglang(pair, method, block) if engine == "sglang" else _vllm(pair, method, drafts)
    url = f"http://127.0.0.1:{PORTS[engine]}"
    return Recipe(
        pair=pair.name,
        engine=engine,
        method=method,
        setup=tuple(pair.setup.get(engine, (f"pip install {engine}",))),
        command=tuple(command),
        drafts_per_step=drafts,
        bench=tuple(
            f"dflash-lab live bench {url} --dataset {_DATASETS} {options} --out runs/{method}" for options in pair.bench
        ),
        source=pair.source,
        notes=tuple(notes),
    )


def _sglang(pair: Pair, method: str, block: int) -> list[str]:
    command = ["python", "-m", "sglang.launch_server", "--model-path", pair.target, *pair.target_flags]
    if method == "mtp":
        numbers = {"num-steps": block - 1, "eagle-topk": 1, "num-draft-tokens": block}
        command += ["--speculative-algorithm", "NEXTN"]
        command += [word for name, value in numbers.items() for word in (f"--speculative-{name}", str(value))]
    if method == "dflash2":
        command += ["--speculative-algorithm", "DFLASH", "--speculative-draft-model-path", pair.drafter]
        command += [*pair.draft_flags, "--speculative-num-draft-tokens", str(block)]
    return [*command, "--enable-metrics"]


def _vllm(pair: Pair, method: str, drafts: int) -> list[str]:
    command = ["vllm", "serve", pair.target]
    config: dict[str, Any] = {}
    if method == "mtp":
        config = {"method": "mtp", "num_speculative_tokens": drafts}
    if method == "dflash2":
        config = {"method": "dflash", "model": pair.drafter, "num_speculative_tokens": drafts}
    if config:
        command += ["--speculative-config", json.dumps(config), "--per-request-spec-decode-metrics", "summary"]
    return command
