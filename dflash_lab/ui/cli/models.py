"""`dflash-lab models`: what is known, what is on disk, and a drafter's configuration value by value."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dflash_lab.core.errors import RequestError
from dflash_lab.ui.cli.output import Output, Result, story

if TYPE_CHECKING:
    from dflash_lab.core.model.config import DraftConfig


@click.command()
@click.argument("name", required=False)
@click.option("--fetch", is_flag=True, help="Get the bundled target first, if it is not on disk.")
@story
def models(out: Output, name: str | None, fetch: bool) -> Result:
    """List models, or show a drafter's configuration.

    NAME is a folder, a hub id that was fetched before, or bundled. Each value comes with the key it was read from.
    """
    if fetch:
        if name != "bundled":
            raise RequestError("--fetch goes with the name bundled: dflash-lab models bundled --fetch")
        from dflash_lab.core.target.bundled import ensure_target

        ensure_target(out.note)
    return _list_models() if name is None else _show_drafter(out, name)


def _list_models() -> Result:
    """The bundled pair, and drafters in the Hugging Face cache."""
    found = [*_bundled(), *_cached_drafters()]
    width = max(len(model["name"]) for model in found)
    lines = [
        f"{model['name']:<{width}}  {model['kind']:<7}  {_size(model['size_bytes']):>11}  {model['source']}\n"
        f"{'':<{width}}  {model['folder']}"
        for model in found
    ]
    hint = "dflash-lab models NAME shows a drafter's configuration; --target and --drafter take folders and hub ids too"
    return Result({"models": found}, "\n".join([*lines, hint]))


def _size(size_bytes: int | None) -> str:
    return "not on disk" if size_bytes is None else f"{size_bytes / 1e6:.0f} MB"


def _bundled() -> Iterator[dict[str, Any]]:
    from dflash_lab.core.target import bundled

    target, drafter = bundled.target_folder(), bundled.drafter_folder()
    origin = f"package {bundled.PACKAGE} {bundled.VERSION}, fetched on first use"
    yield _entry("bundled", "target", f"{bundled.NAME}: {origin}", target, bundled.is_ready())
    yield _entry("bundled", "drafter", f"comes with dflash-lab, made for {bundled.NAME}", drafter, drafter.is_dir())


def _cached_drafters() -> Iterator[dict[str, Any]]:
    from huggingface_hub import CacheNotFound, scan_cache_dir

    from dflash_lab.core.model.config import ARCHITECTURES

    try:
        repos = scan_cache_dir().repos
    except CacheNotFound:
        return
    for repo in sorted(repos, key=lambda repo: repo.repo_id):
        for revision in repo.revisions:
            config = revision.snapshot_path / "config.json"
            if config.is_file() and any(name in config.read_text(encoding="utf-8") for name in ARCHITECTURES):
                yield _entry(repo.repo_id, "drafter", "Hugging Face hub", revision.snapshot_path, True)


def _entry(name: str, kind: str, source: str, folder: Path, on_disk: bool) -> dict[str, Any]:
    """One model as JSON values; the size is null if it is not on disk."""
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) if on_disk else None
    return {"name": name, "kind": kind, "source": source, "folder": str(folder), "size_bytes": size}


def _show_drafter(out: Output, name: str) -> Result:
    """Every value of a drafter's configuration with the key it was read from."""
    from dflash_lab.core.model.config import DraftConfig

    folder = _drafter_folder(name)
    config = DraftConfig.from_checkpoint(folder)
    for warning in config.warnings:
        out.warn(warning)
    values = list(_values(config))
    width = max(len(value["key"]) for value in values)
    lines = [f"{item['key']:<{width}}  {_shown(item['value']):<32}  {item['origin']}" for item in values]
    document = {"name": name, "folder": str(folder), "configuration": values, "warnings": config.warnings}
    return Result(document, "\n".join([str(folder), *lines]))


def _drafter_folder(name: str) -> Path:
    """Where the drafter `name` lies on disk. Raises RequestError if it does not."""
    from dflash_lab.core.target.bundled import drafter_folder

    if name == "bundled":
        return drafter_folder()
    if Path(name).is_dir():
        return Path(name)
    for model in _cached_drafters():
        if model["name"] == name:
            return Path(model["folder"])
    raise RequestError(f"no drafter {name!r} on disk; expected bundled, a folder, or a hub id that was fetched before")


def _values(config: DraftConfig) -> Iterator[dict[str, Any]]:
    """Key, value and origin of each field; parts with several values are spread out."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name in ("origins", "warnings"):
            continue
        if not dataclasses.is_dataclass(value):
            yield _value(field.name, value, config.origins.get(field.name))
            continue
        for part in dataclasses.fields(value):
            key = f"{field.name}.{part.name}"
            yield _value(key, getattr(value, part.name), config.origins.get(key, config.origins.get(field.name)))


def _value(key: str, value: Any, origin: str | None) -> dict[str, Any]:
    return {"key": key, "value": dict(value) if isinstance(value, Mapping) else value, "origin": origin or "default"}


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(map(str, value)) if len(set(value)) > 1 or len(value) < 2 else f"{value[0]} × {len(value)}"
    return "none" if value is None else str(value)
