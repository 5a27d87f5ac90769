"""One forward for one parameter set or a population of them.

A parameter set is a flat vector ``theta`` of shape ``(size,)``; a population has a leading chain dimension,
``(chains, size)``. Kernels, experts and files then need not know what the parameters are parameters of.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from pseudocoresets._io.schema import NAME, PLAIN, Number, Object, Row
from pseudocoresets.core.errors import InputError
from pseudocoresets.core.seeds import derive_seed
from pseudocoresets.core.settings import Range
from pseudocoresets.models.networks.initialisation import UniformRanges, seeded, uniform_ranges

Shape = tuple[int, int, int]
Layout = list[tuple[str, tuple[int, ...]]]
"""Names and shapes of a module's parameters."""

CUSTOM = "custom"
PROBE_IMAGES = 2

ACTIVATIONS = (nn.ReLU, nn.LeakyReLU, nn.Sigmoid, nn.Tanh, nn.ELU, nn.GELU, nn.SiLU, nn.Softplus)


NETWORK_KIND = Object(
    {
        "name": NAME,
        "shape": Row((Number(Range(1, 1e4), whole=True),) * 3),
        "classes": Number(Range(1, 1e5), whole=True),
        "options": Object(others=PLAIN),
    }
)
"""What files record of a network."""


@dataclass(frozen=True)
class NetworkSpec:
    """All that is needed to build a network again: what experts and coresets record of it."""

    name: str
    shape: Shape
    classes: int
    options: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        """As it is written on the command line: ``convnet:depth=3,width=128``."""
        options = ",".join(f"{key}={value}" for key, value in self.options.items())
        return f"{self.name}:{options}" if options else self.name

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "shape": list(self.shape),
            "classes": self.classes,
            "options": dict(self.options),
        }


class Applied(NamedTuple):
    """A layer, what it got and what it gave."""

    layer: nn.Conv2d | nn.Linear
    given: Tensor
    output: Tensor


@runtime_checkable
class PopulationForward(Protocol):
    """A module with a forward of its own for a population; the others get ``vmap``."""

    def population_logits(self, parameters: Mapping[str, Tensor], images: Tensor) -> Tensor:
        """Class scores (chains, batch, classes); every parameter has a leading chain dimension."""
        ...


