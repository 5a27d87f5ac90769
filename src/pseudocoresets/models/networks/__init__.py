"""Networks by name; each serves one parameter set or a population of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from pseudocoresets.core.errors import InputError
from pseudocoresets.core.options import parse_name
from pseudocoresets.core.registry import Registry
from pseudocoresets.models.networks.alexnet import AlexNet
from pseudocoresets.models.networks.convnet import ConvNet
from pseudocoresets.models.networks.lenet import LeNet
from pseudocoresets.models.networks.mlp import MLP
from pseudocoresets.models.networks.network import Network, NetworkSpec, Shape
from pseudocoresets.models.networks.resnet import ResNet18
from pseudocoresets.models.networks.vgg import VGG11

__all__ = ["NETWORKS", "Network", "NetworkSpec", "Shape", "build_network", "from_spec", "parse_name", "spec_from_json"]

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
)
"""Every network by name: a function of (shape, classes, **options) that returns a module."""


def build_network(name: str, shape: Shape, classes: int, **options: Any) -> Network:
    """The network ``name`` for images of ``shape``.

    Options are keyword arguments or follow the name: ``"convnet:depth=3,width=128,norm=group"``.
    """
    name, written = parse_name(name, "network")
    return from_spec(NetworkSpec(name, shape, classes, written | options))


def from_spec(spec: NetworkSpec) -> Network:
    """Build the network that a file or a folder of experts records."""
    constructor = NETWORKS[spec.name]
    _check_options(constructor, spec)

    def build() -> nn.Module:
        return constructor(spec.shape, spec.classes, **spec.options)

    return Network(build, spec)


def spec_from_json(record: Mapping[str, Any]) -> NetworkSpec:
    """What ``NetworkSpec.as_json`` wrote."""
    channels, height, width = record["shape"]
    return NetworkSpec(record["name"], (channels, height, width), record["classes"], record["options"])


def _check_options(constructor: Callable[..., nn.Module], spec: NetworkSpec) -> None:
    signature = inspect.signature(constructor)
    try:
        signature.bind(spec.shape, spec.classes, **spec.options)
    except TypeError as error:
        known = ", ".join(list(signature.parameters)[2:]) or "none"
        raise InputError(
            f"The network '{spec.name}' does not take these options ({error}); its options are: {known}."
        ) from None
