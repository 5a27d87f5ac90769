"""Networks: sizes, options, one parameter set or a population, modules of the user's."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from pseudocoresets.core.errors import InputError
from pseudocoresets.models.networks import (
    NETWORKS,
    Network,
    NetworkSpec,
    as_network,
    build_network,
    from_spec,
    spec_from_json,
)
from pseudocoresets.models.networks.convnet import ConvNet

CIFAR = (3, 32, 32)
MNIST = (1, 28, 28)
SMALL = {
    "convnet:depth=2,width=8": (1, 8, 8),
    "convnet:depth=2,width=8,norm=group,pooling=max,activation=leaky-relu": (3, 8, 8),
    "convnet:depth=2,width=8,norm=layer,pooling=none,activation=sigmoid": (2, 8, 8),
    "convnet:depth=2,width=8,norm=none": (1, 28, 28),
    "alexnet:norm=instance": (1, 8, 8),
    "vgg11": (1, 28, 28),
    "resnet18": (1, 16, 16),
    "lenet": (1, 28, 28),
    "mlp:width=16,activation=sigmoid": (1, 8, 8),
}


class Depthwise(nn.Module):
    """Not in the library: depthwise convolution, GELU, dropout, a tied weight, a buffer."""

    def __init__(self, channels: int = 3, classes: int = 5) -> None:
        super().__init__()
        self.widen = nn.Conv2d(channels, 8, kernel_size=1)
        self.spatial = nn.Conv2d(8, 8, kernel_size=3, padding=1, groups=8)
        self.again = self.spatial
        self.dropout = nn.Dropout(0.5)
        self.scores = nn.Linear(8, classes, bias=False)
        self.register_buffer("shift", torch.randn(8, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        hidden = F.gelu(self.spatial(self.widen(images) + self.shift.to(images.dtype)))
        return self.scores(self.dropout(F.gelu(self.again(hidden)).mean((2, 3))))


def depthwise() -> Network:
    return Network.from_module(Depthwise, (3, 6, 6), 5, name="depthwise")


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("convnet:depth=3,width=128", 320_010),
        ("convnet:depth=3,width=256", 1_229_834),
        ("convnet:depth=5,width=128", 596_490),
        ("alexnet", 1_872_202),
        ("vgg11", 9_231_114),
        ("resnet18", 11_173_962),
    ],
)
def test_parameter_counts_for_cifar_are_those_of_the_paper(name: str, size: int) -> None:
    assert build_network(name, CIFAR, 10).size == size


def test_the_default_convnet_for_32_pixels_is_depth_3_and_width_128() -> None:
    assert build_network("convnet", CIFAR, 10).size == 320_010


@pytest.mark.parametrize("name", ["convnet", "alexnet", "vgg11", "lenet"])
def test_images_of_28_pixels_are_padded_to_the_size_of_32(name: str) -> None:
    padded, full = build_network(name, MNIST, 10), build_network(name, (1, 32, 32), 10)
    assert padded.size == full.size
    images = torch.randn(2, *MNIST)
    theta = full.initialise(0)
    expected = full.logits(theta, F.pad(images, (2, 2, 2, 2)))
    torch.testing.assert_close(padded.logits(theta, images), expected, rtol=1e-4, atol=1e-5)


def gradients(network: Network, theta: Tensor, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Scores and the gradients of one scalar function of them by the parameters and by the images."""
    theta, images = theta.clone().requires_grad_(), images.clone().requires_grad_()
    logits = network.logits(theta, images)
    loss = F.log_softmax(logits, -1)[..., 0].sum()
    return logits.detach(), *torch.autograd.grad(loss, (theta, images))


@pytest.mark.parametrize("name", [*SMALL, "depthwise"])
@pytest.mark.parametrize("own_images", [False, True], ids=["shared", "own"])
def test_a_population_gives_what_its_members_give(name: str, own_images: bool) -> None:
    network = depthwise() if name == "depthwise" else build_network(name, SMALL[name], 5)
    theta = network.initialise(0, chains=3).double()
    theta += 0.1 * torch.randn(theta.shape, generator=torch.Generator().manual_seed(1), dtype=theta.dtype)
    generator = torch.Generator().manual_seed(2)
    lead = (3, 2) if own_images else (2,)
    images = torch.randn(*lead, *network.spec.shape, generator=generator, dtype=theta.dtype)
    logits, by_theta, by_images = gradients(network, theta, images)
    assert logits.shape == (3, 2, 5)
    single = [gradients(network, one, images[i] if own_images else images) for i, one in enumerate(theta)]
    torch.testing.assert_close(logits, torch.stack([one[0] for one in single]))
    torch.testing.assert_close(by_theta, torch.stack([one[1] for one in single]))
    images_gradients = torch.stack([one[2] for one in single])
    torch.testing.assert_close(by_images, images_gradients if own_images else images_gradients.sum(0))


