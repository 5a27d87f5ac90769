"""Every Triton kernel, in every form that the fused backend launches, compiles for Ampere and Hopper without a GPU."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

triton: Any = pytest.importorskip("triton")
fused: Any = pytest.importorskip("pseudocoresets.backends.fused", exc_type=ImportError)

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.runtime.driver import driver  # noqa: E402
from triton.runtime.jit import JITFunction  # noqa: E402

from pseudocoresets.backends.fused import adjoint, blocks, chip, first_block, head, norm  # noqa: E402
from pseudocoresets.backends.fused.augmentation import Transformed  # noqa: E402
from pseudocoresets.backends.fused.convnet import EnergyGradient  # noqa: E402
from pseudocoresets.backends.fused.first_block import patches_of  # noqa: E402
from pseudocoresets.backends.fused.layout import layout_of  # noqa: E402
from pseudocoresets.backends.fused.private import CapturedClippedSum  # noqa: E402
from pseudocoresets.data.augmentation import Strengths  # noqa: E402
from pseudocoresets.models.networks import build_network  # noqa: E402

SHARED_MEMORY = {80: 99 * 1024, 90: 227 * 1024}
"""Bytes that one program may have; code for 80 also runs on 86 and 89, which have less than 80 itself."""
PTXAS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"
META = torch.device("meta")
"""Tensors without memory: only their shapes, formats and alignments decide what is compiled."""


@pytest.fixture(params=sorted(SHARED_MEMORY))
def compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """A device of this capability, on which launching a kernel compiles it and does nothing else; their names."""
    capability = request.param
    device = SimpleNamespace(
        get_current_target=lambda: GPUTarget("cuda", capability, 32),
        get_current_device=lambda: capability,
        get_current_stream=lambda device: 0,
    )
    monkeypatch.setattr(driver, "_active", device)
    monkeypatch.setattr(first_block, "shared_memory", lambda device: SHARED_MEMORY[capability])
    names: set[str] = set()
    run = JITFunction.run

    def compile_only(self: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> None:
        kernel = run(self, *arguments, grid=grid, warmup=True, **options)
        assert kernel.metadata.target.arch == capability
        assert kernel.metadata.shared <= SHARED_MEMORY[capability], self.__name__
        assert all(0 < size < 2**16 for size in grid[1:]), self.__name__
        names.add(self.__name__)

    monkeypatch.setattr(JITFunction, "run", compile_only)
    return names


def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(shape, device=META, dtype=dtype)


def launch_gradients(images: int, chains: int) -> None:
    """Both gradients of a ConvNet's energy in bfloat16, one step, and the features of its layers."""
    shape = (3, 32, 32)
    layout = layout_of(build_network("convnet:depth=3,width=128", shape, 10))
    assert layout is not None
    layout = layout.to(META).widened(chains)
    workspace = EnergyGradient(layout, images, META, torch.bfloat16)
    theta, velocity, gradient = (zeros(layout.size) for _ in range(3))
    compact = theta.to(torch.bfloat16)
    patches = patches_of(zeros(images, *shape), layout, torch.bfloat16)
    energies, factors, dx = zeros(images * chains), zeros(images), zeros(images, *shape)
    workspace.accumulate(theta, compact, patches, zeros(images, 10), factors, gradient, energies, dx)
    head.update(theta, velocity, gradient, compact, theta, zeros(4), zeros(1, dtype=torch.int64), 1)
    features = workspace.features(theta, compact, patches, of_layers=True)
    workspace.feature_gradient(theta, compact, patches, features)


def launch_adjoint(chains: int) -> None:
    """The vectors' part of a step of the adjoint."""
    layout = layout_of(build_network("convnet:depth=1,width=16", (3, 8, 8), 10))
    assert layout is not None
    wide, probes = layout.widened(chains), layout.widened(2 * chains)
    places = adjoint.ProbePlaces(*(each.to(META) for each in adjoint.probe_places(wide, probes)))
    theta, following, lambdas, pull = (zeros(wide.size) for _ in range(4))
    at, gradients = zeros(probes.size), zeros(probes.size)
    adjoint.set_probes(theta, pull, zeros(2 * chains), places, at, at.to(torch.bfloat16), gradients)
    adjoint.pull_back(theta, following, lambdas, pull, theta, zeros(4), gradients, places, zeros())


def launch_augmentation(shape: tuple[int, int, int], images: int) -> None:
    x = zeros(images, *shape).requires_grad_()
    made = Transformed.apply(x, zeros(images, dtype=torch.int32), zeros(3, images), images, Strengths())
    made.sum().backward()


def launch_norms(images: int, channels: int, side: int, groups: int, dtype: torch.dtype) -> None:
    x = zeros(images, channels, side, side, dtype=dtype).to(memory_format=torch.channels_last).requires_grad_()
    gamma, beta = (zeros(channels, dtype=dtype).requires_grad_() for _ in range(2))
    assert norm.has_kernel(x, groups)
    norm.group_norm(x, groups, gamma, beta).sum().backward()


def launch_clipped_sum(images: int, dtype: torch.dtype) -> None:
    network = build_network("convnet:depth=3,width=128", (3, 32, 32), 10)
    CapturedClippedSum(network, torch.Size((images, 3, 32, 32)), META, dtype)._work()


def launched_kernels() -> set[str]:
    """The names of all kernels of the fused backend that no other kernel calls."""
    modules = [
        importlib.import_module(f"{fused.__name__}.{each.name}") for each in pkgutil.iter_modules(fused.__path__)
    ]
    every = (value for module in modules for value in vars(module).values())
    sources = {value.__name__: value.src for value in every if isinstance(value, JITFunction)}
    return {
        name for name in sources if not any(f"{name}(" in source for other, source in sources.items() if other != name)
    }


@pytest.mark.skipif(not PTXAS.exists(), reason="Triton has no assembler here")
def test_every_kernel_compiles_and_fits(compiled: set[str]) -> None:
    """At many images, where tiles are largest, and at few, whose convolutions are our own."""
    launch_gradients(images=500, chains=1)
    launch_gradients(images=2, chains=1)
    launch_adjoint(chains=2)
    launch_augmentation((3, 32, 32), images=10)
    launch_norms(100, 128, 32, 4, torch.bfloat16)
    launch_norms(500, 64, 32, 64, torch.float32)
    launch_norms(10, 512, 2, 512, torch.float32)
    launch_clipped_sum(256, torch.bfloat16)
    launch_clipped_sum(128, torch.float32)
    assert compiled == launched_kernels()


def test_a_smaller_chip_gets_larger_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half the multiprocessors are as full with half the values: bounds between tiles are those of the H200."""
    properties = SimpleNamespace(
        multi_processor_count=chip.MEASURED_ON // 2, shared_memory_per_multiprocessor=164 * 1024
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    small = torch.device("cuda", 99)
    assert chip.spread_over_chip(5000, META) == 5000
    assert chip.spread_over_chip(5000, small) == 10_000
    assert (chip.shared_memory(META), chip.shared_memory(small)) == (99 * 1024, 163 * 1024)
    sizes = [blocks._channel_block(chip.spread_over_chip(5000, device), 128, 8) for device in (META, small)]
    assert sizes[0] < sizes[1]
