"""What a step of DP-SGD costs: gradients per example, clipped and summed, in each way that there is.

    python benchmarks/private_experts.py --out private_experts.json
    python benchmarks/private_experts.py --small --out private_experts_cpu.json

Seconds, the median of several, and the most memory of a GPU at once, for the ConvNet D3W128 on CIFAR-10's and MNIST's
shapes; on a CPU seconds of the processor, all cores together, which other work on the machine does not count in.

- ``vmap``: the formulation by torch.func, in float32, every gradient clipped before they are summed;
- ``plain``, ``chosen``: the back ends of the precisions float32 and auto, fed as experts are, in parts of one size;
- ``opacus``, where it can be imported: its gradients per example, clipped and summed in the same way;
- ``batch``: an ordinary gradient of the batch, not private, in float32;
- ``whole step``: one of an expert's on the chosen back end, with the choice of examples, an augmentation and the noise;
- ``noise``: that part of it.

``apart`` is how far the chosen way's clipped sum is from that of vmap, relatively.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from pseudocoresets.backends import Backend, choose_backend
from pseudocoresets.core.devices import resolve_device
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.data import Dataset
from pseudocoresets.dp import (
    Budget,
    ExampleVectors,
    Guarantee,
    Release,
    SystemEntropy,
    clipped,
    clipped_sum,
    noisy_sum,
    per_example_gradients,
)
from pseudocoresets.models.networks import Network, build_network
from pseudocoresets.sources.experts.private import PrivateTrainer, examples_at_once
from pseudocoresets.sources.experts.store import ExpertSettings, PrivateTraining
from pseudocoresets.workflows.provenance import provenance

CASES = (
    ("CIFAR-10", (3, 32, 32), "convnet:depth=3,width=128", (1024, 4096)),
    ("MNIST", (1, 28, 28), "convnet:depth=3,width=128", (1024, 4096)),
)
SMALL_CASES = (
    ("digits", (1, 8, 8), "convnet:depth=2,width=32", (128,)),
    ("MNIST", (1, 28, 28), "convnet:depth=3,width=128", (32,)),
)
NORM = 1.0
CLASSES = 10
VMAP_NUMBERS = 2**28
"""In the gradients that vmap holds at once: a GiB."""
LONGEST = 20.0
"""Seconds for the repetitions of one measurement."""


class Synchronised:
    """Seconds and GiB of work on a device."""

    def __init__(self, device: torch.device, repeats: int) -> None:
        self._device, self._repeats = device, repeats

    def measure(self, work: Callable[[], object]) -> dict[str, float]:
        """The median after two runs in which kernels are chosen and graphs captured; memory of the runs after these."""
        started = time.perf_counter()
        for _ in range(2):
            self._seconds(work)
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        found = [self._seconds(work)]
        while len(found) < self._repeats and time.perf_counter() - started < LONGEST:
            found.append(self._seconds(work))
        row = {"seconds": statistics.median(found), "least": min(found), "runs": len(found)}
        if self._device.type == "cuda":
            row["GiB"] = torch.cuda.max_memory_reserved(self._device) / 2**30
        return row

    def _seconds(self, work: Callable[[], object]) -> float:
        on_gpu = self._device.type == "cuda"
        now = time.perf_counter if on_gpu else time.process_time
        self._wait()
        start = now()
        work()
        self._wait()
        return now() - start

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def by_vmap(network: Network, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
    total = torch.zeros_like(theta, dtype=torch.float64)
    at_once = max(1, VMAP_NUMBERS // len(theta))
    for images, labels in zip(x.split(at_once), y.split(at_once), strict=True):
        total += clipped(per_example_gradients(network, theta, images, labels), NORM).sum(0, dtype=torch.float64)
    return total


def in_parts(
    backend: Backend, network: Network, theta: Tensor, x: Tensor, y: Tensor, at_once: int | None = None
) -> Tensor:
    """As an expert's step does it, with every example taking part; ``at_once`` is the size of parts."""
    total = torch.zeros_like(theta, dtype=torch.float64)
    at_once = at_once or examples_at_once(network, len(x))
    admitted = torch.arange(len(x) + -len(x) % at_once, device=x.device) < len(x)
    x, y = F.pad(x, (0, 0, 0, 0, 0, 0, 0, -len(x) % at_once)), F.pad(y, (0, -len(y) % at_once))
    for part in zip(x.split(at_once), y.split(at_once), admitted.split(at_once), strict=True):
        total += backend.clipped_gradients(network, theta, part[0], part[1], NORM, part[2])
    return total


def by_opacus(network: Network, theta: Tensor, at_once: int) -> Callable[[Tensor, Tensor], Tensor] | None:
    """Gradients per example of hooks on a module; None where it is not installed."""
    try:
        from opacus.grad_sample import GradSampleModule
    except ImportError:
        return None
    hooked = GradSampleModule(network.module(theta).to(theta.device).train(), loss_reduction="sum")

    def summed(x: Tensor, y: Tensor) -> Tensor:
        total = torch.zeros_like(theta, dtype=torch.float64)
        for images, labels in zip(x.split(at_once), y.split(at_once), strict=True):
            F.cross_entropy(hooked(images), labels, reduction="sum").backward()
            found = torch.cat([parameter.grad_sample.flatten(1) for parameter in hooked.parameters()], 1)
            total += clipped_sum(ExampleVectors.of(found), NORM)
            hooked.zero_grad(set_to_none=True)
        return total

    return summed


