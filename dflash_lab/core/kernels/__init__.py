"""The lab's own operations: each a torch reference that defines it and a Triton kernel that is checked against it."""

from __future__ import annotations

from dflash_lab.core.errors import BackendError

BACKENDS = ("auto", "reference", "triton")

OPS = ("edge_walk", "grouped_conv", "greedy_accept", "rejection_accept", "head_topk", "block_attention")
"""Every operation: a package here with `reference.py`, `kernel.py` and `spec.py`."""


def choose_backend(name: str) -> str:
    """The backend that runs for a request of `auto`, `reference` or `triton`; never another than asked for."""
    if name not in BACKENDS:
        raise BackendError(f"kernels must be one of {', '.join(BACKENDS)}, got {name!r}")
    if name == "triton":
        from dflash_lab.core.kernels.launch import require_triton

        require_triton()
        raise BackendError("this version has no Triton kernels in its decoding loop: use --kernels reference")
    return "reference"
