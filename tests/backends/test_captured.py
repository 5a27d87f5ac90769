"""Samplers that accept or reject, and work that cannot be captured, on the backend of captured graphs.

On a CPU nothing is captured: everything but the graphs themselves is what a GPU does.
"""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from unittest.mock import MagicMock, call

import pytest
import torch
from torch import Tensor

from pseudocoresets.backends import ChainPlan, PlainBackend
from pseudocoresets.core.energy import Energy, potential_and_gradient, without_noise
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.data.augmentation import Augmentation
from pseudocoresets.kernels import HMC, MALA, AnyKernel, speeds_at
from pseudocoresets.methods import Points
from pseudocoresets.models.classifier import Classifier
from pseudocoresets.models.networks import build_network

FusedBackend = pytest.importorskip("pseudocoresets.backends.fused", exc_type=ImportError).FusedBackend

from pseudocoresets.backends.fused import capture  # noqa: E402
from pseudocoresets.backends.fused.capture import (  # noqa: E402
    FIRST,
    Capturing,
    capture_into,
    captured,
    without_collection,
)
from pseudocoresets.backends.fused.norm import ChannelsLastNorms  # noqa: E402

NETWORK = build_network("convnet:depth=2,width=4,pooling=max,norm=none", (1, 8, 8), 3)
ENERGY = Energy(Classifier(NETWORK, prior_scale=0.5), data_size=40)


def points(seed: int) -> Points:
    x = torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return Points(x, torch.arange(5) % 3, torch.linspace(1.0, 15.0, 5, dtype=torch.float64))


@pytest.mark.parametrize("kernel", [HMC(0.05, leapfrog_steps=3), MALA(0.01)])
def test_kernels_that_accept_or_reject_walk_the_same_way(kernel: AnyKernel) -> None:
    """The same draws lead to the same places, on one set of points after another; the work is set up once for both."""
    backend, start = FusedBackend("cpu"), NETWORK.initialise(0, 2).double()
    for seed in (0, 1):
        plan = ChainPlan(kernel, ENERGY, points(seed), 6, Augmentation(("crop",)), keep_at={3, 6})
        with torch.no_grad():
            wanted, found = (
                each.run_chain(plan, start, Randomness.for_purpose(seed)) for each in (PlainBackend(), backend)
            )
        torch.testing.assert_close(found, wanted)
        assert not torch.equal(found[0], start)
    assert len(backend._potentials) == 1


def test_a_repeated_target_without_noise_keeps_the_blocks_of_its_masses() -> None:
    target = FusedBackend("cpu").target(ENERGY, points(0))
    theta = NETWORK.initialise(0, 2).double()
    assert len(target.blocks) > 1
    assert torch.equal(speeds_at(theta, without_noise(target)), speeds_at(theta, target))


def test_a_repeated_target_is_the_posterior_of_its_points() -> None:
    theta, given = NETWORK.initialise(0, 2).double(), points(0)
    target = FusedBackend("cpu").target(ENERGY, given)
    plain = ENERGY.target(given.x, given.y, given.weights)
    assert target.temperature == plain.temperature
    torch.testing.assert_close(target.potential(theta), plain.potential(theta))
    for found, wanted in zip(potential_and_gradient(target, theta), potential_and_gradient(plain, theta), strict=True):
        torch.testing.assert_close(found, wanted)
        assert not found.requires_grad
    others = (replace(ENERGY, data_size=41), replace(ENERGY, model=Classifier(NETWORK, prior_scale=2.0)))
    backend = FusedBackend("cpu")
    for energy in (ENERGY, *others):
        wanted = energy.target(given.x, given.y, given.weights)
        torch.testing.assert_close(
            potential_and_gradient(backend.target(energy, given), theta), potential_and_gradient(wanted, theta)
        )


