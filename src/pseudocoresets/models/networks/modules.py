"""Modules of the user's own: how a freshly initialised one is built again and again."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from pseudocoresets.core.errors import InputError
from pseudocoresets.models.networks.initialisation import seeded
from pseudocoresets.models.networks.network import Layout, Shape, layout_of


@runtime_checkable
class Resettable(Protocol):
    """A layer that can draw its initial values again, as those of ``torch.nn`` can."""

    def reset_parameters(self) -> None: ...


def builder(construct: Callable[..., nn.Module], shape: Shape, classes: int) -> Callable[[], nn.Module]:
    """``construct`` as a function without arguments: called with none, or with (shape, classes)."""
    arguments = next((given for given in ((), (shape, classes)) if _takes(construct, *given)), None)
    if arguments is None:
        raise InputError(
            f"{construct!r} can be called neither without arguments nor with (shape, classes); "
            "give a function that can, for example network=lambda: MyNet(width=32), or a module."
        )

    def build() -> nn.Module:
        module = construct(*arguments)
        if not isinstance(module, nn.Module):
            raise InputError(f"{construct!r} must build a torch.nn.Module; it gave {type(module).__name__}.")
        return module

    return build


def rebuilder(module: nn.Module) -> Callable[[], nn.Module]:
    """A function that gives copies of ``module``, each with another initialisation."""
    name = type(module).__qualname__
    try:
        template = copy.deepcopy(module).cpu()
    except RuntimeError as error:
        raise InputError(f"The module '{name}' cannot be copied ({error}); give its class instead.") from None
    fresh = type(module)
    if _fresh_layout(fresh) != layout_of(template, name):
        return lambda: _reset(copy.deepcopy(template))

    def build() -> nn.Module:
        built = copy.deepcopy(template)
        values = dict(fresh().named_parameters())
        with torch.no_grad():
            for key, parameter in built.named_parameters():
                parameter.copy_(values[key])
        return built

    return build


def _fresh_layout(fresh: type[nn.Module]) -> Layout | None:
    """The parameters of a new module of this class, if one can be had without arguments."""
    if not _takes(fresh):
        return None
    try:
        return layout_of(seeded(fresh, 0), fresh.__qualname__)
    except Exception:  # the class is the user's code, and may need more than its signature says
        return None


def _takes(function: Callable[..., Any], *arguments: object) -> bool:
    try:
        inspect.signature(function).bind(*arguments)
    except (TypeError, ValueError):  # another signature, or none that Python knows of
        return False
    return True


def _reset(module: nn.Module) -> nn.Module:
    for layer in reversed(list(module.modules())):  # what a whole says of its parts' initialisation comes last
        if isinstance(layer, Resettable):
            layer.reset_parameters()
    return module
