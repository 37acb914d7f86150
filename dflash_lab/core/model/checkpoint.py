"""Draft checkpoints: published tensor names, one safetensors file or shards, loaded and saved without pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from dflash_lab.core.errors import CheckpointError
from dflash_lab.core.model.config import DraftConfig
from dflash_lab.core.model.drafter import DraftCheckpoint, DraftModel

CODEBOOKS = ("candidate_selector.predecessor_codebook", "candidate_selector.successor_codebook")
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
OWN_TENSORS = ("embed_tokens.weight", "lm_head.weight", "d2t", "t2d")
"""Tensors a checkpoint may bring that are not part of the backbone: its own embedding, head and vocabulary map."""


def load_checkpoint(
    folder: str | Path, *, dtype: torch.dtype, device: str | torch.device, version: str | None = None
) -> DraftCheckpoint:
    """Load the checkpoint in `folder`.

    `version` (`dflash` or `dflash2`) refuses the other kind. Raises ConfigError or CheckpointError in one line:
    missing, doubled, unexpected or misshapen tensors are named, nothing is filled in.
    """
    folder = Path(folder)
    config = DraftConfig.from_checkpoint(folder)
    if version is not None and config.version != version:
        raise CheckpointError(f"{folder} is a {config.version} checkpoint, {version} was asked for")
    warnings = list(config.warnings)
    if (folder / "mask_embedding.pt").exists():
        warnings.append(f"{folder}: mask_embedding.pt is a pickle and was not used; the target's mask row is")
    with torch.device("meta"):
        model = DraftModel(config)
    tensors = _unify_codebooks(_read_tensors(folder), folder)
    own = {name: tensors.pop(name) for name in OWN_TENSORS if name in tensors}
    _check_own(config, own, folder)
    tensors = {_module_name(name): tensor for name, tensor in tensors.items()}
    _check_names_and_shapes(model, tensors, folder)
    state = {name: tensor.to(device=device, dtype=dtype) for name, tensor in tensors.items()}
    model.load_state_dict(state, assign=True)
    # Buffers are derived from the configuration, not stored: rebuild them off the meta device.
    model.backbone.rotary = type(model.backbone.rotary)(config.rope, config.head_dim).to(device)
    own = {name: t.to(device, dtype if t.is_floating_point() else None) for name, t in own.items()}
    return DraftCheckpoint(config, model.eval().requires_grad_(False), own, warnings)


def save_checkpoint(model: DraftModel, raw_config: Mapping, folder: str | Path, dtype: torch.dtype) -> None:
    """Write `config.json` and `model.safetensors` in the published names, each to a temporary name and renamed."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    state = {
        published_name(name): tensor.detach().to("cpu", dtype).contiguous()
        for name, tensor in model.state_dict().items()
    }
    partial = folder / (SINGLE + ".part")
    try:
        save_file(state, partial, metadata={"format": "pt"})
        partial.replace(folder / SINGLE)
        partial = folder / "config.json.part"
        partial.write_text(json.dumps(raw_config, indent=2) + "\n", encoding="utf-8")
        partial.replace(folder / "config.json")
    except (OSError, SafetensorError) as error:
        partial.unlink(missing_ok=True)
        raise CheckpointError(f"could not write {folder}: {error}") from None


def published_name(name: str) -> str:
    """Our module path to the name in published files."""
    return name.removeprefix("backbone.")


def _module_name(name: str) -> str:
    return name if name.startswith("candidate_selector.") else f"backbone.{name}"


def _files(folder: Path) -> list[Path]:
    if (folder / SINGLE).exists():
        return [folder / SINGLE]
    index = folder / INDEX
    if not index.exists():
        raise CheckpointError(f"no {SINGLE} and no {INDEX} in {folder}: fetch the checkpoint again")
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (json.JSONDecodeError, KeyError, AttributeError, UnicodeDecodeError):
        raise CheckpointError(f"{index} is not a safetensors index: fetch the checkpoint again") from None
    for name in names:
        if Path(name).name != name or not (folder / name).exists():
            raise CheckpointError(f"{index} names the shard {name!r}, which is not in {folder}")
    return [folder / name for name in names]


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for file in _files(folder):
        try:
            with safe_open(file, framework="pt") as handle:
                for name in handle.keys():  # noqa: SIM118 (a safetensors handle is not a mapping)
                    if name in tensors:
                        raise CheckpointError(f"tensor {name} stands in two shards of {folder}: fetch it again")
                    tensors[name] = handle.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{file} is not a readable safetensors file ({error}): fetch it again") from None
    return tensors


def _unify_codebooks(tensors: dict[str, Tensor], folder: Path) -> dict[str, Tensor]:
    """Codebooks may be bare parameters or embeddings' `.weight`; both at once must agree."""
    for bare in CODEBOOKS:
        weight = tensors.pop(f"{bare}.weight", None)
        if weight is None:
            continue
        if bare in tensors and not torch.equal(tensors[bare], weight):
            raise CheckpointError(f"{folder}: {bare} and {bare}.weight are both there and differ: keep one")
        tensors[bare] = weight
    return tensors


def _check_names_and_shapes(model: DraftModel, tensors: Mapping[str, Tensor], folder: Path) -> None:
    expected = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    missing = sorted(published_name(name) for name in expected.keys() - tensors.keys())
    surplus = sorted(published_name(name) for name in tensors.keys() - expected.keys())
    if missing:
        hint = ""
        if any(name.startswith("candidate_selector.") for name in missing):
            hint = "; config.json says DFlash2DraftModel, which needs the selector's tensors"
        raise CheckpointError(f"{folder}: missing {_some(missing)}{hint}")
    if surplus:
        hint = ""
        if any("conv" in name or name.startswith("candidate_selector.") for name in surplus):
            hint = f"; these belong to DFlash 2, but config.json says {model.config.version}"
        raise CheckpointError(f"{folder}: unexpected {_some(surplus)}{hint}")
    for name, shape in expected.items():
        if tuple(tensors[name].shape) != shape:
            raise CheckpointError(
                f"{folder}: {published_name(name)} has shape {list(tensors[name].shape)}, "
                f"config.json asks for {list(shape)}"
            )
        if not tensors[name].is_floating_point() or tensors[name].element_size() < 2:
            raise CheckpointError(
                f"{folder}: {published_name(name)} is {tensors[name].dtype}; "
                "quantised drafters are not supported, use the bfloat16 checkpoint"
            )


def _check_own(config: DraftConfig, own: Mapping[str, Tensor], folder: Path) -> None:
    """A head of its own must have the rows the configuration says, and a reduced vocabulary its map."""
    head, rows = own.get("lm_head.weight"), config.draft_vocab_size or config.vocab_size
    if head is not None and head.shape[0] < rows:
        raise CheckpointError(f"{folder}: lm_head.weight has {head.shape[0]} rows, config.json asks for {rows}")
    reduced = config.draft_vocab_size is not None and config.draft_vocab_size != config.vocab_size
    if reduced and ("d2t" not in own or head is None):
        raise CheckpointError(
            f"{folder}: draft_vocab_size {config.draft_vocab_size} needs the tensors lm_head.weight and d2t "
            "(target id minus draft id for each row)"
        )
    if reduced and own["d2t"].shape != (config.draft_vocab_size,):
        raise CheckpointError(f"{folder}: d2t has shape {list(own['d2t'].shape)}, expected [{config.draft_vocab_size}]")


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return f"{len(names)} tensor{'s' * (len(names) > 1)}: {shown}{', ...' if len(names) > 3 else ''}"
