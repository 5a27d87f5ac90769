"""Images that are too many for the device come from the host, and nothing else changes."""

from __future__ import annotations

import pytest
import torch

from pseudocoresets.core.devices import HOST
from pseudocoresets.core.errors import InputError
from pseudocoresets.data import resident
from pseudocoresets.data.resident import DeviceImages, bytes_for, mapped_bytes

IMAGES = torch.arange(6 * 2 * 3 * 3, dtype=torch.uint8).view(6, 2, 3, 3)
INDICES = (torch.tensor([[5, 0], [1, 1]]), torch.tensor([[2, 3], [4, 4]]), torch.tensor([[0, 0], [5, 1]]))
ELSEWHERE = torch.device("meta")
"""A device that is not the host, and has room for nothing."""


def halved(images):
    return images.float() / 2


class FromHost(DeviceImages):
    """Images on the host whose inputs are wanted on the host too, as if that were another device."""

    def __init__(self, images):
        super().__init__(images, halved, HOST)
        self.on_host = True


@pytest.mark.parametrize("share", [1.0, 0.0], ids=["room for inputs", "no room"])
@pytest.mark.parametrize("ready", [True, False])
def test_inputs_by_index(share, ready, monkeypatch):
    monkeypatch.setattr(resident, "SHARE_OF_MEMORY", share)
    images = DeviceImages(IMAGES, halved, HOST, ready)
    assert not images.on_host
    assert len(images) == 6
    for index, found in zip(INDICES, images.in_turn(INDICES), strict=True):
        assert torch.equal(found, halved(IMAGES)[index])
        assert torch.equal(images[index], found)


def test_from_host_all_requests_come_in_order():
    many = [index for _ in range(5) for index in INDICES]
    found = list(FromHost(IMAGES).in_turn(many))
    assert len(found) == len(many)
    for index, inputs in zip(many, found, strict=True):
        assert torch.equal(inputs, halved(IMAGES)[index])


def test_stays_on_host_only_without_room(monkeypatch):
    monkeypatch.setattr(resident, "memory_of", lambda device: 4 * IMAGES.nbytes - 1)
    assert DeviceImages(IMAGES, halved, ELSEWHERE).on_host
    monkeypatch.setattr(resident, "memory_of", lambda device: 4 * IMAGES.nbytes)
    assert not DeviceImages(IMAGES, halved, ELSEWHERE).on_host


def test_mapped_file_is_used_without_room(monkeypatch):
    shape = (3, 1, 4, 4)
    monkeypatch.setattr(resident, "host_memory", lambda: 4 * 48 - 1)
    mapped = bytes_for(shape)
    mapped[1] = 7
    assert mapped.shape == shape
    assert mapped.sum() == 7 * 16
    monkeypatch.setattr(resident, "mapped_bytes", lambda shape: pytest.fail("there is room in memory"))
    monkeypatch.setattr(resident, "host_memory", lambda: 4 * 48)
    assert bytes_for(shape).shape == shape


def test_full_disk_is_one_sentence(monkeypatch):
    def full(descriptor, offset, size):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(resident.os, "posix_fallocate", full)
    with pytest.raises(InputError, match=r"has no room for them \(No space left on device\); set TMPDIR"):
        mapped_bytes((2, 1, 8, 8))