def gradient_of_batch(network: Network, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
    leaf = theta.clone().requires_grad_()
    return torch.autograd.grad(F.cross_entropy(network.logits(leaf, x), y), leaf)[0]


def whole_step(network: Network, x: Tensor, y: Tensor, backend: Backend) -> Callable[[], Tensor]:
    """A step of an expert of data of which a quarter takes part, by chance, with an augmentation."""
    pixels = (x.cpu().clamp(-2, 2) + 2).mul(63).byte().repeat(4, 1, 1, 1)
    labels = y.cpu().repeat(4)
    data = Dataset.from_tensors(pixels, labels, (pixels[:10], labels[:10])).publicly_normalised()
    data = replace(data, transform=data.transform_source)
    promised = Guarantee(1.0, 1e-5, "none", len(labels), (Release("steps", 1.0, 0.25),))
    training = PrivateTraining(Budget(1.0, 1e-5), NORM, promised)
    settings = ExpertSettings(batch_size=len(x))
    trainer = PrivateTrainer(data, network, settings, x.device, backend, training, SystemEntropy())
    randomness = Randomness.for_purpose(0, "benchmark", device=x.device)
    theta = network.initialise(0).to(x.device)
    return lambda: trainer.gradient(theta, randomness)


def ways(
    network: Network, theta: Tensor, x: Tensor, y: Tensor, chosen: Backend, plain: Backend, parts: Sequence[int]
) -> Iterator[tuple[str, Callable[[], object]]]:
    yield "chosen", lambda: in_parts(chosen, network, theta, x, y)
    for at_once in parts:
        yield f"by {at_once}", partial(in_parts, chosen, network, theta, x, y, at_once)
    yield "whole step", whole_step(network, x, y, chosen)
    entropy = SystemEntropy()
    yield "noise", lambda: noisy_sum(torch.zeros_like(theta), NORM, 1.0, entropy)
    yield "plain", lambda: in_parts(plain, network, theta, x, y)
    yield "batch", lambda: gradient_of_batch(network, theta, x, y)
    yield "vmap", lambda: by_vmap(network, theta, x, y)
    opacus = by_opacus(network, theta, examples_at_once(network, len(x)))
    if opacus is not None:
        yield "opacus", lambda: opacus(x, y)


def rows(device: torch.device, small: bool, repeats: int, parts: Sequence[int]) -> Iterator[dict[str, Any]]:
    clock = Synchronised(device, repeats)
    for data, shape, name, sizes in SMALL_CASES if small else CASES:
        network = build_network(name, shape, CLASSES)
        theta = network.initialise(0).to(device)
        chosen, plain = choose_backend(device), choose_backend(device, "float32")
        for count in sizes:
            x = torch.randn(count, *shape, generator=torch.Generator().manual_seed(0)).to(device)
            y = (torch.arange(count) % CLASSES).to(device)
            first = slice(0, examples_at_once(network, count))
            exact = by_vmap(network, theta, x[first], y[first])
            apart = chosen.clipped_gradients(network, theta, x[first], y[first], NORM) - exact
            row = {"data": data, "network": name, "examples": count, "apart": float(apart.norm() / exact.norm())}
            for way, work in ways(network, theta, x, y, chosen, plain, parts):
                found = {**row, "way": way, **clock.measure(work)}
                print(
                    "{data:9} {examples:5} {way:11} {seconds:10.5f} s {memory}".format(**found, memory=_memory(found))
                )
                yield found
                if device.type == "cuda":
                    torch.cuda.empty_cache()


def kernels_of_a_part(device: torch.device, small: bool) -> str:
    """The profiler's table for one part on the chosen back end."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    _, shape, name, sizes = (SMALL_CASES if small else CASES)[0]
    network, backend = build_network(name, shape, CLASSES), choose_backend(device)
    count = examples_at_once(network, sizes[0])
    x, y = torch.randn(count, *shape, device=device), torch.arange(count, device=device) % CLASSES
    theta = network.initialise(0).to(device)
    for _ in range(3):
        backend.clipped_gradients(network, theta, x, y, NORM)
    with torch.profiler.profile(activities=activities) as profiler:
        backend.clipped_gradients(network, theta, x, y, NORM)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    table: str = profiler.key_averages().table(sort_by=f"self_{device.type}_time_total", row_limit=40)
    return f"{count} examples of {name} on {shape}\n{table}\n"


def _memory(row: dict[str, Any]) -> str:
    return f"{row['GiB']:6.2f} GiB" if "GiB" in row else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--small", action="store_true", help="few examples and a small network, for a CPU")
    parser.add_argument("--parts", type=int, nargs="*", default=(), help="sizes of parts to measure the chosen way by")
    parser.add_argument("--kernels", type=Path, help="where to write which kernels of one part take how long")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--threads", type=int, help="of a CPU")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    device = resolve_device(options.device)
    if options.kernels:
        options.kernels.write_text(kernels_of_a_part(device, options.small))
    found = list(rows(device, options.small, options.repeats, options.parts))
    record = {**provenance(device=device), "threads": torch.get_num_threads(), "rows": found}
    options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
