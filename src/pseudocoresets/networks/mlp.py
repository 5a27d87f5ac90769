"""A multi-layer perceptron on flattened images."""

from __future__ import annotations

import math

from torch import nn

from pseudocoresets.networks.convnet import activation_layer
from pseudocoresets.networks.network import Shape


class MLP(nn.Sequential):
    """``depth`` hidden layers of ``width`` units."""

    def __init__(
        self, shape: Shape, classes: int, depth: int = 2, width: int = 128, activation: str = "relu"
    ) -> None:
        layers: list[nn.Module] = [nn.Flatten()]
        inputs = math.prod(shape)
        for _ in range(depth):
            layers += [nn.Linear(inputs, width), activation_layer(activation)]
            inputs = width
        super().__init__(*layers, nn.Linear(inputs, classes))
