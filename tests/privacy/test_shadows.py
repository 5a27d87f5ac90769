"""Shadows: pairs of halves, and units of work that outlive their process."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import pseudocoresets as pc
from pseudocoresets.core.errors import InputError
from pseudocoresets.privacy.questions import Answers, Questions
from pseudocoresets.privacy.shadows import Shadows, half, require_shadows


def test_pairs_of_shadows_share_the_data_class_by_class(digits: pc.Dataset) -> None:
    labels = digits.train.labels
    for pair in range(3):
        first, second = half(labels, 2 * pair, seed=0), half(labels, 2 * pair + 1, seed=0)
        assert torch.equal(first, ~second)
        assert (labels[first].bincount() - labels[second].bincount()).abs().max() <= 1
    assert not torch.equal(half(labels, 0, 0), half(labels, 2, 0))
    assert not torch.equal(half(labels, 0, 0), half(labels, 0, 1))


def test_questions_are_as_many_members_as_others(digits: pc.Dataset) -> None:
    questions = Questions.of(digits, digits.transform, 300, seed=0)
    assert len(questions.pool.train) == 1797
    members, others = questions.asked.images[questions.members], questions.asked.images[~questions.members]
    assert len(members) == len(others) == 300
    assert torch.equal(others, digits.test.images[questions.held_out])
    assert torch.equal(members, digits.train.images[questions.chosen[questions.members]])


def test_a_finished_shadow_is_read_and_not_made_again(tmp_path: Path, digits: pc.Dataset) -> None:
    made: list[list[str]] = []

    def make(data: pc.Dataset, checkpoints: Path | None, wanted: Collection[str]) -> Answers:
        assert checkpoints is not None and checkpoints.is_dir()
        made.append(list(wanted))
        return {way: len(way) * data.train.labels.double() for way in wanted}

    shadows = Shadows(digits, make, 0, {"a": "these settings", "bb": "others"}, tmp_path)
    first, inside = shadows.answers(1)
    again, same = shadows.answers(1)
    assert made == [["a", "bb"]]
    labels = digits.train.labels[inside].double()
    for answers in (first, again):
        assert torch.equal(answers["a"], labels) and torch.equal(answers["bb"], 2 * labels)
    assert torch.equal(inside, same)
    assert len(list(tmp_path.glob("shadow-0001-*.safetensors"))) == len(list(tmp_path.iterdir())) == 2

    changed = replace(shadows, identities={"a": "other settings", "bb": "others"})
    assert torch.equal(changed.answers(1)[0]["bb"], 2 * labels)
    assert made[1:] == [["a"]] and len(list(tmp_path.iterdir())) == 3
    for path in tmp_path.iterdir():
        path.write_bytes(path.read_bytes()[:-20])
    shadows.answers(1)
    replace(shadows, seed=1).answers(1)
    assert made[2:] == [["a", "bb"], ["a", "bb"]]


@pytest.mark.parametrize("count", [-2, 0, 1, 4, 7])
def test_a_number_of_shadows_that_makes_no_pairs_is_refused(digits: pc.Dataset, count: int) -> None:
    with pytest.raises(InputError, match=f"even number of at least 6 shadows.*got {count}"):
        require_shadows(count, digits)