class Network:
    """A classifier whose parameters are passed in, as one vector or as a population of vectors.

    The module that ``build`` returns gives the architecture, the initialisation and the buffers; its own
    parameters are never used. Layers that act differently in training and in evaluation, such as dropout, act
    as in evaluation, because a posterior needs one likelihood.
    """

    def __init__(self, build: Callable[[], nn.Module], spec: NetworkSpec) -> None:
        self.spec = spec
        self._build = build
        self.prototype = seeded(build, 0).eval()
        self.layout = layout_of(self.prototype, spec.name)
        """Names and shapes of the parameters, in the order in which a parameter vector holds them."""
        check_sampleable(self.prototype, spec)
        self.sizes = [math.prod(shape) for _, shape in self.layout]
        self.size = sum(self.sizes)
        """Number of parameters."""
        self._population = self.prototype if isinstance(self.prototype, PopulationForward) else None
        self._on_device: dict[torch.device, nn.Module] = {}
        self._ranges: dict[torch.device, UniformRanges | None] = {}

    @classmethod
    def from_module(
        cls, build: Callable[[], nn.Module], shape: Shape, classes: int, name: str | None = None
    ) -> Network:
        """A network from any module of the user's; each call of ``build`` makes a freshly initialised one.

        It is named ``custom:`` and the module's class unless ``name`` is given. For a file to build it again by name,
        register its constructor: ``NETWORKS.add("mine", constructor)``.
        """
        return cls(build, NetworkSpec(name or f"{CUSTOM}:{type(seeded(build, 0)).__qualname__}", shape, classes))

    @cached_property
    def fingerprint(self) -> str:
        """Tells apart what networks compute, whatever they are called and however they were initialised.

        A hash of the parameters' names and shapes, and of the scores of fixed images under fixed parameters: in
        float64 to six digits of the largest one, or in float32 to four where the module cannot do float64.
        """
        digest = hashlib.blake2b(repr((self.spec.shape, self.spec.classes, self.layout)).encode(), digest_size=16)
        try:
            digest.update(self._probe(torch.float64, digits=6))
        except RuntimeError:
            digest.update(self._probe(torch.float32, digits=4))
        return digest.hexdigest()

    def _probe(self, dtype: torch.dtype, digits: int) -> bytes:
        """Scores of the probe, rounded; a parameter of n inputs has the variance 1 / (3 n) under it."""
        count = PROBE_IMAGES * math.prod(self.spec.shape)
        values = _fixed_values(count + self.size).to(dtype)
        images = 2 * values[:count].view(PROBE_IMAGES, *self.spec.shape)
        parameters = self.unflatten(values[count:])
        scaled = {name: value / math.sqrt(math.prod(value.shape[1:])) for name, value in parameters.items()}
        module = copy.deepcopy(self.prototype).to(dtype)
        with torch.no_grad():
            scores = functional_call(module, scaled, (images,)).double().cpu()
        largest = float(scores.abs().max())
        if not 0 < largest < math.inf:
            return str(largest).encode()
        unit = 10.0 ** (math.floor(math.log10(largest)) + 1 - digits)
        return (scores / unit).round().long().numpy().tobytes()

    def initialise(self, seed: int, chains: int | None = None, device: str | torch.device = "cpu") -> Tensor:
        """Parameters as the module's own initialisation draws them: ``(size,)``, or ``(chains, size)``."""
        if chains is None:
            return self.flatten(seeded(self._build, seed)).to(device)
        return torch.stack([self.initialise(derive_seed(seed, i)) for i in range(chains)]).to(device)

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """``count`` fresh initialisations (count, size), distributed as those of the module, on the generator's device.

        Where the module initialises itself as PyTorch's own layers do, no module is built for them.
        """
        device = generator.device
        if device not in self._ranges:
            known = uniform_ranges(self._build)
            self._ranges[device] = None if known is None else known.to(device)
        ranges = self._ranges[device]
        if ranges is not None:
            return ranges.draw(count, generator)
        seed = torch.randint(2**62, (), generator=generator, device=device)
        return self.initialise(int(seed), count, device)

    def logits(self, theta: Tensor, images: Tensor) -> Tensor:
        """Class scores.

        theta (size,), images (batch, ...)                                   -> (batch, classes)
        theta (chains, size), images (batch, ...) or (chains, batch, ...)    -> (chains, batch, classes)
        """
        if theta.dim() == 1:
            return self.logits(theta[None], images)[0]
        return self.population_logits(self.unflatten(theta), images)

    def population_logits(self, parameters: Mapping[str, Tensor], images: Tensor) -> Tensor:
        """The same (chains, batch, classes) for parameters by name, each with a leading chain dimension."""
        if self._population is not None:
            return self._population.population_logits(parameters, images)
        shared = images.dim() == 4
        if len(next(iter(parameters.values()))) == 1:
            own = {name: value[0] for name, value in parameters.items()}
            return self._forward(own, images if shared else images[0])[None]
        logits: Tensor = vmap(self._forward, in_dims=(0, None if shared else 0))(parameters, images)
        return logits

    def features(self, theta: Tensor, images: Tensor) -> Tensor:
        """The embeddings of images (batch, ...): the inputs (batch, features) of the last linear layer to be called."""
        return self._seen(theta, images, ())[-1]

    def layer_features(self, theta: Tensor, images: Tensor) -> list[Tensor]:
        """What each activation function gives (batch, size), in the order of their calls, and last the embeddings."""
        return self._seen(theta, images, ACTIVATIONS)

    def _seen(self, theta: Tensor, images: Tensor, kinds: tuple[type[nn.Module], ...]) -> list[Tensor]:
        """The outputs of layers of these kinds, and the last input of a linear layer."""
        inputs: list[Tensor] = []
        outputs: list[Tensor] = []

        def keep_input(layer: nn.Module, given: tuple[Tensor, ...]) -> None:
            inputs[:] = given[:1]

        def keep_output(layer: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> None:
            outputs.append(output)

        layers = list(self._module_on(images.device).modules())
        hooks = [layer.register_forward_pre_hook(keep_input) for layer in layers if isinstance(layer, nn.Linear)]
        hooks += [layer.register_forward_hook(keep_output) for layer in layers if isinstance(layer, kinds)]
        try:
            self._forward(self.unflatten(theta), images)
        finally:
            for hook in hooks:
                hook.remove()
        if not inputs:
            raise InputError(f"The network '{self.spec.name}' has no linear layer whose inputs could be embeddings.")
        return [each.flatten(1) for each in (*outputs, *inputs)]

    def traced(self, theta: Tensor, images: Tensor) -> tuple[Tensor, dict[str, Applied] | None]:
        """Class scores (batch, classes), and every layer whose weight is a matrix or more, by its name.

        None where they are not all linear maps or plain convolutions that were applied once, to one tensor.
        """
        found: dict[str, Applied] = {}
        calls: list[int] = []

        def keep(name: str, layer: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> None:
            assert isinstance(layer, nn.Conv2d | nn.Linear)
            found[name] = Applied(layer, given[0], output)
            calls.append(output._version)

        hooks = [
            layer.register_forward_hook(partial(keep, f"{name}.weight"))
            for name, layer in self._module_on(images.device).named_modules()
            if type(layer) is nn.Linear or (type(layer) is nn.Conv2d and is_plain(layer))
        ]
        try:
            scores = self._forward(self.unflatten(theta), images)
        finally:
            for hook in hooks:
                hook.remove()
        unchanged = calls == [each.output._version for each in found.values()]
        wanted = [name for name, shape in self.layout if len(shape) > 1]
        return scores, {name: found[name] for name in wanted} if unchanged and set(found) == set(wanted) else None

    def module(self, theta: Tensor) -> nn.Module:
        """An ordinary module with these parameters, in evaluation mode, for use outside this library."""
        module = copy.deepcopy(self.prototype)
        module.load_state_dict(self.unflatten(theta.detach().cpu()), strict=False)
        return module

    def flatten(self, module: nn.Module) -> Tensor:
        """The parameter vector of an ordinary module of this architecture."""
        parameters = dict(module.named_parameters())
        if layout_of(module, self.spec.name) != self.layout:
            raise InputError(f"The module's parameters are not those of the network '{self.spec.name}'.")
        return torch.cat([parameter.detach().flatten() for parameter in parameters.values()])

    def unflatten(self, theta: Tensor) -> dict[str, Tensor]:
        """Views (..., *shape) of parameter vectors (..., size) under the module's own parameter names."""
        if theta.shape[-1] != self.size:
            raise InputError(
                f"The network '{self.spec.name}' has {self.size:,} parameters; got vectors of {theta.shape[-1]:,}."
            )
        chains = theta.shape[:-1]
        parts = torch.split(theta, self.sizes, dim=-1)
        return {name: part.view(*chains, *shape) for (name, shape), part in zip(self.layout, parts, strict=True)}

    def _forward(self, parameters: Mapping[str, Tensor], images: Tensor) -> Tensor:
        logits: Tensor = functional_call(self._module_on(images.device), dict(parameters), (images,))
        return logits

    def prepare(self, device: torch.device) -> None:
        """Have the buffers on ``device`` before a transformation of ``torch.func``, in which no module may be moved."""
        self._module_on(device)

    def _module_on(self, device: torch.device) -> nn.Module:
        """The module with its buffers on ``device``; each device has its own copy, which nothing changes."""
        if device not in self._on_device:
            self._on_device[device] = copy.deepcopy(self.prototype).to(device)
        return self._on_device[device]


def layout_of(module: nn.Module, name: str) -> Layout:
    """Names and shapes of the parameters, of which there must be some and all of known shape."""
    parameters = dict(module.named_parameters())
    if not parameters:
        raise InputError(f"The network '{name}' has no parameters, so there is nothing to sample.")
    if any(isinstance(parameter, nn.parameter.UninitializedParameter) for parameter in parameters.values()):
        raise InputError(
            f"The network '{name}' has lazy layers without shapes; pass one batch of images through it first."
        )
    return [(key, tuple(parameter.shape)) for key, parameter in parameters.items()]


def check_sampleable(module: nn.Module, spec: NetworkSpec) -> None:
    """Refuse a module that is not p(y | x, theta): one answer for an image, whatever else is in its batch."""
    refuse_batch_statistics(module, spec.name)
    images = torch.randn(2, *spec.shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        together, alone = module(images), module(images[:1])
    if not isinstance(together, Tensor) or together.shape != (2, spec.classes):
        got = tuple(together.shape) if isinstance(together, Tensor) else type(together).__name__
        raise InputError(
            f"The network '{spec.name}' must map images (batch, *{spec.shape}) to scores "
            f"(batch, {spec.classes}); for two images it gave {got}."
        )
    if not torch.allclose(together[:1], alone, rtol=1e-3, atol=1e-3 * float(together.abs().max())):
        raise InputError(
            f"The network '{spec.name}' gives one image different scores at each call or in another batch, "
            "so it has no posterior to sample; remove what depends on chance or on the rest of the batch."
        )


def refuse_batch_statistics(module: nn.Module, name: str) -> None:
    """A posterior needs p(y | x, theta) to depend on x alone, not on other images, now or before."""
    for layer in module.modules():
        normalises = isinstance(layer, nn.modules.batchnorm._BatchNorm)
        tracks = isinstance(layer, nn.modules.batchnorm._NormBase) and layer.track_running_stats
        if normalises or tracks:
            raise InputError(
                f"The network '{name}' normalises with batch statistics ({type(layer).__name__}), so its "
                "likelihood of one image depends on the others and has no posterior to sample; use instance, "
                "group or layer normalisation instead."
            )


def is_plain(layer: nn.Conv2d) -> bool:
    """Whether it is a sum over windows without gaps of all channels, with zeros around the image."""
    usual = layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    return usual and set(layer.dilation) == {1}


def _fixed_values(count: int) -> Tensor:
    """Numbers in [-1, 1) that are the same on every machine: bytes of SHAKE-256, scaled."""
    stream = bytearray(hashlib.shake_256(b"pseudocoresets network probe").digest(count))
    return (torch.frombuffer(stream, dtype=torch.uint8).double() - 128) / 128
