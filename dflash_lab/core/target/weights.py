"""Tensors of a safetensors folder, one at a time."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from dflash_lab.core.errors import TargetError

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


class Weights:
    """Reads tensors by name. Files are mapped only while a tensor is copied out, so the peak is what is kept."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        if (folder / SINGLE).exists():
            self._files = dict.fromkeys(self._names(folder / SINGLE), folder / SINGLE)
        else:
            try:
                index = json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"]
            except (OSError, ValueError, KeyError, TypeError):
                raise TargetError(f"no {SINGLE} and no readable {INDEX} in {folder}: fetch the model again") from None
            self._files = {name: folder / Path(file).name for name, file in index.items()}

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def read(self, name: str, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
        """A copy of tensor `name`, in the file's own dtype unless told otherwise. Raises TargetError."""
        if name not in self._files:
            raise TargetError(f"{self._folder} has no tensor {name}: fetch the model again")
        try:
            with safe_open(self._files[name], framework="pt") as handle:
                return handle.get_tensor(name).to(device=device, dtype=dtype, copy=True)
        except (SafetensorError, OSError) as error:
            raise TargetError(f"{self._files[name]} cannot be read ({error}): fetch the model again") from None

    @staticmethod
    def _names(file: Path) -> list[str]:
        try:
            with safe_open(file, framework="pt") as handle:
                return list(handle.keys())
        except (SafetensorError, OSError) as error:
            raise TargetError(f"{file} cannot be read ({error}): fetch the model again") from None
