"""The same recipe for SpecForge, which trains past one machine: its YAML and the drafter's config.json.

Keys as in SpecForge's `qwen3.6-27b-dflash2-disaggregated.yaml` (2026): its `dflash` strategy with a DFlash 2 config
turns on convolution and selector. Where the target is served is left to its documentation. SpecForge has no
counterpart of `distill`, of Muon and of `norm_init`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dflash_lab.core.train.recipe import Recipe, checkpoint_config

CONFIG, YAML = "drafter-config.json", "specforge.yaml"


def export(recipe: Recipe, target: Any, target_path: str, data_path: str, folder: Path) -> list[Path]:
    """Write both files into `folder`; `target` is the target's transformers config. Returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    config = checkpoint_config(recipe.drafter, target)
    contents = {
        CONFIG: json.dumps(config, indent=2) + "\n",
        YAML: yaml_text(recipe, target, target_path, data_path, folder / CONFIG),
    }
    for name, text in contents.items():
        partial = folder / f".{name}.part"
        partial.write_text(text, encoding="utf-8")
        partial.replace(folder / name)
    return [folder / name for name in contents]


def yaml_text(recipe: Recipe, target: Any, target_path: str, data_path: str, config: Path) -> str:
    """The run's YAML. Every scalar is written as JSON, which YAML reads."""
    training = recipe.training
    sections = {
        "model": {
            "target_model_path": target_path,
            "draft_model_config": str(config),
            "torch_dtype": "bfloat16",
            "mask_token_id": recipe.drafter.mask_token_id,
        },
        "data": {"train_data_path": data_path, "max_length": min(8192, target.max_position_embeddings)},
        "training": {
            "strategy": "dflash",
            "num_epochs": 6,
            "batch_size": 1,
            "accumulation_steps": 4,
            "learning_rate": 6e-4,
            "warmup_ratio": training.warmup,
            "max_grad_norm": training.clip,
            "attention_backend": "flex_attention",
            "num_anchors": 512,
            "loss_decay_gamma": training.decay,
            "loss_type": "dpace" if training.weighting == "dpace" else "ce",
            "dflash2_selector_loss_alpha": training.selector_weight,
            "seed": training.seed,
        },
    }
    lines = [f"run_id: {json.dumps(recipe.name)}", f"output_dir: {json.dumps(f'outputs/{recipe.name}')}"]
    for name, values in sections.items():
        lines += ["", f"{name}:", *(f"  {key}: {json.dumps(value)}" for key, value in values.items())]
    return "\n".join(lines) + "\n"
