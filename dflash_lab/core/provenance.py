"""Where a number came from: revision, versions, machine, command line. Collecting it never fails."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from dflash_lab import __version__

PACKAGES = ("torch", "transformers", "safetensors", "numpy", "triton", "gguf", "gradio")
"""Packages whose version may change a result."""


@dataclass(frozen=True)
class Provenance:
    """Enough to say which code ran, with what, and on which machine."""

    created: str
    """UTC time, ISO 8601 with seconds."""
    argv: Sequence[str]
    """The command line; the program by its bare name."""
    version: str
    """Version of dflash-lab."""
    revision: str | None
    """Git commit of the checkout the package runs from; None when installed or without git."""
    dirty: bool | None
    """True if tracked files differ from that commit; None without a revision."""
    packages: Mapping[str, str]
    """Installed versions of `PACKAGES`."""
    python: str
    """Version of the interpreter."""
    platform: str
    """Operating system, release and machine."""
    cpu: str
    """Model name of the processor."""
    cores: int
    """Cores this process may use."""
    threads: int | None
    """Threads of torch; None if torch is not loaded."""
    device: str | None
    """Name of the current CUDA device; None without one or if torch is not loaded."""


def provenance() -> dict[str, Any]:
    """A `Provenance` of this process as plain JSON values; what cannot be found out is None or `unknown`."""
    revision, dirty, packages = _code()
    threads, device = _torch_state()
    record = Provenance(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        argv=[Path(sys.argv[0]).name, *sys.argv[1:]] if sys.argv else [],
        version=__version__,
        revision=revision,
        dirty=dirty,
        packages=packages,
        python=platform.python_version(),
        platform=platform.platform(),
        cpu=_cpu_name(),
        cores=_usable_cores(),
        threads=threads,
        device=device,
    )
    return asdict(record)


@cache
def _code() -> tuple[str | None, bool | None, dict[str, str]]:
    """Revision, dirtiness and packages when they were first asked for: what runs does not change with the files.

    Git may have to read every file to know whether it was changed, which a trace of each of many runs would wait for.
    """
    return *_git_state(Path(__file__).resolve().parents[2]), _package_versions()


def _git_state(root: Path) -> tuple[str | None, bool | None]:
    """Commit and dirtiness of `root`, only where it is a checkout itself and not a folder inside another one."""
    if not (root / ".git").exists():
        return None, None
    try:
        revision = _git(root, "rev-parse", "HEAD")
        return revision, bool(_git(root, "status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError):
        return None, None


def _git(root: Path, *arguments: str) -> str:
    """Output of a git command that takes no locks."""
    command = ["git", "--no-optional-locks", "-C", str(root), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=10, check=True)
    return done.stdout.strip()


def _package_versions() -> dict[str, str]:
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or "unknown"


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _torch_state() -> tuple[int | None, str | None]:
    """Threads and device name of torch, if something else has loaded it."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None, None
    try:
        device = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    except RuntimeError:  # a driver that is there but does not answer
        device = None
    return torch.get_num_threads(), device
