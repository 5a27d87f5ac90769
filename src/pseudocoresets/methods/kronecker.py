"""A Kronecker-factored Laplace approximation of a network's posterior (Ritter et al. 2018).

The generalised Gauss-Newton matrix of sum_i w_i log p(y_i | x_i, theta), which for a softmax is also the Fisher
information, is taken block by block. For a linear layer with inputs a_i (and a 1 for its bias) and, for each class c of
probability p_c, the gradient g_ic of log p_c in its outputs, with W = sum_i w_i,

    H  ~=  W  A (x) G,      A = sum_i (w_i / W) a_i a_i^T,      G = sum_i (w_i / W) sum_c p_ic g_ic g_ic^T

This is exact for one point, and where either factor is the same for all points. A convolution sums A over its
positions and averages G over them (Grosse & Martens 2016). Other parameters, such as those of a norm, have the exact
diagonal of H.

At temperature tau, with the prior N(0, s^2 I), the posterior is N(theta, P^-1) around a mode theta with

    P = (W A (x) G + I / s^2) / tau + I / sigma^2

where ``sigma`` bounds the deviation in directions that the data leave open, where a network's posterior is nothing
like a Gaussian: it is the extra precision that Ritter et al. tune, given as a deviation. With A = Q_A D_A Q_A^T and
G = Q_G D_G Q_G^T, a sample of the layer's weights is Q_G (P~^-1/2 * xi) Q_A^T for P~ the matrix of P's eigenvalues.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap
from torch.nn import functional as F

from pseudocoresets.models.networks import Network

POINTS_AT_ONCE = 256


@dataclass(frozen=True)
class Factors:
    """A (inputs + bias) and G (outputs) of one linear or convolutional layer."""

    inputs: Tensor
    outputs: Tensor
    has_bias: bool


@dataclass(frozen=True)
class Curvature:
    """The curvature of the weighted log-likelihood: factors by layer name, diagonals by parameter name."""

    total_weight: Tensor
    layers: Mapping[str, Factors] = field(default_factory=dict)
    diagonals: Mapping[str, Tensor] = field(default_factory=dict)
    """Already multiplied by the total weight."""


@dataclass(frozen=True)
class Posterior:
    """N(mode, P^-1) of one parameter vector ``mode`` (size,)."""

    network: Network
    mode: Tensor
    curvature: Curvature
    temperature: float = 1.0
    prior_scale: float = 1.0
    sigma: float | None = None

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """``count`` samples (count, size)."""
        noise = torch.randn(
            (count, self.network.size), generator=generator, device=self.mode.device, dtype=self.mode.dtype
        )
        scaled = {name: value.clone() for name, value in self.network.unflatten(noise).items()}
        for name, factors in self.curvature.layers.items():
            scaled |= self._scale_layer(name, factors, scaled)
        for name, diagonal in self.curvature.diagonals.items():
            scaled[name] = scaled[name] / self._precision(diagonal).sqrt()
        ordered = [scaled[name].flatten(1) for name in self.network.unflatten(self.mode)]
        return self.mode + torch.cat(ordered, 1)

    def _scale_layer(self, name: str, factors: Factors, noise: Mapping[str, Tensor]) -> dict[str, Tensor]:
        weight = noise[f"{name}.weight"]
        columns = weight.flatten(2)
        if factors.has_bias:
            columns = torch.cat([columns, noise[f"{name}.bias"][..., None]], 2)
        in_values, in_vectors = torch.linalg.eigh(factors.inputs)
        out_values, out_vectors = torch.linalg.eigh(factors.outputs)
        products = torch.outer(out_values.clamp_min(0), in_values.clamp_min(0))
        precision = self._precision(self.curvature.total_weight * products)
        columns = out_vectors @ (columns / precision.sqrt()) @ in_vectors.T
        if not factors.has_bias:
            return {f"{name}.weight": columns.view_as(weight)}
        return {f"{name}.weight": columns[..., :-1].reshape(weight.shape), f"{name}.bias": columns[..., -1]}

    def _precision(self, curvature: Tensor) -> Tensor:
        """P's eigenvalues from those of H; without a temperature only ``sigma`` is left to vary."""
        bound = 0.0 if self.sigma is None else self.sigma**-2
        return (curvature + self.prior_scale**-2) / self.temperature + bound


def curvature(network: Network, theta: Tensor, x: Tensor, weights: Tensor) -> Curvature:
    """The factors at ``theta`` (size,) for points ``x`` with ``weights``; labels do not enter."""
    module = network.module(theta).to(device=x.device, dtype=x.dtype)
    total = weights.sum()
    shares = weights / total
    with _recorded(module) as records:
        logits = module(x)
        factors = _factors(module, records, logits, shares)
    factored = {f"{name}.{kind}" for name in factors for kind in ("weight", "bias")}
    others = {name: value.detach() for name, value in module.named_parameters() if name not in factored}
    diagonals = {name: total * value for name, value in _diagonals(module, others, x, shares).items()}
    return Curvature(total, factors, diagonals)


