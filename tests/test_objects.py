"""Objects wherever a name is taken, and the same defaults in Python as in the command."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from small import Invoke
from torch import Tensor

import pseudocoresets as pc
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.data import Dataset
from pseudocoresets.data.augmentation import Transformation
from pseudocoresets.sources.experts import Experts

NETWORK = "mlp:depth=1,width=8"


@dataclass(frozen=True)
class Shift:
    """An augmentation of a user's own that counts how often it is asked."""

    by: float = 0.1
    asked: list[str] = field(default_factory=list, metadata={"identity": False})
    kinds: Sequence[str] = ("shift",)

    def draw(self, count: int, randomness: Randomness) -> Transformation:
        return self._asked("draw")

    def draw_steps(self, steps: int, count: int, randomness: Randomness) -> Transformation:
        return self._asked("draw_steps")

    def draw_kind(self, kind: str, count: int, generator: torch.Generator) -> Transformation:
        return self._asked("draw_kind")

    def _asked(self, how: str) -> Transformation:
        self.asked.append(how)
        return lambda images: images + self.by


def test_an_augmentation_of_ones_own_is_used_by_experts_construction_and_sampler(digits: Dataset) -> None:
    asked: list[int] = []
    own = Shift()
    experts = pc.train_experts(digits, NETWORK, 1, 3, augmentation=own, device="cpu")
    asked.append(len(own.asked))
    coreset = pc.construct(digits, experts, ipc=1, iterations=2, augmentation=own, device="cpu")
    asked.append(len(own.asked))
    pc.sample_posterior(coreset, chains=1, steps=4, samples=1, augmentation=own, device="cpu")
    asked.append(len(own.asked))
    assert 0 < asked[0] < asked[1] < asked[2]


def test_no_augmentation_is_none_though_one_is_given(digits: Dataset) -> None:
    own = Shift()
    pc.train_experts(digits, NETWORK, 1, 1, augmentation=own, augment=False, device="cpu")
    assert own.asked == []


def test_a_transform_of_ones_own_is_what_the_model_sees() -> None:
    def halved(images: Tensor) -> pc.data.InputTransform:
        return pc.data.InputTransform(torch.tensor([0.0]), torch.tensor([2.0]))

    images = torch.rand(12, 1, 8, 8)
    data = pc.Dataset.from_tensors(images, torch.arange(12) % 3, transform=halved)
    torch.testing.assert_close(data.transform(data.train.images), data.train.images / 2)


@pytest.mark.parametrize("method", ["cd", "wasserstein", "bptt"])
@pytest.mark.parametrize("ipc", [1, 2])
def test_python_and_the_command_have_the_same_defaults(
    digits: Dataset, experts_folder: Path, bpc: Invoke, tmp_path: Path, method: str, ipc: int
) -> None:
    """What a coreset file records of its settings, and what an evaluation records of its sampler."""
    few = {"iterations": 1}
    experts: Experts = pc.load_experts(experts_folder)
    made = pc.construct(digits, experts, method=method, ipc=ipc, device="cpu", **few)
    start = tmp_path / "start.safetensors"
    pc.construct(digits, method="random", ipc=ipc).save(start)
    command = ("construct", "--experts", experts_folder, "--method", method, "--ipc", ipc, "--initial", start)
    result = bpc(*command, "--iterations", 1, "--out", "c.safetensors", "--device", "cpu")
    assert result.exit_code == 0, result.stderr
    loaded = pc.Coreset.load(tmp_path / "c.safetensors")
    assert recorded(loaded) == recorded(made)


def recorded(coreset: pc.Coreset) -> dict[str, Any]:
    content = {key: coreset.configuration[key] for key in ("settings", "method")}
    loaded: dict[str, Any] = json.loads(json.dumps(content))
    return loaded


def test_python_and_the_command_sample_in_the_same_way(coreset: pc.Coreset, coreset_file: Path, bpc: Invoke) -> None:
    samples = pc.sample_posterior(coreset, device="cpu")
    result = bpc("evaluate", coreset_file, "--json", "--device", "cpu")
    assert json.loads(result.stdout)["posterior"] == json.loads(json.dumps(samples.settings.as_json()))


def test_experts_have_the_commands_settings(digits: Dataset, bpc: Invoke, tmp_path: Path) -> None:
    trained = pc.train_experts(digits, NETWORK, count=1, device="cpu")
    result = bpc("experts", "--network", NETWORK, "--count", 1, "--out", "e", "--device", "cpu")
    assert result.exit_code == 0, result.stderr
    assert asdict(pc.load_experts(tmp_path / "e").settings) == asdict(trained.settings)


class Laplace:
    """A user's model: y_i ~ Laplace(x_i . theta, 1) with the prior N(0, I), for one parameter vector at a time."""

    size = 2

    def log_likelihood(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return -((y - x @ theta).square() + 1e-3).sqrt()

    def log_prior(self, theta: Tensor) -> Tensor:
        return -theta.square().sum() / 2


def test_any_object_with_a_likelihood_and_a_prior_is_a_model(tmp_path: Path) -> None:
    """Rows as a pair of float32 arrays, a coreset through its file, and the distance to the full posterior."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 2, generator=generator)
    y = x @ torch.tensor([1.0, -0.5]) + 0.5 * torch.randn(300, generator=generator)
    rows, model = (x.numpy(), y.numpy()), Laplace()
    coreset = pc.construct(rows, model=model, method="cd", size=20, iterations=50)
    coreset.save(tmp_path / "rows.safetensors")
    coreset = pc.Coreset.load(tmp_path / "rows.safetensors")
    assert len(coreset) == 20
    reference = pc.reference_posterior(rows, model, 500, 200)
    samples = pc.sample_posterior(coreset, model=model, sampler="nuts", samples=500, warmup=200)
    real = pc.construct(rows, model=model, method="uniform", size=20)
    of_real = pc.sample_posterior(real, model=model, sampler="nuts", samples=500, warmup=200)
    near, far = (pc.distance(each, reference).kl_full_coreset for each in (samples, of_real))
    assert near < far


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(pc.InputError, match="log_likelihood"):
        pc.construct((torch.randn(9, 2), torch.randn(9)), model=object(), size=2)  # type: ignore[arg-type]
    with pytest.raises(pc.InputError, match="Rows need a model"):
        pc.construct((torch.randn(9, 2), torch.randn(9)), size=2)


def test_the_last_versions_name_for_the_source_works_with_a_warning(digits: Dataset, experts: Experts) -> None:
    few: dict[str, Any] = {"ipc": 1, "iterations": 1, "device": "cpu"}
    with pytest.warns(FutureWarning, match=r"source=\.\.\."):
        old = pc.construct(digits, experts=experts, **few)
    assert torch.equal(old.x, pc.construct(digits, source=experts, **few).x)


def test_another_network_than_that_of_the_experts_is_refused(digits: Dataset, experts: Experts) -> None:
    with pytest.raises(pc.InputError, match="not 'convnet'; give experts of that network"):
        pc.construct(digits, experts, network="convnet", method="cd", iterations=1)
    coreset = pc.construct(digits, experts, network=experts.network, method="cd", iterations=1)
    assert coreset.network == experts.network.spec


def test_a_misspelt_method_is_told_all_names(digits: Dataset, experts: Experts) -> None:
    with pytest.raises(pc.InputError, match=r"Did you mean 'herding'\?.* cd, .* herding, k-center, forgetting"):
        pc.construct(digits, experts, method="hording")
