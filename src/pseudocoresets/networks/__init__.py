"""Networks by name; each serves one parameter set or a population of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from pseudocoresets.errors import InputError
from pseudocoresets.networks.convnet import ConvNet
from pseudocoresets.networks.mlp import MLP
from pseudocoresets.networks.network import Network, NetworkSpec, Shape
from pseudocoresets.registry import Registry

__all__ = ["NETWORKS", "Network", "NetworkSpec", "Shape", "build_network", "from_spec"]

NETWORKS: Registry[Callable[..., nn.Module]] = Registry("network", {"convnet": ConvNet, "mlp": MLP})
"""Every network by name: a function of (shape, classes, **options) that returns a module."""


def build_network(name: str, shape: Shape, classes: int, **options: Any) -> Network:
    """The network ``name`` for images of ``shape``.

    Options follow the name, as keyword arguments or in the name itself: ``"convnet:depth=3,width=128,norm=group"``.
    """
    name, written = parse_name(name)
    return from_spec(NetworkSpec(name, shape, classes, written | options))


def from_spec(spec: NetworkSpec) -> Network:
    """Build the network that a file or a folder of experts records."""
    constructor = NETWORKS[spec.name]

    def build() -> nn.Module:
        return constructor(spec.shape, spec.classes, **spec.options)

    try:
        return Network(build, spec)
    except TypeError as error:
        raise InputError(f"The network '{spec.name}' does not take these options: {error}.") from None


def spec_from_json(record: Mapping[str, Any]) -> NetworkSpec:
    channels, height, width = record["shape"]
    return NetworkSpec(record["name"], (channels, height, width), record["classes"], record["options"])


def parse_name(text: str) -> tuple[str, dict[str, int | str]]:
    """``"convnet:depth=3,norm=group"`` as a name and its options."""
    name, _, rest = text.partition(":")
    options: dict[str, int | str] = {}
    for item in filter(None, rest.split(",")):
        key, equals, value = item.partition("=")
        if not equals:
            raise InputError(f"Network options are written NAME:key=value,key=value; got '{text}'.")
        options[key] = int(value) if value.isdigit() else value
    return name, options