@dataclass
class _Record:
    inputs: Tensor
    outputs: Tensor


@contextmanager
def _recorded(module: nn.Module) -> Iterator[dict[str, _Record]]:
    """Within the block, the inputs and outputs of every factored layer of a forward pass."""
    records: dict[str, _Record] = {}
    hooks = []
    for name, layer in module.named_modules():
        if _is_factored(layer):

            def remember(_: nn.Module, arguments: tuple[Tensor, ...], output: Tensor, name: str = name) -> None:
                records[name] = _Record(arguments[0].detach(), output)

            hooks.append(layer.register_forward_hook(remember))
    try:
        yield records
    finally:
        for hook in hooks:
            hook.remove()


def _is_factored(layer: nn.Module) -> bool:
    """Grouped convolutions and padding given by name are left to the diagonal."""
    plain = isinstance(layer, nn.Conv2d) and layer.groups == 1 and not isinstance(layer.padding, str)
    return isinstance(layer, nn.Linear) or plain


def _factors(module: nn.Module, records: Mapping[str, _Record], logits: Tensor, shares: Tensor) -> dict[str, Factors]:
    layers = {name: module.get_submodule(name) for name in records}
    gradients = _output_factors(records, logits, shares)
    return {
        name: Factors(_input_factor(layer, records[name].inputs, shares), gradients[name], _has_bias(layer))
        for name, layer in layers.items()
    }


def _has_bias(layer: nn.Module) -> bool:
    return getattr(layer, "bias", None) is not None


def _input_factor(layer: nn.Module, inputs: Tensor, shares: Tensor) -> Tensor:
    """A: inputs (points, features), or the patches of images, with a 1 for the bias."""
    if isinstance(layer, nn.Conv2d):
        assert not isinstance(layer.padding, str)
        patches = F.unfold(
            inputs, layer.kernel_size, dilation=layer.dilation, padding=layer.padding, stride=layer.stride
        )
        rows = patches.transpose(1, 2)
    else:
        rows = inputs.flatten(1, -2) if inputs.dim() > 2 else inputs[:, None]
    if _has_bias(layer):
        rows = F.pad(rows, (0, 1), value=1.0)
    return torch.einsum("i,ipa,ipb->ab", shares, rows, rows)


def _output_factors(records: Mapping[str, _Record], logits: Tensor, shares: Tensor) -> dict[str, Tensor]:
    """G of each layer: sum over classes c of p_c g_c g_c^T, one backward pass per class."""
    probabilities = logits.detach().softmax(-1)
    outputs = [record.outputs for record in records.values()]
    factors: dict[str, Tensor] = {}
    classes = logits.shape[-1]
    for chosen in range(classes):
        score = -probabilities * probabilities[:, chosen, None].sqrt()
        score[:, chosen] += probabilities[:, chosen].sqrt()
        gradients = torch.autograd.grad(logits, outputs, score, retain_graph=chosen + 1 < classes)
        for name, gradient in zip(records, gradients, strict=True):
            rows = gradient.flatten(2).transpose(1, 2) if gradient.dim() == 4 else gradient[:, None]
            mine = torch.einsum("i,ipa,ipb->ab", shares, rows, rows) / rows.shape[1]
            factors[name] = factors[name] + mine if name in factors else mine
    return factors


def _diagonals(module: nn.Module, others: Mapping[str, Tensor], x: Tensor, shares: Tensor) -> dict[str, Tensor]:
    """sum_i share_i sum_c p_ic (d log p_ic / d theta)^2, exactly, for the parameters that have no factors."""
    if not others:
        return {}
    fixed = {name: value.detach() for name, value in module.named_parameters() if name not in others}

    def log_probabilities(parameters: dict[str, Tensor], image: Tensor) -> Tensor:
        logits: Tensor = functional_call(module, {**fixed, **parameters}, (image[None],))
        return logits[0].log_softmax(-1)

    total = {name: torch.zeros_like(value) for name, value in others.items()}
    for images, share in zip(x.split(POINTS_AT_ONCE), shares.split(POINTS_AT_ONCE), strict=True):
        with torch.no_grad():
            probabilities = module(images).softmax(-1)
        jacobians = vmap(jacrev(log_probabilities), in_dims=(None, 0))(dict(others), images)
        for name, jacobian in jacobians.items():
            total[name] += torch.einsum("i,ic,ic...->...", share, probabilities, jacobian.square())
    return total
