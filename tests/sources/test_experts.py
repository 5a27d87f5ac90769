"""Experts: training, storing, adding, resuming and drawing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import pseudocoresets as pc
from pseudocoresets.core.errors import DivergenceError, FileFormatError, InputError
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.data import Dataset
from pseudocoresets.models.networks import build_network
from pseudocoresets.sources.experts import Experts, ExpertSettings, ExpertStore, require_experts_for
from pseudocoresets.sources.experts.store import TrainedOn

SMALL = {"network": "mlp:depth=1,width=4", "epochs": 2, "batch_size": 64, "learning_rate": 0.05, "device": "cpu"}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_adding_to_a_store_gives_what_training_at_once_gives(digits: Dataset, tmp_path: Path) -> None:
    at_once = pc.train_experts(digits, count=4, out=tmp_path / "once", **SMALL)
    pc.train_experts(digits, count=2, out=tmp_path / "added", **SMALL)
    before = contents(tmp_path / "added")
    added = pc.train_experts(digits, count=4, out=tmp_path / "added", **SMALL)
    assert contents(tmp_path / "once") == contents(tmp_path / "added")
    assert before.items() <= contents(tmp_path / "added").items(), "what is there is not trained again"
    assert len(at_once) == len(added) == 4
    assert len(pc.train_experts(digits, count=3, out=tmp_path / "once", **SMALL)) == 3


def test_a_store_that_lost_one_gets_the_same_one_again(digits: Dataset, tmp_path: Path) -> None:
    pc.train_experts(digits, count=3, out=tmp_path, **SMALL)
    before = contents(tmp_path)
    (tmp_path / "expert-0001.safetensors").unlink()
    pc.train_experts(digits, count=3, out=tmp_path, **SMALL)
    assert contents(tmp_path) == before


def test_stored_experts_are_those_in_memory(digits: Dataset, tmp_path: Path) -> None:
    stored = pc.train_experts(digits, count=2, out=tmp_path, **SMALL)
    in_memory = pc.train_experts(digits, count=2, **SMALL)
    for expert in range(2):
        for epoch in (0, 1, 2, -1):
            assert torch.equal(stored.snapshot(expert, epoch), in_memory.snapshot(expert, epoch))


def test_a_population_trains_each_member_as_if_alone(digits: Dataset) -> None:
    """Without augmentation and in one full batch nothing is random but the start, so that the order cannot matter."""
    settings = {**SMALL, "batch_size": len(digits.train), "augment": False}
    alone = pc.train_experts(digits, count=3, population=1, **settings)
    together = pc.train_experts(digits, count=3, population=3, **settings)
    for expert in range(3):
        torch.testing.assert_close(together.snapshot(expert, -1), alone.snapshot(expert, -1), rtol=1e-4, atol=1e-5)


def test_training_is_sgd_on_the_cross_entropy(digits: Dataset) -> None:
    """One full-batch epoch with momentum, repeated with an ordinary module and torch's optimiser."""
    experts = pc.train_experts(
        digits,
        "mlp:depth=1,width=4",
        1,
        3,
        batch_size=len(digits.train),
        learning_rate=0.1,
        momentum=0.5,
        augment=False,
    )
    module = experts.network.module(experts.snapshot(0, 0)).train()
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.5)
    images = digits.transform(digits.train.images)
    for _ in range(3):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(module(images), digits.train.labels).backward()
        optimiser.step()
    torch.testing.assert_close(experts.snapshot(0, -1), experts.network.flatten(module), rtol=1e-4, atol=1e-5)


def test_experts_learn_and_differ(experts: Experts, digits: Dataset) -> None:
    images = digits.transform(digits.test.images)

    def accuracy(expert: int, epoch: int) -> float:
        predicted = experts.network.logits(experts.snapshot(expert, epoch), images).argmax(-1)
        return float((predicted == digits.test.labels).float().mean())

    assert all(accuracy(expert, -1) > 0.8 > 0.4 > accuracy(expert, 0) for expert in range(2))
    assert not torch.equal(experts.snapshot(0, 0), experts.snapshot(1, 0))


class Numbered:
    """A trajectory whose snapshot says which expert and epoch it is."""

    def __init__(self, expert: int, epochs: int) -> None:
        self._snapshots = [torch.tensor([float(expert), float(epoch)]) for epoch in range(epochs + 1)]

    def __len__(self) -> int:
        return len(self._snapshots)

    def __getitem__(self, epoch: int) -> torch.Tensor:
        return self._snapshots[epoch]


