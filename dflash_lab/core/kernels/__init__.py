"""Which implementation of the lab's own operations runs, chosen once and recorded in every trace."""

from __future__ import annotations

from dflash_lab.core.errors import BackendError

BACKENDS = ("auto", "reference", "triton")


def choose_backend(name: str) -> str:
    """The backend that runs for a request of `auto`, `reference` or `triton`; never another than asked for."""
    if name not in BACKENDS:
        raise BackendError(f"kernels must be one of {', '.join(BACKENDS)}, got {name!r}")
    if name == "triton":
        raise BackendError("this version has no Triton kernels in its decoding loop: use --kernels reference")
    return "reference"
