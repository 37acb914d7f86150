"""The lab's own operations: each a torch reference that defines it and a Triton kernel that is checked against it."""

from __future__ import annotations

from dflash_lab.core.errors import BackendError

BACKENDS = ("auto", "reference", "triton")

OPS = (
    "edge_walk",
    "grouped_conv",
    "greedy_accept",
    "rejection_accept",
    "head_topk",
    "block_attention",
    "block_linear",
    "block_qkv",
    "commit",
    "token_stats",
)
"""Every operation: a package here with `reference.py`, `kernel.py` and `spec.py`."""


def choose_backend(name: str, loop: str) -> str:
    """The backend for a request of `auto`, `reference` or `triton` in a `loop`; never another than asked for.

    `auto` is Triton where it is installed and can run. Triton kernels run in the captured loop (`graph`), where nothing
    but the GPU's own time is left to save.
    """
    if name not in BACKENDS:
        raise BackendError(f"kernels must be one of {', '.join(BACKENDS)}, got {name!r}")
    from dflash_lab.core.kernels.launch import has_triton, require_triton

    if name == "reference" or (name == "auto" and (loop == "eager" or not has_triton())):
        return "reference"
    require_triton()
    if loop == "eager":
        raise BackendError(
            "Triton kernels run in the captured loop, which needs a CUDA device and the lean forward pass: "
            "use --kernels reference, or --loop graph on a GPU"
        )
    return "triton"