@pytest.mark.parametrize(("max_start_epoch", "expert_epochs"), [(None, 0), (2, 0), (2, 3), (None, 4), (100, 5)])
def test_draws_are_pairs_of_the_same_expert(max_start_epoch: int | None, expert_epochs: int) -> None:
    network = build_network("mlp:depth=1,width=4", (1, 8, 8), 10)
    experts = Experts(network, "digits", ExpertSettings(epochs=6), [Numbered(i, 6) for i in range(3)])
    start, later = experts.draw(400, max_start_epoch, expert_epochs, Randomness.for_purpose(0, "draw"))
    assert torch.equal(start[:, 0], later[:, 0])
    assert torch.equal(later[:, 1] - start[:, 1], torch.full((400,), float(expert_epochs)))
    last = 6 - expert_epochs if max_start_epoch is None else min(max_start_epoch, 6 - expert_epochs)
    assert set(start[:, 1].tolist()) == set(range(last + 1)), "every allowed start epoch occurs"
    assert set(start[:, 0].tolist()) == {0, 1, 2}


def test_a_lead_longer_than_the_trajectories_is_refused(experts: Experts) -> None:
    with pytest.raises(InputError, match="4 epochs, fewer than expert_epochs = 5"):
        experts.draw(1, None, 5, Randomness.for_purpose(0, "draw"))


def test_a_store_of_other_experts_is_not_added_to(digits: Dataset, tmp_path: Path) -> None:
    pc.train_experts(digits, count=1, out=tmp_path, **SMALL)
    for change in ({"network": "mlp:depth=1,width=5"}, {"epochs": 3}, {"seed": 1}):
        with pytest.raises(InputError, match="were trained with another"):
            pc.train_experts(digits, count=2, out=tmp_path, **{**SMALL, **change})
    assert len(contents(tmp_path)) == 2


def test_folders_without_experts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="no experts in"):
        pc.load_experts(tmp_path / "missing")
    with pytest.raises(FileFormatError, match="no experts in"):
        pc.load_experts(tmp_path)
    ExpertStore.create_or_open(
        tmp_path, build_network("mlp", (1, 8, 8), 10), TrainedOn("digits", 32 * "0"), ExpertSettings()
    )
    with pytest.raises(FileFormatError, match="is empty"):
        pc.load_experts(tmp_path)
    (tmp_path / "expert-notes.safetensors").write_text("not an expert")
    with pytest.raises(FileFormatError, match="is empty"):
        pc.load_experts(tmp_path)


@pytest.mark.parametrize("damage", ["[1, 2]", "{}", '{"format": "expert store", "version": 1}', "{half"])
def test_a_damaged_description_is_refused(digits: Dataset, tmp_path: Path, damage: str) -> None:
    (tmp_path / "store.json").write_text(damage)
    with pytest.raises(FileFormatError, match=r"store\.json"):
        pc.load_experts(tmp_path)


def test_damaged_trajectories_are_refused(digits: Dataset, tmp_path: Path) -> None:
    pc.train_experts(digits, count=2, out=tmp_path, **SMALL)
    path = tmp_path / "expert-0001.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(FileFormatError, match="cannot be used"):
        pc.load_experts(tmp_path)
    path.unlink()
    description = json.loads((tmp_path / "store.json").read_text())
    description["settings"]["epochs"] = 7
    (tmp_path / "store.json").write_text(json.dumps(description))
    with pytest.raises(FileFormatError, match=r"is \(3, \d+\) float32 where .* with epochs \+ 1 = 8"):
        pc.load_experts(tmp_path)


def test_experts_of_other_data_or_of_another_network_are_refused(experts: Experts, digits: Dataset) -> None:
    require_experts_for(experts, digits, experts.network)
    changed = replace(digits, train=digits.train.subset(torch.arange(len(digits.train) - 1)))
    with pytest.raises(InputError, match="trained on other data"):
        require_experts_for(experts, changed)
    with pytest.raises(InputError, match="of the network 'mlp:depth=1,width=32', not 'convnet'"):
        require_experts_for(experts, digits, build_network("convnet", (1, 8, 8), 10))


def test_experts_of_all_data_are_refused_for_a_held_out_split(experts: Experts, digits: Dataset) -> None:
    """The split keeps the name of its data; the content tells that experts have seen what it holds out."""
    with pytest.raises(InputError, match="held-out split"):
        pc.construct(digits.holding_out(), experts, ipc=1, iterations=1)


def test_a_store_is_not_added_to_with_other_data(digits: Dataset, tmp_path: Path) -> None:
    pc.train_experts(digits, count=1, out=tmp_path, **SMALL)
    with pytest.raises(InputError, match="another data"):
        pc.train_experts(digits.holding_out(), count=2, out=tmp_path, **SMALL)


@pytest.mark.parametrize("wrong", [{"count": 0}, {"epochs": 0}, {"learning_rate": 0.0}, {"population": 0}])
def test_impossible_settings_are_refused(digits: Dataset, wrong: dict[str, float]) -> None:
    with pytest.raises(InputError):
        pc.train_experts(digits, **{"count": 1, **SMALL, **wrong})  # type: ignore[arg-type]


def test_a_learning_rate_that_is_too_high_is_named(digits: Dataset, tmp_path: Path) -> None:
    with pytest.raises(DivergenceError, match=r"learning rate 1e\+30; lower it"):
        pc.train_experts(digits, count=1, out=tmp_path, **{**SMALL, "learning_rate": 1e30})
    assert not list(tmp_path.glob("expert-*"))
