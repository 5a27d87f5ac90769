"""Networks by name; each serves one parameter set or a population of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import nn

from pseudocoresets.core.devices import require_memory
from pseudocoresets.core.errors import InputError
from pseudocoresets.core.registry import Registry, parse_name
from pseudocoresets.models.networks.alexnet import AlexNet
from pseudocoresets.models.networks.convnet import ConvNet
from pseudocoresets.models.networks.lenet import LeNet
from pseudocoresets.models.networks.mlp import MLP
from pseudocoresets.models.networks.modules import builder, rebuilder
from pseudocoresets.models.networks.network import CUSTOM, NETWORK_KIND, Network, NetworkSpec, Shape
from pseudocoresets.models.networks.resnet import ResNet18
from pseudocoresets.models.networks.vgg import VGG11

__all__ = [
    "NETWORKS",
    "NETWORK_KIND",
    "AnyNetwork",
    "Network",
    "NetworkSpec",
    "Shape",
    "as_network",
    "build_network",
    "from_spec",
    "network_names",
    "parse_name",
    "require_network",
    "spec_from_json",
]

COPIES = 3
"""Of its parameters that even the smallest use of a network holds: its own, a position and a gradient."""

AnyNetwork: TypeAlias = str | Network | nn.Module | Callable[..., nn.Module]
"""What ``as_network`` understands: a name, a network, a module, its class or a function that builds it."""

NETWORKS: Registry[Callable[..., nn.Module]] = Registry(
    "network",
    {
        "convnet": ConvNet,
        "alexnet": AlexNet,
        "vgg11": VGG11,
        "resnet18": ResNet18,
        "lenet": LeNet,
        "mlp": MLP,
    },
    group="pseudocoresets.networks",
)
"""Every network by name: a function of (shape, classes, **options) that returns a module."""


def as_network(network: AnyNetwork, shape: Shape, classes: int) -> Network:
    """The network for images of ``shape`` that is given as a name, a network, a module, its class or a factory.

    Every chain and every expert starts from an initialisation of its own. For a module they are those of its class,
    if this can be called without arguments and has the same parameters; otherwise a copy of the module is used and
    ``reset_parameters()`` of every layer that has it is called, so that parameters which belong to no such layer
    start from the module's own values. The forward, the buffers and the settings are those of the module given,
    which is copied and never changed. A class or a factory is called without arguments, or with (shape, classes).
    """
    if isinstance(network, str):
        return build_network(network, shape, classes)
    if isinstance(network, Network):
        spec = network.spec
        if (spec.shape, spec.classes) != (shape, classes):
            raise InputError(
                f"The network '{spec.name}' is for images {spec.shape} of {spec.classes} classes; "
                f"the data has images {shape} of {classes} classes."
            )
        return network
    if not callable(network):
        raise InputError(f"A network is a name, a module, its class or a function that builds it; got {network!r}.")
    build = rebuilder(network) if isinstance(network, nn.Module) else builder(network, shape, classes)
    return Network.from_module(build, shape, classes)


def build_network(name: str, shape: Shape, classes: int, **options: Any) -> Network:
    """The network ``name`` for images of ``shape``.

    Options are keyword arguments or follow the name: ``"convnet:depth=3,width=128,norm=group"``.
    """
    _refuse_custom(name)
    name, written = parse_name(name, "network")
    return from_spec(NetworkSpec(name, shape, classes, written | options))


def network_names(text: str | Sequence[str]) -> tuple[str, ...]:
    """Several names in one text, ``"convnet:depth=2,width=64,alexnet"``, apart; a list of them is taken as it is."""
    if not isinstance(text, str):
        return tuple(text)
    names: list[str] = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        continues = names and "=" in part and ":" not in part
        names[-1:] = [f"{names[-1]},{part}"] if continues else [*names[-1:], part]
    return tuple(names)


def require_network(name: str) -> None:
    """Refuse a name that no network has, before anything long begins."""
    NETWORKS[parse_name(name, "network")[0]]


def from_spec(spec: NetworkSpec) -> Network:
    """Build the network that a file or a folder of experts records."""
    _refuse_custom(spec.name)
    constructor = NETWORKS[spec.name]
    _check_options(constructor, spec)
    _require_memory(constructor, spec)

    def build() -> nn.Module:
        return constructor(spec.shape, spec.classes, **spec.options)

    return Network(build, spec)


def _require_memory(constructor: Callable[..., nn.Module], spec: NetworkSpec) -> None:
    """Count the parameters without making them; a constructor of the user's own may need real ones, and is trusted."""
    try:
        with torch.device("meta"):
            sketch = constructor(spec.shape, spec.classes, **spec.options)
    except (NotImplementedError, RuntimeError):
        return
    size = sum(parameter.numel() for parameter in sketch.parameters())
    require_memory(4 * COPIES * size, f"the network '{spec}' of {size:,} parameters", "choose a smaller one")


def spec_from_json(record: Mapping[str, Any]) -> NetworkSpec:
    """What ``NetworkSpec.as_json`` wrote."""
    channels, height, width = record["shape"]
    return NetworkSpec(record["name"], (channels, height, width), record["classes"], record["options"])


def _refuse_custom(name: str) -> None:
    if name.split(":")[0] == CUSTOM:
        raise InputError(
            f"The network '{name}' is a module of your own, which cannot be built from its name; "
            "give network=..., the module, its class or a function that builds it."
        )


def _check_options(constructor: Callable[..., nn.Module], spec: NetworkSpec) -> None:
    signature = inspect.signature(constructor)
    try:
        signature.bind(spec.shape, spec.classes, **spec.options)
    except TypeError as error:
        known = ", ".join(list(signature.parameters)[2:]) or "none"
        raise InputError(
            f"The network '{spec.name}' does not take these options ({error}); its options are: {known}."
        ) from None
