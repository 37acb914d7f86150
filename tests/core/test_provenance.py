"""Provenance is complete where it can be and never fails."""

import json
import subprocess
import sys

import dflash_lab
from dflash_lab.core import provenance


def test_collects_plain_json_values(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/somewhere/bin/dflash-lab", "generate", "hi"])
    record = provenance.provenance()
    assert json.loads(json.dumps(record)) == record
    assert record["argv"] == ["dflash-lab", "generate", "hi"]
    assert record["version"] == dflash_lab.__version__
    assert record["cores"] >= 1
    assert "numpy" in record["packages"]


def test_a_checkout_gives_revision_and_dirtiness(tmp_path):
    def git(*arguments):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *identity, "-C", str(tmp_path), *arguments], check=True, capture_output=True)

    git("init")
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "-m", "first")
    revision, dirty = provenance._git_state(tmp_path)
    assert len(revision) == 40
    assert dirty is False
    (tmp_path / "untracked").write_text("")
    assert provenance._git_state(tmp_path) == (revision, False)
    (tmp_path / "file").write_text("two")
    assert provenance._git_state(tmp_path) == (revision, True)


def test_the_code_is_asked_for_once(monkeypatch):
    first = provenance.provenance()
    monkeypatch.setattr(provenance, "_git_state", lambda root: ("another", True))
    assert provenance.provenance()["revision"] == first["revision"], "edits made meanwhile do not run"


def test_a_folder_inside_another_checkout_is_not_ours(tmp_path):
    (tmp_path / ".git").mkdir()
    inside = tmp_path / "site-packages"
    inside.mkdir()
    assert provenance._git_state(inside) == (None, None)
    assert provenance._git_state(tmp_path) == (None, None)  # a .git that git does not accept


def test_never_fails_without_git(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sys, "argv", [])
    provenance._code.cache_clear()
    record = provenance.provenance()
    provenance._code.cache_clear()
    assert record["revision"] is None
    assert record["dirty"] is None
    assert record["argv"] == []
