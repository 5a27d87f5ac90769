"""Coresets of real images: each rule against brute force or counts by hand, and all of them by name."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small import NETWORK, Invoke
from torch import Tensor, nn

import pseudocoresets as pc
from pseudocoresets.core.errors import InputError
from pseudocoresets.data import Dataset
from pseudocoresets.data.transforms import fit_normalisation
from pseudocoresets.methods.selection import SELECTIONS, Herding, KCenter
from pseudocoresets.methods.selection.forgetting import count_forgotten, forgetting_counts
from pseudocoresets.models.networks import Network, build_network
from pseudocoresets.sources.experts import Experts, ExpertSettings
from pseudocoresets.sources.experts.store import TrainedOn
from pseudocoresets.workflows.plan import make_plan

BY_EXPERTS = [name for name, selection in SELECTIONS.items() if selection.needs_experts]
TINY = {"epochs": 2, "learning_rate": 0.05, "batch_size": 64}


@st.composite
def embeddings(draw: st.DrawFn) -> Tensor:
    """A few points in the plane, some of which may be equal."""
    count = draw(st.integers(2, 9))
    coordinate = st.integers(-8, 8).map(float)
    rows = draw(st.lists(st.tuples(coordinate, coordinate), min_size=count, max_size=count))
    return torch.tensor(rows, dtype=torch.float64)


@given(embeddings(), st.data())
@settings(deadline=None, max_examples=60)
def test_every_choice_of_herding_is_the_best_of_those_that_remain(points: Tensor, data: st.DataObject) -> None:
    chosen = Herding().choose(points, data.draw(st.integers(1, len(points)))).tolist()
    assert len(set(chosen)) == len(chosen)
    for step, index in enumerate(chosen):
        gaps = {
            other: float((points[[*chosen[:step], other]].mean(0) - points.mean(0)).norm())
            for other in range(len(points))
            if other not in chosen[:step]
        }
        assert gaps[index] <= min(gaps.values()) + 1e-9


def test_herding_takes_the_point_nearest_to_the_mean_not_the_farthest() -> None:
    points = torch.tensor([[10.0], [0.0], [-1.0], [1.0]], dtype=torch.float64)
    assert Herding().choose(points, 1).tolist() == [3]
    assert Herding().choose(points, 4).sort().values.tolist() == [0, 1, 2, 3]


@given(embeddings(), st.data())
@settings(deadline=None, max_examples=60)
def test_k_center_is_within_twice_the_best_radius(points: Tensor, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, min(4, len(points))))
    chosen = KCenter().choose(points, count).tolist()
    assert len(set(chosen)) == count
    best = min(radius(points, centres) for centres in combinations(range(len(points)), count))
    assert radius(points, chosen) <= 2 * best + 1e-9
    for step in range(1, count):
        far = torch.cdist(points, points[chosen[:step]]).amin(1)
        assert far[chosen[step]] == far.max()


def radius(points: Tensor, centres: tuple[int, ...] | list[int]) -> float:
    return float(torch.cdist(points, points[list(centres)]).amin(1).max())


def test_ties_go_to_the_lower_index() -> None:
    equal = torch.zeros(4, 2, dtype=torch.float64)
    for rule in (Herding(), KCenter()):
        assert rule.choose(equal, 3).tolist() == [0, 1, 2]


def test_forgetting_is_counted_from_right_to_wrong() -> None:
    history = {  # right after each of four epochs: count
        (1, 1, 1, 1): 0,
        (0, 0, 0, 1): 0,
        (1, 0, 1, 0): 2,
        (0, 1, 1, 0): 1,
        (0, 1, 0, 0): 1,
        (0, 0, 0, 0): 0,
    }
    epochs = torch.tensor(list(history), dtype=torch.bool).T
    assert count_forgotten(iter(epochs)).tolist() == list(history.values())
    assert count_forgotten(iter(epochs[:1])).tolist() == [0] * 6


class Threshold(nn.Module):
    """Says class 1 for an image whose first pixel is above b, class 0 for one below."""

    def __init__(self) -> None:
        super().__init__()
        self.b = nn.Parameter(torch.zeros(1))

    def forward(self, images: Tensor) -> Tensor:
        above = images.flatten(1)[:, :1] - self.b
        return torch.cat([-above, above], 1)


def test_forgetting_reads_the_snapshots_of_all_experts() -> None:
    """Thresholds, in thirds, move over images of 0, 1, 2, 3; the untrained network's, the first, are not read."""
    images = torch.arange(4.0).view(4, 1, 1, 1).expand(4, 1, 2, 2) / 3
    labels = torch.tensor([0, 1, 0, 1])
    keep = fit_normalisation(images)
    data = Dataset.from_tensors(images, labels, (images, labels), transform=keep)
    thresholds = torch.tensor([[9.0, 0.5, 2.5, 0.5], [9.0, 2.5, 2.5, -1.0]])
    # image:                      0     1        2        3
    # expert 0 (after epoch 1..3) 111   101 -> 1 010 -> 1 111
    # expert 1                    110 -> 1  001  110 -> 1 111
    network = Network.from_module(Threshold, data.shape, 2)
    trajectories = [((steps / 3 - keep.mean.flatten()) / keep.std.flatten())[:, None] for steps in thresholds]
    experts = Experts(network, TrainedOn("t", data.fingerprint), ExpertSettings(epochs=3), trajectories)
    assert forgetting_counts(data, experts).tolist() == [1, 1, 2, 0]
    assert SELECTIONS["forgetting"].select(data, 1, 0, experts).tolist() == [2, 1]
    with pytest.raises(InputError, match="no linear layer"):
        SELECTIONS["herding"].select(data, 1, 0, experts)


