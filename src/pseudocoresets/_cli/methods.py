"""``bpc methods``: every construction method with its options."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable
from typing import Any

import typer

from pseudocoresets._cli import options as o
from pseudocoresets._cli.output import print_json

WIDTH = 100


def methods(json: o.AsJson = False) -> None:
    """Every construction method in one line, with its options and their defaults.

    Example: bpc methods --json
    """
    from pseudocoresets.methods import METHODS
    from pseudocoresets.methods.selection import SELECTIONS

    facts = [_facts(name, METHODS[name]) for name in METHODS]
    facts += [_facts(name, type(SELECTIONS[name])) | {"options": {}} for name in SELECTIONS if name not in METHODS]
    if json:
        print_json(facts)
        return
    for each in facts:
        typer.echo(f"{each['name']}: {each['what']}")
        options = ", ".join(f"{name}={value}" for name, value in each["options"].items())
        typer.echo(textwrap.fill(options or "no options", WIDTH, initial_indent="    ", subsequent_indent="    "))
    typer.echo("Options are given by --set NAME=VALUE.")


def _facts(name: str, build: Callable[..., Any]) -> dict[str, Any]:
    parameters = inspect.signature(build).parameters.values()
    return {
        "name": name,
        "what": _summary(build),
        "options": {each.name: _written(each.default) for each in parameters},
    }


def _summary(build: Callable[..., Any]) -> str:
    """The first sentence of its description; a gradient method is described by its module, its options by its class."""
    from pseudocoresets.methods import GradientMethod

    by_gradient = inspect.isclass(build) and issubclass(build, GradientMethod)
    described = (inspect.getmodule(build) if by_gradient else None) or build
    paragraph = (inspect.getdoc(described) or "").split("\n\n")[0]
    return re.sub(r":class:|`", "", " ".join(paragraph.split()))


def _written(default: Any) -> Any:
    """As it is typed; a default that is an object is known by the name of its kind."""
    return default if default is None or isinstance(default, bool | int | float | str) else type(default).__name__
