"""Parts and their options as text: ``"convnet:depth=3,norm=group"``, ``"sghmc:momentum_decay=0.5"``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

from pseudocoresets.core.errors import InputError
from pseudocoresets.core.registry import Registry, parse_name
from pseudocoresets.core.settings import check_options

T = TypeVar("T")


def build_named(registry: Registry[Callable[..., T]], text: str, **defaults: Any) -> T:
    """The registered part that ``text`` names, with its written options over ``defaults``."""
    name, options = parse_name(text, registry.kind)
    build = registry[name]
    check_options(build, options, f"The {registry.kind} '{name}'")
    try:
        return build(**defaults | options)
    except TypeError as error:
        raise InputError(f"The {registry.kind} '{name}' does not take these options: {error}.") from None


def written(part: Any, registry: Mapping[str, Any]) -> str:
    """The text from which ``build_named`` makes this part again; its class's name for one that is not registered."""
    names = [name for name, kind in registry.items() if kind is type(part)]
    name = names[0] if names else type(part).__name__
    own = fields(part) if is_dataclass(part) else ()
    options = ",".join(f"{field.name}={getattr(part, field.name)}" for field in own)
    return f"{name}:{options}" if options else name
