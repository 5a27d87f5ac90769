"""Options come from the settings' own types; what is typed reaches the settings it is for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from pseudocoresets._cli.options import Given, with_settings
from pseudocoresets.core.errors import InputError
from pseudocoresets.core.settings import setting
from pseudocoresets.workflows.plan import options_by_method, parse_options


@dataclass(frozen=True)
class Building:
    size: int = 1
    """A setting that somebody adds and says nothing of."""
    heat: float | None = setting(1.0, "How hot.", own_option="--building-heat")
    dry: bool = setting(True, "Whether it is dry.")
    shape: object = None


@dataclass(frozen=True)
class Painting:
    steps: int | None = setting(None, "How often.", option="--painting-steps")
    heat: float = setting(2.0, "How hot.")
    dry: bool = setting(False, "Whether it is dry.", option="--dry/--wet")
    seed: int = 0


def given_by(parts: dict[str, type], *arguments: str) -> Given:
    """What a command with the settings of ``parts`` is given; the seed is a parameter of its own."""
    received: list[tuple[Given, int]] = []

    @with_settings(**parts)
    def command(given: Given, seed: int = 0) -> None:
        received.append((given, seed))

    app = typer.Typer()
    app.command()(command)
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    ((given, seed),) = received
    return given | {"seed": seed}


@pytest.mark.parametrize(
    ("arguments", "building", "painting"),
    [
        ((), {}, {}),
        (("--size", "3", "--painting-steps", "4"), {"size": 3}, {"steps": 4}),
        (("--heat", "0.5"), {"heat": 0.5}, {"heat": 0.5}),
        (("--heat", "0.5", "--building-heat", "2"), {"heat": 2.0}, {"heat": 0.5}),
        (("--building-heat", "2"), {"heat": 2.0}, {}),
        (("--no-dry",), {"dry": False}, {"dry": False}),
    ],
)
def test_every_setting_is_an_option(
    arguments: tuple[str, ...], building: dict[str, Any], painting: dict[str, Any]
) -> None:
    given = given_by({"building": Building, "painting": Painting}, "--seed", "7", *arguments)
    assert given == {"building": building, "painting": painting, "seed": 7}


def test_in_a_command_of_one_part_a_setting_has_its_own_name_too() -> None:
    for name in ("--steps", "--painting-steps"):
        assert given_by({"painting": Painting}, name, "4", "--wet")["painting"] == {"steps": 4, "dry": False}


def test_options_of_several_methods_go_to_those_that_have_them() -> None:
    items = ["steps=7", "cd.steps=3", "reach=2.0", "momentum=0.5", "cd.max_start_epoch=none", "cd.kernel=hmc"]
    assert options_by_method(items, ["cd", "bptt", "random"]) == {
        "cd": {"steps": 3, "max_start_epoch": None, "kernel": "hmc"},
        "bptt": {"steps": 7, "reach": 2.0, "momentum": 0.5},
        "random": {},
    }
    assert parse_options(["a=true", "b=1e-3", "c=False"]) == {"a": True, "b": 1e-3, "c": False}


@pytest.mark.parametrize(
    ("item", "sentence"),
    [
        ("fkl.steps=3", "not one of cd, random"),
        ("nonsense=3", "None of cd, random has the option 'nonsense'.*Those of cd: .*steps"),
    ],
)
def test_an_option_that_no_method_has_is_refused(item: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        options_by_method([item], ["cd", "random"])