def test_the_warning_names_what_went_wrong_first(caplog: pytest.LogCaptureFixture) -> None:
    """The end of a capture that was broken off is an error of its own; memory that ran out is not the plain path's."""

    def broken(first: Exception) -> None:
        try:
            raise first
        finally:
            raise RuntimeError("operation failed due to a previous error during capture")

    capturing = Capturing()
    for _ in range(2):
        assert capturing(lambda: broken(ValueError("waits for the device\nand more"))) is None
    assert len(caplog.records) == 1
    assert "(waits for the device, at test_captured.py:" in caplog.text
    assert ": raise first); the plain path is used." in caplog.text
    assert capturing(lambda: torch.stack([])) is None
    assert "torch.stack([])" in caplog.text.splitlines()[-1]
    with pytest.raises(torch.OutOfMemoryError, match="9 GiB"):
        capturing(lambda: broken(torch.OutOfMemoryError("Tried to allocate 9 GiB")))


def test_nothing_is_collected_during_a_capture() -> None:
    """A graph of an earlier construction, held by objects that hold each other, would be freed within it."""

    class Loop:
        def __init__(self) -> None:
            self.itself = self

    thresholds = gc.get_threshold()
    gc.set_threshold(1)
    try:
        with without_collection():
            freed = weakref.ref(Loop())
            made = [[i] for i in range(100)]
            assert freed() is not None
        made.extend([i] for i in range(100))
        assert gc.isenabled()
        assert freed() is None
    finally:
        gc.set_threshold(*thresholds)
    with pytest.raises(ValueError, match="within"), without_collection():
        raise ValueError("within")
    assert gc.isenabled()


def test_a_graph_is_captured_after_a_warm_up_and_settings_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CUDA calls stand for themselves; a capture that fails leaves cuDNN and the collector as they were too."""
    cuda = MagicMock()
    for name in (
        "Stream",
        "stream",
        "current_stream",
        "current_device",
        "set_stream",
        "synchronize",
        "CUDAGraph",
        "graph",
    ):
        monkeypatch.setattr(torch.cuda, name, getattr(cuda, name))
    settings: list[tuple[bool, bool]] = []

    def note() -> None:
        settings.append((torch.backends.cudnn.benchmark, gc.isenabled()))

    def fail() -> None:
        note()
        raise ValueError("within")

    assert captured(note, note) is cuda.CUDAGraph.return_value
    with pytest.raises(ValueError, match="within"):
        captured(fail, note)
    note()
    assert settings == 2 * [(True, True), (True, False)] + [(False, True)]
    calls = [name for name, *_ in cuda.method_calls]
    assert calls.index("stream") < calls.index("synchronize") < calls.index("CUDAGraph") < calls.index("graph")
    assert call(cuda.current_device.return_value, priority=FIRST) in cuda.Stream.call_args_list


def test_a_capture_that_fails_as_it_ends_gives_the_current_stream_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch ends the capture before it leaves the stream, and stays on it if that fails."""
    streams = ["of the caller"]

    class Graph:
        def __init__(self, _: object, stream: str) -> None:
            self.stream = stream

        def __enter__(self) -> None:
            streams.append(self.stream)

        def __exit__(self, *_: object) -> None:
            raise RuntimeError("the capture was invalidated")

    monkeypatch.setattr(torch.cuda, "graph", Graph)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: streams[-1])
    monkeypatch.setattr(torch.cuda, "set_stream", streams.append)
    monkeypatch.setattr(capture, "_first_stream", lambda _: "of captures")
    with pytest.raises(RuntimeError, match="invalidated"), capture_into(MagicMock()):
        assert torch.cuda.current_stream() == "of captures"
    assert torch.cuda.current_stream() == "of the caller"


def test_work_that_cannot_be_captured_is_done_again_and_again(caplog: pytest.LogCaptureFixture) -> None:
    """Without CUDA no iteration can be."""

    def work(randomness: Randomness) -> Tensor:
        return randomness.tensor(lambda host: torch.tensor(host.random())) + torch.rand((), generator=randomness.device)

    repeated, wanted = FusedBackend("cpu").repeated(work), Randomness.for_purpose(0)
    given = Randomness.for_purpose(0)
    for _ in range(6):
        assert torch.equal(repeated(given), work(wanted))
    assert [record.message.startswith("The fast path could not be captured") for record in caplog.records] == [True]


def test_the_warning_names_the_line_that_failed_and_not_the_mode_it_went_through(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def waits_for_the_device() -> float:
        with ChannelsLastNorms():
            return float(torch.zeros(2))

    assert Capturing()(waits_for_the_device) is None
    assert caplog.messages[0].endswith("return float(torch.zeros(2))); the plain path is used.")
