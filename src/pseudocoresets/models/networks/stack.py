"""Networks that are a stack of layers, and their forward for a population without ``vmap``.

The chains lie side by side in the channels: one grouped convolution, one group norm and one batched product
serve all of them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Stack(nn.Sequential):
    """Layers that see images, a flattening, and layers that see vectors.

    ``features`` may hold plain convolutions, group and layer norms and layers without parameters;
    ``classifier`` linear layers and layers without parameters.
    """

    def __init__(self, features: Sequence[nn.Module], classifier: nn.Module) -> None:
        super().__init__(OrderedDict(features=nn.Sequential(*features), flatten=nn.Flatten(), classifier=classifier))
        leaves = (pair for pair in self.named_modules() if not isinstance(pair[1], nn.Sequential))
        self._leaves = [(f"{name}.weight", f"{name}.bias", layer) for name, layer in leaves]

    def population_logits(self, parameters: Mapping[str, Tensor], images: Tensor) -> Tensor:
        """Class scores (chains, batch, classes) under parameters that all have a leading chain dimension.

        ``images`` are shared, (batch, ...), or each chain's own, (chains, batch, ...). Inside, they are
        (batch, chains * channels, height, width) until they are flattened to (chains, batch, features).
        """
        chains = len(next(iter(parameters.values())))
        x = images if images.dim() == 4 else images.transpose(0, 1).flatten(1, 2)
        shared = images.dim() == 4
        for weight, bias, layer in self._leaves:
            if weight in parameters:
                x = _with_parameters(layer, x, parameters[weight], parameters[bias], shared)
                shared = False
            elif isinstance(layer, nn.Flatten):
                x = x.reshape(len(x), 1 if shared else chains, -1).transpose(0, 1).expand(chains, -1, -1)
            else:
                x = layer(x)
        return x


def _with_parameters(layer: nn.Module, x: Tensor, weight: Tensor, bias: Tensor, shared: bool) -> Tensor:
    chains = len(weight)
    if isinstance(layer, nn.Conv2d):
        groups = 1 if shared else chains
        return F.conv2d(x, weight.flatten(0, 1), bias.flatten(), layer.stride, layer.padding, layer.dilation, groups)
    if isinstance(layer, nn.GroupNorm):
        return F.group_norm(x, layer.num_groups * chains, weight.flatten(), bias.flatten(), layer.eps)
    if isinstance(layer, nn.LayerNorm):
        apart = x.view(len(x), chains, -1, *x.shape[2:])
        return (F.layer_norm(apart, layer.normalized_shape, eps=layer.eps) * weight + bias).flatten(1, 2)
    if isinstance(layer, nn.Linear):
        return torch.baddbmm(bias[:, None], x, weight.mT)
    raise TypeError(f"A stack has no population form for {type(layer).__name__}.")
