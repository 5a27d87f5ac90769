"""Names of parts: what is known, what installed packages add, and options after a name."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from pseudocoresets.core.errors import InputError
from pseudocoresets.core.registry import Registry, parse_name
from pseudocoresets.methods.contrastive import build_kernel

GROUP = "pseudocoresets.tests"


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> Registry[object]:
    """A registry of one part, beside three of an installed package, two of which are broken."""
    points = [
        EntryPoint(*each, GROUP)
        for each in [("join", "os.path:join"), ("broken", "no_such_module:part"), ("text", "os:name")]
    ]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: points if group == GROUP else [])
    return Registry("part", {"own": 1}, GROUP)


def test_parts_of_installed_packages_are_found_by_name(plugins: Registry[object]) -> None:
    import os

    assert plugins["join"] is os.path.join
    assert list(plugins) == ["own", "join", "broken", "text"] and len(plugins) == 4 and "join" in plugins
    with pytest.raises(InputError, match=r"Did you mean 'join'\? Known: own, join, broken, text"):
        plugins["joi"]


@pytest.mark.parametrize(
    ("name", "problem"),
    [("broken", r"'no_such_module:part'.*ModuleNotFoundError"), ("text", "'os:name', which is not a part")],
)
def test_a_broken_plugin_is_one_sentence(plugins: Registry[object], name: str, problem: str) -> None:
    with pytest.raises(InputError, match=f"'{name}' is the plug-in {problem}") as found:
        plugins[name]
    assert found.value.__context__ is None
    assert plugins["own"] == 1


def test_what_is_here_wins(plugins: Registry[object]) -> None:
    plugins.add("join", 2)
    assert plugins["join"] == 2
    assert "join" not in Registry("part", {})


def test_an_installed_package_adds_a_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pseudocoresets.data import DATASETS, load_dataset
    from pseudocoresets.data.catalogue import DatasetEntry

    info = tmp_path / "tiny-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[pseudocoresets.datasets]\ntiny = tiny_digits:ENTRY\n")
    (tmp_path / "tiny_digits.py").write_text(
        "from dataclasses import replace\n"
        "from pseudocoresets.data.digits import DIGITS\n"
        "ENTRY = replace(DIGITS, name='tiny')\n"
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    fresh: Registry[DatasetEntry] = Registry(DATASETS.kind, DATASETS._entries, DATASETS.group, DATASETS.accepts)
    monkeypatch.setattr("pseudocoresets.data.loading.DATASETS", fresh)
    assert "tiny" in fresh
    assert load_dataset("tiny").name == "tiny"


def test_options_are_read_and_named_after_what_they_belong_to() -> None:
    assert parse_name("convnet:depth=3, norm=group,rate=0.5", "network") == (
        "convnet",
        {"depth": 3, "norm": "group", "rate": 0.5},
    )
    with pytest.raises(InputError, match="The options of a network"):
        parse_name("convnet:depth", "network")
    with pytest.raises(InputError, match="The options of a sampler"):
        build_kernel("hmc:leapfrog_steps", 0.1)
