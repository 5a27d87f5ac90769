"""A multi-layer perceptron on flattened images."""

from __future__ import annotations

import math

from torch import nn

from pseudocoresets.models.networks.layers import activation_layer, positive
from pseudocoresets.models.networks.network import Shape
from pseudocoresets.models.networks.stack import Stack


class MLP(Stack):
    """``depth`` hidden layers of ``width`` units."""

    def __init__(self, shape: Shape, classes: int, depth: int = 2, width: int = 128, activation: str = "relu") -> None:
        layers: list[nn.Module] = []
        inputs = math.prod(shape)
        for _ in range(positive("depth", depth)):
            layers += [nn.Linear(inputs, positive("width", width)), activation_layer(activation)]
            inputs = width
        super().__init__([], nn.Sequential(*layers, nn.Linear(inputs, classes)))