@pytest.mark.parametrize("name", [*SMALL, "depthwise"])
def test_logits_are_those_of_the_ordinary_module(name: str) -> None:
    network = depthwise() if name == "depthwise" else build_network(name, SMALL[name], 5)
    theta = network.initialise(3)
    module = network.module(theta)
    images = torch.randn(2, *network.spec.shape)
    torch.testing.assert_close(network.logits(theta, images), module(images), rtol=1e-4, atol=1e-5)
    assert torch.equal(network.flatten(module), theta)


@settings(max_examples=15, deadline=None)
@given(
    depth=st.integers(1, 3),
    width=st.sampled_from([4, 12]),
    norm=st.sampled_from(["instance", "group", "layer", "none"]),
    pooling=st.sampled_from(["average", "max", "none"]),
    chains=st.integers(1, 3),
    side=st.sampled_from([8, 11]),
)
def test_every_convnet_agrees_with_its_module(
    depth: int, width: int, norm: str, pooling: str, chains: int, side: int
) -> None:
    network = build_network("convnet", (2, side, side), 3, depth=depth, width=width, norm=norm, pooling=pooling)
    theta = network.initialise(0, chains)
    images = torch.randn(2, 2, side, side, generator=torch.Generator().manual_seed(0))
    expected = torch.stack([network.module(one)(images) for one in theta])
    torch.testing.assert_close(network.logits(theta, images), expected, rtol=1e-4, atol=1e-5)


def test_initialisation_depends_on_the_seed_alone() -> None:
    network = build_network("convnet:width=8", (1, 8, 8), 10)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first = network.initialise(5, chains=2)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    assert torch.equal(network.initialise(5, chains=2), first)
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(network.initialise(6, chains=2), first)


def test_a_forward_changes_nothing_in_the_network() -> None:
    network = depthwise()
    theta = network.initialise(1, chains=4)
    images = torch.randn(2, 3, 6, 6)
    module, first = network.module(theta[0]).state_dict(), network.logits(theta, images)
    network.logits(network.initialise(2, chains=4).requires_grad_(), images).sum().backward()
    again = network.module(theta[0]).state_dict()
    assert module.keys() == again.keys() >= {"shift", "widen.weight"}
    assert all(torch.equal(value, again[name]) for name, value in module.items())
    assert torch.equal(network.logits(theta, images), first)


def test_a_module_on_another_device_is_a_copy() -> None:
    network = depthwise()
    theta, images = network.initialise(0, chains=2), torch.randn(2, 3, 6, 6)
    before = network.logits(theta, images)
    elsewhere = network.logits(theta.to("meta"), images.to("meta"))
    assert elsewhere.device.type == "meta"
    assert elsewhere.shape == before.shape
    assert torch.equal(network.logits(theta, images), before)


def test_an_own_module_is_used_like_any_other() -> None:
    network = depthwise()
    assert network.size == sum(parameter.numel() for parameter in Depthwise().parameters())
    theta, images = network.initialise(0), torch.randn(4, 3, 6, 6)
    assert torch.equal(network.logits(theta, images), network.logits(theta, images)), "dropout is off"
    alone = network.logits(theta, images[:1])
    torch.testing.assert_close(alone, network.logits(theta, images)[:1])
    assert not network.module(theta).training


def test_a_registered_constructor_is_found_by_name_and_from_its_record() -> None:
    name = "depthwise-for-test"
    NETWORKS.add(name, lambda shape, classes: Depthwise(shape[0], classes))
    try:
        network = build_network(name, (3, 6, 6), 5)
        again = from_spec(spec_from_json(network.spec.as_json()))
        images = torch.randn(2, 3, 6, 6)
        theta = network.initialise(0)
        assert torch.equal(again.logits(theta, images), network.logits(theta, images))
    finally:
        del NETWORKS._entries[name]


def test_the_record_of_a_network_rebuilds_it() -> None:
    network = build_network("convnet:depth=2,width=8", (1, 8, 8), 4, norm="group")
    assert network.spec == NetworkSpec("convnet", (1, 8, 8), 4, {"depth": 2, "width": 8, "norm": "group"})
    assert spec_from_json(network.spec.as_json()) == network.spec


def test_batch_norm_is_an_ordinary_module_but_not_a_network_to_sample() -> None:
    module = ConvNet((3, 8, 8), 10, norm="batch", width=8)
    assert module(torch.randn(4, 3, 8, 8)).shape == (4, 10)
    with pytest.raises(InputError, match="batch statistics"):
        build_network("convnet:norm=batch", (3, 8, 8), 10)
    with pytest.raises(InputError, match="BatchNorm2d"):
        build_network("resnet18:norm=batch", CIFAR, 10)


