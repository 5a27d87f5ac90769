"""A pool of networks during construction: each window is one of the drawn network's own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from methods_problems import DOUBLE, PreciseClassifier, gradients, network_points
from small import Invoke

import pseudocoresets as pc
from pseudocoresets.construction.loop import Construction, run_construction
from pseudocoresets.construction.settings import ConstructionSettings
from pseudocoresets.core.energy import Energy
from pseudocoresets.core.errors import InputError
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.methods import BPTT, Problem, RealData
from pseudocoresets.methods.estimator import with_network
from pseudocoresets.models.networks import build_network, network_names

NAMES = ("mlp:depth=1,width=6", "mlp:depth=2,width=5", "convnet:depth=1,width=3")


def problem(name: str = "convnet:depth=1,width=2") -> Problem:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(12, 1, 8, 8, generator=generator, dtype=DOUBLE)
    real = RealData(images, torch.arange(12) % 3, lambda x: x)
    network = build_network(name, (1, 8, 8), 3)
    return Problem(Energy(PreciseClassifier(network, 0.5), 100), None, lambda: real)


def drawn(method: BPTT, seed: int) -> str:
    return Randomness.for_purpose(seed).host.choice(network_names(method.networks))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("convnet,alexnet", ("convnet", "alexnet")),
        ("mlp:depth=1,width=6, convnet:depth=2,vgg11", ("mlp:depth=1,width=6", "convnet:depth=2", "vgg11")),
        ("", ()),
        (NAMES, NAMES),
    ],
)
def test_names_in_one_text_are_told_apart(text: str | tuple[str, ...], names: tuple[str, ...]) -> None:
    assert network_names(text) == names
    assert network_names(",".join(names)) == names


def test_a_window_is_the_one_of_the_drawn_network_alone() -> None:
    """The same loss, gradient and chains as a method without a pool has for that network, under the same prior."""
    pool, alone = BPTT(steps=3, chains=2, networks=NAMES), BPTT(steps=3, chains=2)
    seen = set()
    for seed in range(8):
        points, name = network_points(), drawn(pool, seed)
        seen.add(name)
        loss = pool.loss(points, problem(), Randomness.for_purpose(seed))
        randomness = Randomness.for_purpose(seed)
        randomness.host.choice(NAMES)
        expected = alone.loss(points, problem(name), randomness)
        torch.testing.assert_close(loss.value, expected.value)
        torch.testing.assert_close(gradients(loss.value, points)["x"], gradients(expected.value, points)["x"])
        assert {key: value.shape for key, value in loss.state.items()} == {
            f"{key} of {name}": value.shape for key, value in expected.state.items()
        }
    assert seen == set(NAMES)


def test_the_chains_of_the_others_stay_where_they_are() -> None:
    """What one network's window leaves is what its next one finds, whatever happens between."""
    pool, points = BPTT(steps=2, chains=1, horizon=2000, networks=NAMES[:2]), network_points(learned=False)
    for seed in range(6):
        before = dict(points.state)
        name = drawn(pool, seed)
        state = pool.loss(points, problem(), Randomness.for_purpose(seed)).state
        assert all(torch.equal(state[key], value) for key, value in before.items() if not key.endswith(name))
        assert not torch.equal(state[f"chains of {name}"], before.get(f"chains of {name}", torch.zeros(0)))
        points = replace(points, state=state)
    assert len(points.state) == 4


def test_networks_are_built_once_and_keep_the_prior() -> None:
    first, second = (with_network(problem(), NAMES[0], "bptt").energy.model for _ in range(2))
    assert isinstance(first, PreciseClassifier)
    assert isinstance(second, PreciseClassifier)
    assert first.network is second.network
    assert first.prior_scale == 0.5


def test_an_unknown_network_is_refused_at_once() -> None:
    with pytest.raises(InputError, match=r"no network named 'alexnett'\. Did you mean 'alexnet'"):
        BPTT(networks="convnet,alexnett")


def test_the_command_and_python_take_a_pool(bpc: Invoke, digits: pc.Dataset, tmp_path: Path) -> None:
    pool = f"{NAMES[0]},{NAMES[2]}"
    given = [f"--set={option}" for option in (f"networks={pool}", "steps=2", "chains=1", "horizon=8", "batch_size=32")]
    learned = ("--iterations", 6, "--learning-rate", 0.1, "--optimiser", "adam", "--keep-weights")
    (tmp_path / "plain.json").write_text("{}")
    made = bpc(
        *("construct", "--method", "bptt", "--dataset", "digits", "--network", NAMES[0], "--device", "cpu"),
        *("--preset", "plain.json", *given, *learned, "--out", "c.safetensors"),
    )
    assert made.exit_code == 0, made.stderr
    coreset = pc.Coreset.load(tmp_path / "c.safetensors")
    assert coreset.configuration["method"]["networks"] == pool
    method = BPTT(steps=2, chains=1, horizon=8, batch_size=32, networks=[NAMES[0], NAMES[2]])
    settings = {"iterations": 6, "learning_rate": 0.1, "optimiser": "adam", "preset": tmp_path / "plain.json"}
    again = pc.construct(digits, None, method, 1, network=NAMES[0], device="cpu", **settings)
    assert torch.equal(again.x, coreset.x)


def test_a_construction_that_stopped_goes_on_with_the_chains_of_every_network(
    digits: pc.Dataset, tmp_path: Path
) -> None:
    """Six iterations, and twelve from their checkpoint, end as twelve at once."""
    method = BPTT(steps=2, chains=1, horizon=8, batch_size=32, networks=NAMES[:2])

    def made(iterations: int, checkpoint: Path | None = None) -> Construction:
        settings = ConstructionSettings(iterations=iterations, learning_rate=0.1, optimiser="adam")
        return run_construction(
            digits, None, "bptt", method, settings, network=NAMES[0], device="cpu", checkpoint=checkpoint
        )

    made(6, tmp_path / "half")
    assert torch.equal(made(12, tmp_path / "half").coreset.x, made(12).coreset.x)
