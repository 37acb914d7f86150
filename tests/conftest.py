"""Settings of the whole suite: offline, deterministic, and a skipped GPU test says why."""

import os

import pytest
import torch
from hypothesis import settings

# Before anything imports the libraries that read them.
os.environ.update(HF_HUB_OFFLINE="1", GRADIO_ANALYTICS_ENABLED="False", TOKENIZERS_PARALLELISM="false")
if not torch.cuda.is_available():
    # Triton kernels then run in its interpreter, which nothing can choose once triton is imported.
    os.environ["TRITON_INTERPRET"] = "1"

settings.register_profile("suite", deadline=None, derandomize=True)
settings.load_profile("suite")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests marked gpu where there is no CUDA device; those with a browser come last.

    Playwright keeps an event loop running from its first page on, and a command beside it could not run its own.
    """
    items.sort(key=lambda item: item.get_closest_marker("browser") is not None)
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if not torch.cuda.is_available():
        for item in on_gpu:
            item.add_marker(pytest.mark.skip(reason="no CUDA device on this machine"))