def test_running_statistics_are_refused() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.InstanceNorm2d(1, track_running_stats=True), nn.Flatten(), nn.Linear(16, 2))

    with pytest.raises(InputError, match="InstanceNorm2d"):
        Network.from_module(build, (1, 4, 4), 2)


class Centred(nn.Linear):
    """A hand-written batch statistic."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward((images - images.mean(0)).flatten(1))


class AlwaysDropping(nn.Linear):
    def forward(self, images: Tensor) -> Tensor:
        return super().forward(F.dropout(images.flatten(1), training=True))


@pytest.mark.parametrize("build", [Centred, AlwaysDropping])
def test_a_forward_that_depends_on_the_batch_or_on_chance_is_refused(build: type[nn.Module]) -> None:
    with pytest.raises(InputError, match="different scores"):
        Network.from_module(lambda: build(16, 2), (1, 4, 4), 2)


def test_a_module_with_another_number_of_classes_is_refused() -> None:
    with pytest.raises(InputError, match=r"\(batch, 3\)"):
        Network.from_module(lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 2)), (1, 4, 4), 3)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("convnt", CIFAR, "Did you mean 'convnet'"),
        ("convnet:depht=3", CIFAR, "depth, width, norm, pooling, activation"),
        ("convnet:depth", CIFAR, "key=value"),
        ("convnet:depth=0", CIFAR, "from 1 to 1,000"),
        ("convnet:depth=6", CIFAR, "at most 5"),
        ("convnet:width=wide", CIFAR, "whole number"),
        ("convnet:width=2.5", CIFAR, "whole number"),
        ("convnet:norm=instances", CIFAR, "instance, batch, group, layer, none"),
        ("convnet:norm=group,width=6", CIFAR, "multiple of 4"),
        ("convnet:pooling=mean", CIFAR, "average, max, none"),
        ("convnet:activation=tanh", CIFAR, "relu, leaky-relu, sigmoid"),
        ("convnet", (3, 32, 16), "square"),
        ("convnet", (1, 4, 4), "at least 8"),
        ("vgg11", (1, 8, 8), "at least 28"),
        ("resnet18", (1, 8, 8), "at least 16"),
        ("lenet:norm=instance", CIFAR, "its options are: none"),
    ],
)
def test_a_wrong_name_or_option_says_what_is_right(name: str, shape: tuple[int, int, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build_network(name, shape, 10)


def test_parameters_of_another_network_are_refused() -> None:
    network = build_network("mlp:width=4", (1, 4, 4), 2)
    with pytest.raises(InputError, match=f"has {network.size} parameters; got vectors of 7"):
        network.logits(torch.zeros(7), torch.zeros(1, 1, 4, 4))
    with pytest.raises(InputError, match="not those of the network 'mlp'"):
        network.flatten(nn.Linear(3, 2))


class Scaled(nn.Module):
    """One linear layer with an initialisation, a setting and a parameter of its own."""

    def __init__(self, act: str = "tanh", classes: int = 3) -> None:
        super().__init__()
        self.linear = nn.Linear(16, classes)
        nn.init.constant_(self.linear.bias, 7.0)
        self.scale = nn.Parameter(torch.ones(1))
        self.act = act

    def forward(self, images: Tensor) -> Tensor:
        return self.linear(getattr(torch, self.act)(images.flatten(1))) * self.scale


class NeedsWidth(Scaled):
    def __init__(self, act: str) -> None:
        super().__init__(act)


SCALED = (1, 4, 4)


def as_scaled(network: object) -> Network:
    return as_network(network, SCALED, 3)  # type: ignore[arg-type]


def test_a_module_its_class_and_a_factory_are_the_same_network() -> None:
    networks = [as_scaled(given) for given in (Scaled(), Scaled, lambda: Scaled())]
    theta, images = networks[0].initialise(0), torch.randn(2, *SCALED)
    for network in networks:
        assert network.spec == NetworkSpec("custom:Scaled", SCALED, 3)
        assert torch.equal(network.initialise(0), theta)
        assert torch.equal(network.logits(theta, images), networks[0].logits(theta, images))
    assert len({network.fingerprint for network in networks}) == 1
    assert as_scaled(networks[0]) is networks[0]
    assert as_scaled("mlp:width=4").spec == build_network("mlp:width=4", SCALED, 3).spec
    assert as_network(ConvNet, (1, 8, 8), 3).spec.name == "custom:ConvNet"


def test_a_module_keeps_its_settings_and_gets_new_initial_values() -> None:
    """The class builds with tanh; the instance's sine stays, and the class's own initialisation is used."""
    module = Scaled("sin")
    before = {name: value.clone() for name, value in module.state_dict().items()}
    network = as_scaled(module)
    first, second = network.initialise(0), network.initialise(1)
    assert not torch.equal(first, second)
    assert (network.unflatten(first)["linear.bias"] == 7).all()
    built = network.module(first)
    torch.testing.assert_close(built(torch.ones(1, *SCALED)), network.logits(first, torch.ones(1, *SCALED)))
    assert built.act == "sin"
    with torch.no_grad():
        network.prototype.linear.weight.add_(1)
        built.linear.weight.add_(1)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


@pytest.mark.parametrize("module", [NeedsWidth("sin"), nn.Sequential(nn.Flatten(), nn.Linear(16, 3))])
def test_layers_are_reset_where_the_class_cannot_be_called(module: nn.Module) -> None:
    state = torch.get_rng_state()
    network = as_scaled(module)
    first, second = (network.unflatten(network.initialise(seed)) for seed in (0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    for name, value in module.named_parameters():
        drawn_again = not torch.equal(first[name], second[name])
        assert drawn_again != name.endswith("scale")
        assert drawn_again or torch.equal(first[name], value)


def test_the_fingerprint_tells_what_is_computed_and_not_how_it_started() -> None:
    fingerprints = [as_scaled(Scaled(act)).fingerprint for act in ("tanh", "sin", "tanh")]
    assert fingerprints[0] == fingerprints[2] != fingerprints[1]
    small = [build_network(name, (1, 8, 8), 3) for name in ("convnet:width=8", "convnet:width=8,pooling=max")]
    assert small[0].size == small[1].size and small[0].fingerprint != small[1].fingerprint


class SinglePrecision(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 3)

    def forward(self, images: Tensor) -> Tensor:
        return self.linear(images.flatten(1) @ torch.eye(16))


def test_a_module_without_double_precision_has_a_fingerprint_too() -> None:
    assert as_scaled(SinglePrecision()).fingerprint == as_scaled(SinglePrecision).fingerprint


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (lambda width: Scaled(), "neither without arguments"),
        (lambda: 3, "must build a torch.nn.Module"),
        (3, "is a name, a module"),
        (nn.Flatten(), "no parameters"),
        (nn.LazyLinear(3), "lazy"),
        (build_network("mlp:width=4", (1, 4, 4), 2), "2 classes; the data has images"),
        ("custom:Scaled", "give network="),
    ],
)
def test_what_is_no_network_is_refused(network: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        as_scaled(network)


def test_the_record_of_an_own_module_asks_for_it() -> None:
    with pytest.raises(InputError, match=r"'custom:Scaled' is a module of your own.*give network="):
        from_spec(spec_from_json(as_scaled(Scaled()).spec.as_json()))


@pytest.mark.parametrize(
    "name", ["convnet:depth=2,width=16", "mlp:width=32,depth=2", "convnet:depth=2,width=8,norm=layer"]
)
def test_drawn_parameters_are_distributed_as_initialised_ones(name: str) -> None:
    """Uniform in the range that the module's own have: bounds, mean and variance of each of its parameters."""
    network = build_network(name, (1, 8, 8), 3)
    drawn = network.unflatten(network.draw(400, torch.Generator().manual_seed(0)))
    for key, own in network.unflatten(network.initialise(0, 40)).items():
        values = drawn[key]
        if float(own.std()) == 0:
            assert torch.equal(values[:40], own)
            continue
        assert len(values.flatten().unique()) > 0.9 * values.numel()
        bound = float(values.abs().max())
        assert float(own.abs().max()) <= bound * (1 + 1e-3)
        assert float(own.abs().max()) > 0.9 * bound
        errors = values.numel() ** -0.5
        assert abs(float(values.mean())) < 5 * errors * bound / 3**0.5
        assert float(values.var()) == pytest.approx(bound**2 / 3, rel=5 * errors + 2e-3)


def test_a_module_with_an_initialisation_of_its_own_is_built_for_each_draw() -> None:
    def build() -> nn.Module:
        module = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
        nn.init.constant_(module[1].weight, 7.0)
        return module

    drawn = Network.from_module(build, (1, 8, 8), 3).draw(2, torch.Generator().manual_seed(0))
    assert bool((drawn[:, : 3 * 64] == 7).all())
    assert not torch.equal(drawn[0], drawn[1])


def test_layer_features_are_what_the_activations_give_and_last_the_embedding() -> None:
    network = build_network("convnet:depth=2,width=4", (1, 8, 8), 3)
    theta, images = network.initialise(0), torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    module = network.module(theta)
    expected = [module.features[:3](images), module.features[:7](images), module.features(images)]
    for found, wanted in zip(network.layer_features(theta, images), expected, strict=True):
        torch.testing.assert_close(found, wanted.flatten(1))
    assert torch.equal(network.features(theta, images), network.layer_features(theta, images)[-1])