@pytest.mark.parametrize("spec", ["mlp:depth=2,width=8", "convnet:width=4", "resnet18"])
def test_features_are_what_the_last_layer_maps_to_the_scores(spec: str) -> None:
    network = build_network(spec, (1, 16, 16), 3)
    theta = network.initialise(0)
    images = torch.randn(5, 1, 16, 16, generator=torch.Generator().manual_seed(0)).requires_grad_()
    features = network.features(theta, images)
    *_, weight, bias = network.unflatten(theta).values()
    torch.testing.assert_close(features @ weight.T + bias, network.logits(theta, images))
    assert torch.autograd.grad(features.sum(), images)[0].abs().max() > 0


@pytest.mark.parametrize("name", SELECTIONS)
@pytest.mark.parametrize("ipc", [1, 7])
def test_selections_are_by_class_distinct_and_the_same_again(
    digits: Dataset, experts: Experts, name: str, ipc: int
) -> None:
    chosen = SELECTIONS[name].select(digits, ipc, 3, experts)
    assert digits.train.labels[chosen].tolist() == [label for label in range(10) for _ in range(ipc)]
    assert len(chosen.unique()) == len(chosen)
    assert torch.equal(chosen, SELECTIONS[name].select(digits, ipc, 3, experts))


@pytest.mark.parametrize("name", ["herding", "k-center"])
def test_the_order_of_the_data_does_not_matter(digits: Dataset, experts: Experts, name: str) -> None:
    order = torch.randperm(len(digits.train), generator=torch.Generator().manual_seed(0))
    shuffled = pc.Dataset("shuffled", digits.train.subset(order), digits.test, digits.classes, digits.transform)
    same = Experts(experts.network, TrainedOn("shuffled", shuffled.fingerprint), experts.settings, experts.trajectories)
    chosen = SELECTIONS[name].select(shuffled, 4, 0, same)
    assert torch.equal(order[chosen], SELECTIONS[name].select(digits, 4, 0, experts))


@pytest.mark.parametrize("name", SELECTIONS)
def test_a_class_that_is_too_small_gives_all_it_has(name: str) -> None:
    labels = torch.tensor([0] * 6 + [1] * 2 + [2] * 4)
    data = Dataset.from_tensors(torch.rand(12, 1, 4, 4), labels, (torch.rand(12, 1, 4, 4), labels))
    experts = pc.train_experts(data, "mlp:depth=1,width=4", 1, device="cpu", **TINY)
    with pytest.warns(UserWarning, match="1 of 3 classes have fewer than 3 images, the smallest 2"):
        chosen = SELECTIONS[name].select(data, 3, 0, experts)
    assert labels[chosen].tolist() == [0, 0, 0, 1, 1, 2, 2, 2]


@pytest.mark.parametrize("name", BY_EXPERTS)
def test_construct_takes_a_selection_as_method_and_as_initialisation(
    digits: Dataset, experts: Experts, name: str
) -> None:
    coreset = pc.construct(digits, experts, name, 2, device="cpu", initialisation="random")
    chosen = SELECTIONS[name].select(digits, 2, 0, experts)
    assert coreset.method == name
    assert torch.equal(coreset.images, digits.transform(digits.train.images[chosen]))
    learned = pc.construct(
        digits, experts, "cd", 2, device="cpu", initialisation=name, iterations=1, learning_rate=1e-9
    )
    torch.testing.assert_close(learned.images, coreset.images)


@pytest.mark.parametrize("name", BY_EXPERTS)
def test_without_experts_or_with_those_of_other_data_it_is_refused(
    digits: Dataset, experts: Experts, name: str
) -> None:
    for asked in ({"method": name}, {"method": "bptt", "initialisation": name}):
        with pytest.raises(InputError, match=f"The selection '{name}' needs experts; train some"):
            pc.construct(digits, network=NETWORK, device="cpu", **asked)
    with pytest.raises(InputError, match="trained on other data"):
        pc.construct(digits.holding_out(), experts, name, device="cpu")


def test_plans_know_that_a_selection_needs_experts() -> None:
    assert make_plan(dataset="digits", method="herding").needs_experts()
    started = make_plan(
        dataset="mnist", method="bptt", preset="paper", ipc=10, construction={"initialisation": "k-center"}
    )
    assert started.drawing_from_experts() == "k-center"


def test_the_command_names_the_selection_that_needs_experts(bpc: Invoke, experts_folder: Path) -> None:
    refused = bpc("construct", "--method", "herding", "--out", "h.safetensors")
    assert refused.exit_code == 2
    assert "The selection 'herding' needs experts; train some with 'bpc experts'" in refused.stderr.replace("\n", " ")
    made = bpc("construct", "--method", "herding", "--ipc", 2, "--experts", experts_folder, "--out", "h.safetensors")
    assert made.exit_code == 0
    assert len(pc.Coreset.load("h.safetensors").images) == 20


def test_run_and_compare_train_the_experts_that_a_selection_needs(bpc: Invoke, tmp_path: Path) -> None:
    small = ("--network", NETWORK, "--epochs", 2, "--expert-count", 1, "--sampling-steps", 40, "--chains", 1)
    assert bpc("run", "--method", "k-center", "--out", "run", *small).exit_code == 0
    assert (tmp_path / "run" / "experts" / "expert-0000.safetensors").exists()
    names = ",".join(SELECTIONS)
    assert bpc("compare", "--methods", names, "--seeds", 1, "--out", "table", *small).exit_code == 0
    rows = json.loads((tmp_path / "table" / "comparison.json").read_text())["rows"]
    assert [row["method"] for row in rows[1:]] == list(SELECTIONS)
    assert all(row["failure"] is None for row in rows)
