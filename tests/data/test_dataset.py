"""Data sets: the lazy transform and the validation split."""

from __future__ import annotations

import dataclasses
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pseudocoresets.core.errors import InputError
from pseudocoresets.data import Dataset, InputTransform, Split, fit_normalisation, load_dataset, stratified_split


def random_split(count: int, seed: int = 0) -> Split:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (count, 1, 4, 4), generator=generator, dtype=torch.uint8)
    return Split(images, torch.arange(count) % 3)


class Counting:
    """Fits normalisation and remembers to what."""

    def __init__(self) -> None:
        self.fitted: list[Tensor] = []

    def __call__(self, images: Tensor) -> InputTransform:
        self.fitted.append(images)
        return fit_normalisation(images)


def dataset_with(transform: InputTransform | Counting) -> Dataset:
    return Dataset("test", random_split(60), random_split(12, 1), ("a", "b", "c"), transform, flippable=False)


def test_the_transform_is_fitted_once_and_when_needed() -> None:
    fit = Counting()
    dataset = dataset_with(fit)
    repr(dataset)
    hash(dataset)
    assert fit.fitted == []
    assert dataset.transform is dataset.transform
    assert len(fit.fitted) == 1
    assert fit.fitted[0] is dataset.train.images


def test_a_given_transform_is_kept_as_it_is() -> None:
    transform = fit_normalisation(random_split(5).images)
    dataset = Dataset(
        name="test", train=random_split(60), test=random_split(6), classes=("a", "b", "c"), transform=transform
    )
    assert dataset.transform is transform
    assert dataset.holding_out().transform is transform
    assert dataset.flippable


def test_replacing_data_keeps_the_transform() -> None:
    dataset = dataset_with(Counting())
    smaller = dataclasses.replace(dataset, train=dataset.train.subset(torch.arange(6)))
    assert smaller.transform is dataset.transform


def test_held_out_images_do_not_enter_the_transform() -> None:
    fit = Counting()
    part = dataset_with(fit).holding_out(0.2)
    expected = fit_normalisation(part.train.images)
    assert torch.equal(part.transform.mean, expected.mean)
    assert len(fit.fitted) == 1
    assert len(fit.fitted[0]) == 48


def test_the_fields_stay_frozen_and_the_transform_is_required() -> None:
    dataset = dataset_with(Counting())
    with pytest.raises(dataclasses.FrozenInstanceError):
        dataset.name = "other"  # type: ignore[misc]
    with pytest.raises(TypeError):
        Dataset("test", random_split(6), random_split(6), ("a", "b", "c"))  # type: ignore[call-arg]


def test_the_validation_split_is_the_same_for_everyone() -> None:
    """Recorded once: whoever tunes on digits tunes on these images."""
    _, held_out = stratified_split(load_dataset("digits").train.labels, 0.1, seed=0)
    assert (len(held_out), held_out[:8].tolist()) == (131, [9, 43, 46, 61, 64, 76, 82, 96])


@given(
    counts=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    fraction=st.floats(0.01, 0.99),
    seed=st.integers(0, 5),
)
@settings(max_examples=60, deadline=None)
def test_the_split_is_a_stratified_partition(counts: list[int], fraction: float, seed: int) -> None:
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))]
    kept, held_out = stratified_split(labels, fraction, seed)
    assert sorted([*kept.tolist(), *held_out.tolist()]) == list(range(len(labels)))
    for label, count in enumerate(counts):
        given_up = int((labels[held_out] == label).sum())
        assert given_up <= count - 1
        assert abs(given_up - fraction * count) <= 1 or given_up in (1, count - 1)
    again = stratified_split(labels, fraction, seed)
    assert torch.equal(again[1], held_out)


def test_another_seed_is_another_split() -> None:
    labels = torch.arange(300) % 3
    splits = [stratified_split(labels, 0.5, seed)[1].tolist() for seed in range(3)]
    assert splits[0] != splits[1] != splits[2]


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.5, 2.0])
def test_fractions_outside_the_interval_are_refused(fraction: float) -> None:
    with pytest.raises(InputError, match="between 0 and 1"):
        stratified_split(torch.arange(4), fraction, 0)


def test_a_fit_with_arguments_serves_too() -> None:
    dataset = Dataset("t", random_split(6), random_split(6), ("a", "b", "c"), partial(fit_normalisation))
    assert dataset.transform.kind == "normalise"


def test_parts_know_what_they_are_parts_of() -> None:
    dataset = dataset_with(Counting())
    assert dataset.test.dataset is dataset and dataset.train.dataset is dataset
    part = dataset.holding_out(0.2)
    assert part.test.dataset is part and part.test.subset(torch.arange(2)).dataset is part
    assert dataset.train.dataset is dataset
    assert "dataset" not in repr(dataset.test)


def test_equal_content_has_equal_fingerprints() -> None:
    first, second = load_dataset("digits"), load_dataset("digits")
    assert first.fingerprint == dataclasses.replace(second, name="other").fingerprint
    assert first.test.fingerprint == second.test.fingerprint != first.train.fingerprint


def test_other_content_has_another_fingerprint() -> None:
    dataset = load_dataset("digits")
    labels = dataset.train.labels.clone()
    labels[0] = (labels[0] + 1) % 10
    images = dataset.train.images.clone()
    images[3, 0, 2, 2] += 1
    others = [
        dataset,
        dataset.holding_out(),
        dataset.holding_out(seed=1),
        load_dataset("digits", whiten=True),
        dataclasses.replace(dataset, classes=dataset.classes[::-1]),
        dataclasses.replace(dataset, train=Split(dataset.train.images, labels)),
        dataclasses.replace(dataset, train=Split(images, dataset.train.labels)),
        dataclasses.replace(dataset, train=Split(dataset.train.images.to(torch.uint16), dataset.train.labels)),
        dataclasses.replace(dataset, transform=InputTransform(torch.zeros(1), torch.ones(1))),
    ]
    assert len({other.fingerprint for other in others}) == len(others)
    assert dataset.holding_out().fingerprint == load_dataset("digits").holding_out().fingerprint
