"""Weights and optimiser of a run, and the checkpoint that continues it exactly."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from dflash_lab.core.errors import CheckpointError
from dflash_lab.core.model.config import DraftConfig
from dflash_lab.core.model.drafter import DraftModel
from dflash_lab.core.train.recipe import Training

STATE = "training.state"
"""A safetensors file by another name: vLLM loads every `*.safetensors` beside a config.json as weights."""


def new_model(config: DraftConfig, training: Training) -> DraftModel:
    """A drafter with fresh weights: convolutions pass everything through, edges are silent."""
    model = DraftModel(config)
    generator = torch.Generator().manual_seed(training.seed)
    residual = 1 / math.sqrt(2 * config.num_layers)
    for name, parameter in model.named_parameters():
        with torch.no_grad():
            if name.endswith("base_kernel"):
                parameter.zero_()[:, 0] = 1
            elif name.endswith(("kernel_projection.weight", "successor_codebook")):
                parameter.zero_()
            elif name.endswith("predecessor_codebook"):
                parameter.normal_(0, 0.2, generator=generator)
            elif name == "backbone.norm.weight":
                parameter.fill_(training.norm_init)
            elif parameter.dim() == 2:
                scale = residual if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0
                parameter.normal_(0, scale / math.sqrt(parameter.shape[1]), generator=generator)
    return model


class TrainState:
    """A working model in the precision that decodes, float32 master weights, and their optimiser.

    The selector works in float32, as it does in decoding: sums over frequent tokens' codes would lose bits.
    """

    def __init__(self, model: DraftModel, training: Training, device: torch.device, dtype: torch.dtype) -> None:
        self.model = model.to(device)
        self.masters = [parameter.detach().float().clone() for parameter in model.parameters()]
        model.backbone.to(dtype)
        self._working = list(model.parameters())
        self._clip = training.clip
        matrices, others = [], []
        for (name, parameter), master in zip(model.named_parameters(), self.masters, strict=True):
            matrix = parameter.dim() == 2 and name.startswith("backbone.") and "kernel_projection" not in name
            (matrices if matrix else others).append(master)
        fused, rate, decay = device.type == "cuda", training.learning_rate, training.weight_decay
        adamw = [{"params": others, "weight_decay": 0.0}]
        self._optimizers: list[torch.optim.Optimizer] = []
        if training.optimizer == "muon":
            # Updates are scaled to the size of AdamW's, so that one learning rate serves both.
            self._optimizers.append(
                torch.optim.Muon(matrices, lr=rate, weight_decay=decay, adjust_lr_fn="match_rms_adamw")
            )
        else:
            adamw.append({"params": matrices, "weight_decay": decay})
        self._optimizers.append(torch.optim.AdamW(adamw, lr=rate, betas=(0.9, 0.95), fused=fused))
        self.step = 0
        self.elapsed_s = 0.0

    def update(self, learning_rate: float, reduce: Any) -> Tensor:
        """Clip, step, and copy the masters to the working weights; `reduce` averages gradients over devices.

        Returns the gradient's norm.
        """
        for master, parameter in zip(self.masters, self._working, strict=True):
            master.grad = parameter.grad.float()
            parameter.grad = None
        reduce([master.grad for master in self.masters])
        norm = nn.utils.clip_grad_norm_(self.masters, self._clip)
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate
            optimizer.step()
        with torch.no_grad():
            torch._foreach_copy_(self._working, self.masters)
        self.step += 1
        return norm

    def save(self, folder: Path, about: dict[str, Any]) -> None:
        """Write everything that the next step depends on, whole or not at all."""
        tensors = {f"master.{index}": master.cpu() for index, master in enumerate(self.masters)}
        for number, optimizer in enumerate(self._optimizers):
            for index, values in optimizer.state_dict()["state"].items():
                tensors |= {f"optimizer.{number}.{index}.{key}": value.cpu() for key, value in values.items()}
        about = {**about, "step": self.step, "elapsed_s": self.elapsed_s}
        partial = folder / f"{STATE}.part"
        try:
            save_file(tensors, partial, metadata={"about": json.dumps(about)})
            partial.replace(folder / STATE)
        except (OSError, SafetensorError) as error:
            partial.unlink(missing_ok=True)
            raise CheckpointError(f"could not write {folder / STATE}: {error}") from None

    def load(self, folder: Path, about: dict[str, Any]) -> None:
        """Continue from what `save` wrote. Raises CheckpointError if it was another recipe's run."""
        file = folder / STATE
        try:
            with safe_open(file, framework="pt") as handle:
                saved = json.loads(handle.metadata()["about"])
                tensors = {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118
        except (OSError, SafetensorError, KeyError, TypeError, json.JSONDecodeError) as error:
            raise CheckpointError(f"{file} is not a readable training state ({error}): remove the folder") from None
        changed = sorted(key for key in about if saved.get(key) != about[key])
        if changed:
            raise CheckpointError(
                f"{folder} holds a run with other values of {', '.join(changed)}: name another --out, or remove it"
            )
        with torch.no_grad():
            for index, master in enumerate(self.masters):
                master.copy_(tensors[f"master.{index}"])
            torch._foreach_copy_(self._working, self.masters)
        for number, optimizer in enumerate(self._optimizers):
            state = optimizer.state_dict()
            prefix = f"optimizer.{number}."
            for name, tensor in tensors.items():
                if name.startswith(prefix):
                    index, key = name.removeprefix(prefix).split(".")
                    state["state"].setdefault(int(index), {})[key] = tensor
            optimizer.load_state_dict(state)
        self.step, self.elapsed_s = saved["step"], saved["elapsed_s"]
