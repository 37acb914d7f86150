"""The wheel has everything that is not Python: without it the page comes up empty on another machine."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_wheel_has_static_files_and_assets(tmp_path):
    source = tmp_path / "source"
    shutil.copytree(
        ROOT / "dflash_lab", source / "dflash_lab", ignore=shutil.ignore_patterns("__pycache__", "*.safetensors")
    )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    (source / "dflash_lab/assets/drafter").mkdir(parents=True, exist_ok=True)
    (source / "dflash_lab/assets/drafter/model.safetensors").write_bytes(b"stands for 38 MB")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", tmp_path, source]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
    written = {str(path.relative_to(source)) for path in (source / "dflash_lab").rglob("*") if path.is_file()}
    assert "dflash_lab/ui/view/static/inspector.js" in written
    assert not written - packed
