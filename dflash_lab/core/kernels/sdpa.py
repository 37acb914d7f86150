"""Which of torch's own attention kernels may run."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def attention_kernels(device: torch.device) -> AbstractContextManager:
    """Inside, cuDNN's attention is left out on a GPU: it plans anew for every length of the cache, which takes it tens
    of milliseconds, and a decoding cache has another length at each step."""
    return sdpa_kernel(KERNELS) if device.type == "cuda" else nullcontext()
