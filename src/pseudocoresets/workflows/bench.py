"""Speed and memory here, beside the reference formulation, in one run.

The reference is the paper's Algorithm 1 as a plain PyTorch loop: an ordinary module, float32, autograd, one step after
another. The floor of a step is the larger of its arithmetic over the measured matrix rate and its memory traffic over
the measured bandwidth; both ceilings are measured first.
"""

from __future__ import annotations

import itertools
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from pseudocoresets.backends import Backend, choose_backend
from pseudocoresets.construction.learner import Learner
from pseudocoresets.construction.settings import ConstructionSettings
from pseudocoresets.construction.tasks import real_coreset
from pseudocoresets.core.devices import PeakMemory, resolve_device, threads_for
from pseudocoresets.core.energy import Energy
from pseudocoresets.core.parameterisation import Parameterisation
from pseudocoresets.core.progress import Silent
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.data.augmentation import dsa
from pseudocoresets.data.dataset import Dataset, Split
from pseudocoresets.data.transforms import fit_normalisation
from pseudocoresets.inference.sampling import sample_posterior
from pseudocoresets.methods import BPTT, ContrastiveDivergence, GradientMethod, Problem, RealData
from pseudocoresets.models.classifier import Classifier
from pseudocoresets.models.networks import Network, build_network
from pseudocoresets.sources.experts import Experts, ExpertSettings, ExpertStore, train_experts
from pseudocoresets.sources.experts.store import TrainedOn
from pseudocoresets.workflows.parallel import LocalWorker

WARM_UP_ITERATIONS = 3
DRAWING_ROUNDS = 7
NOTHING = TrainedOn("bench", "")
"""What random experts were trained on."""
STORED_EPOCHS, STORED = 50, 5
WINDOW, POINTS_PER_STEP = 40, 125
"""Of `bptt` in the preset `paper`."""


@dataclass(frozen=True)
class Scale:
    """How large the measured problems are: CIFAR-10's shapes on a GPU, the digits' on a CPU."""

    shape: tuple[int, int, int]
    network: str
    train_images: int
    test_images: int
    steps: int
    sizes: tuple[int, ...]
    iterations: int
    reference_iterations: int
    sampling_steps: int
    expert_batch: int


GPU = Scale((3, 32, 32), "convnet:depth=3,width=128", 50_000, 10_000, 100, (1, 10, 50), 20, 20, 1000, 256)
CPU = Scale((1, 8, 8), "convnet", 1300, 497, 30, (1, 10), 20, 20, 200, 256)
MNIST_ON_CPU = Scale((1, 28, 28), "convnet:depth=3,width=128", 1300, 497, 50, (1,), 5, 3, 200, 256)


@dataclass(frozen=True)
class Measurement:
    """One row: milliseconds (or images per second), the reference's, the floor, and peak memory."""

    what: str
    unit: str
    ours: float
    reference: float | None = None
    floor: float | None = None
    peak_memory: int | None = None
    warm_up_seconds: float | None = None
    host: float | None = None
    """Milliseconds of the host's to launch a call that is launched at once, the device being idle."""

    @property
    def ratio(self) -> float | None:
        """How many times better than the reference."""
        if self.reference is None:
            return None
        return self.ours / self.reference if self.unit == "images/s" else self.reference / self.ours

    @property
    def host_share(self) -> float | None:
        """Of the time of a call; where it is below 1, the host works ahead and the device decides."""
        return None if self.host is None else self.host / self.ours

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"ratio": self.ratio, "host_share": self.host_share}


def run_bench(
    device: str | torch.device = "auto", backend: Backend | None = None, alone: bool = False
) -> Iterator[Measurement]:
    """Every measurement, one after another; ``alone`` leaves the reference out."""
    device = resolve_device(device)
    backend = backend or choose_backend(device)
    if device.type == "cpu":
        with closing(_Bench(MNIST_ON_CPU, device, backend, alone)) as bench:
            larger = bench.construction(1)
        yield replace(larger, what=f"MNIST, depth 3, width 128: {larger.what}")
    scale = GPU if device.type == "cuda" else CPU
    with threads_for(scale.shape), closing(_Bench(scale, device, backend, alone)) as bench:
        yield from bench.ceilings()
        for ipc in scale.sizes:
            yield bench.construction(ipc)
        yield bench.construction(1, chains=8)
        yield from bench.memory_against_steps()
        if device.type == "cuda":
            for ipc in scale.sizes:
                yield bench.unrolling(ipc)
        yield bench.expert_training()
        yield bench.evaluation(10)
        yield from bench.snapshots()


class _Bench:
    def __init__(self, scale: Scale, device: torch.device, backend: Backend, alone: bool) -> None:
        self._scale = scale
        self._alone = alone
        self._device = device
        self._backend = backend
        self._data = synthetic_data(scale.shape, scale.train_images, scale.test_images)
        self._network = build_network(scale.network, scale.shape, 10)
        self._flops, self._bandwidth = _matrix_rate(device), _copy_rate(device)
        self._expert_rate = math.nan
        self._elsewhere: list[LocalWorker] = []

    def close(self) -> None:
        """End the processes of the reference."""
        for worker in self._elsewhere:
            worker.dismiss()

    def ceilings(self) -> Iterator[Measurement]:
        yield Measurement("ceiling: matrix product", "TFLOP/s", self._flops / 1e12)
        yield Measurement("ceiling: memory copy", "GB/s", self._bandwidth / 1e9)

    def construction(self, ipc: int, chains: int = 1, steps: int | None = None) -> Measurement:
        """One iteration of contrastive divergence: expert draw, chain, two energies, gradient, image step."""
        steps = steps or self._scale.steps
        compared = chains == 1 and steps == self._scale.steps and not self._alone
        return self._measured(
            f"construction, ipc {ipc}, k = {steps}, N = {chains}",
            lambda: self._iteration(ipc, chains, steps),
            self._reference(10 * ipc, steps) if compared else None,
            chains * steps * self._step_floor(10 * ipc),
        )

    def unrolling(self, ipc: int) -> Measurement:
        """One iteration of `bptt` with the windows that the preset `paper` has for CIFAR-10."""
        method = BPTT(
            steps=WINDOW,
            horizon=10 * WINDOW,
            spread=True,
            batch_size=1024,
            points_per_step=POINTS_PER_STEP if 10 * ipc > POINTS_PER_STEP else 0,
        )
        return self._measured(
            f"bptt, ipc {ipc}, windows of {WINDOW}",
            lambda: construction_iteration(self._data, self._network, method, ipc, self._device, self._backend),
        )

    def _measured(
        self,
        what: str,
        make: Callable[[], Callable[[], None]],
        reference: Callable[[], object] | None = None,
        floor: float | None = None,
    ) -> Measurement:
        """Milliseconds, memory and warm-up of the iteration that ``make`` gives."""
        began = time.monotonic()
        step = make()
        with PeakMemory(self._device) as memory:
            step()
            self._wait()
            warm_up = time.monotonic() - began
            if self._device.type == "cuda":
                self._run_ahead(step)
            ours, beside = self._beside(step, reference)
            host = self._host(step) if self._device.type == "cuda" else None
        return Measurement(what, "ms", ours, beside, floor, memory.bytes, warm_up, host)

    def memory_against_steps(self) -> Iterator[Measurement]:
        """Peak memory must not grow with k."""
        for steps in (10, 400) if self._device.type == "cuda" else (10, 100):
            yield self.construction(1, steps=steps)

    def expert_training(self) -> Measurement:
        """Images per second of SGD with augmentation, after warm-up."""
        scale, batch = self._scale, self._scale.expert_batch
        began = time.monotonic()
        self._train_experts(1)
        self._wait()
        warm_up = time.monotonic() - began
        epochs = 4 if self._device.type == "cuda" else 1
        with PeakMemory(self._device) as memory:
            began = time.monotonic()
            self._train_experts(epochs)
            self._wait()
        rate = self._expert_rate = 4 * epochs * scale.train_images / (time.monotonic() - began)
        ten_steps = None if self._alone else self._median(self._reference(batch, 10), 5)
        reference = None if ten_steps is None else 1e3 * batch / (ten_steps / 10)
        return Measurement(
            "experts, with augmentation",
            "images/s",
            rate,
            reference,
            batch / self._step_floor(batch) * 1e3,
            memory.bytes,
            warm_up,
        )

    def _train_experts(self, epochs: int) -> None:
        train_experts(
            self._data,
            self._network,
            4,
            epochs=epochs,
            batch_size=self._scale.expert_batch,
            population=4,
            device=self._device,
            backend=self._backend,
            progress=Silent(),
        )

    def evaluation(self, ipc: int) -> Measurement:
        """Cold evaluation: 5 chains, 20 samples each, predictions of the test data."""
        settings = ConstructionSettings(ipc=ipc)
        coreset = real_coreset(self._data, settings, self._network.spec, "random")

        def once() -> None:
            samples = sample_posterior(
                coreset,
                chains=5,
                steps=self._scale.sampling_steps,
                samples=20,
                device=self._device,
                backend=self._backend,
                progress=Silent(),
            )
            samples.predict(self._data.test.images)

        began = time.monotonic()
        once()
        self._wait()
        warm_up = time.monotonic() - began
        with PeakMemory(self._device) as memory:
            ours = self._median(once, 3 if self._device.type == "cuda" else 1)
        floor = 5 * self._scale.sampling_steps * self._step_floor(10 * ipc)
        what = f"cold evaluation, ipc {ipc}, 5 chains x {self._scale.sampling_steps} steps"
        return Measurement(what, "ms", ours, None, floor, memory.bytes, warm_up)

    def snapshots(self) -> Iterator[Measurement]:
        """What drawing from a store costs per iteration, and what storing costs expert training, in percent.

        The first is a small difference of two times, so they are measured in turn and compared round by round.
        """
        with tempfile.TemporaryDirectory() as folder:
            store = ExpertStore.create_or_open(folder, self._network, NOTHING, ExpertSettings(epochs=STORED_EPOCHS))
            trajectory = self._network.initialise(0, STORED_EPOCHS + 1)
            numbers = itertools.count()
            storing = seconds_of(lambda: store.add(next(numbers), trajectory), torch.device("cpu"), STORED, warm_ups=1)
            resident = random_experts(self._network, self._device)
            iterations = [self._iteration(1, 1, self._scale.steps, experts) for experts in (resident, store.experts())]
            repeats = self._scale.iterations
            rounds = [[self._median(each, repeats) for each in iterations] for _ in range(DRAWING_ROUNDS)]
        slower = statistics.median(stored / held - 1 for held, stored in rounds)
        yield Measurement("drawing from a store, of an iteration", "%", 100 * slower)
        snapshot = self._network.initialise(0, device=self._device)
        copying = 1e-3 * self._median(lambda: snapshot.cpu(), self._scale.iterations) * (STORED_EPOCHS + 1)
        training = STORED_EPOCHS * self._scale.train_images / self._expert_rate
        yield Measurement(
            f"storing {STORED_EPOCHS} epochs, of their training", "%", 100 * (storing + copying) / training
        )

    def _iteration(self, ipc: int, chains: int, steps: int, experts: Experts | None = None) -> Callable[[], None]:
        method = contrastive_divergence(chains, steps)
        return construction_iteration(self._data, self._network, method, ipc, self._device, self._backend, experts)

    def _reference(self, images: int, steps: int) -> Callable[[], object]:
        """An iteration of the reference loop; on a CPU in a process of its own.

        In ours it is faster where it needs much memory, likely because the C library keeps what ours has freed.
        """
        if self._device.type == "cuda":
            return ReferenceLoop(self._network, images, steps, self._device)
        worker = LocalWorker("cpu", 1)
        self._elsewhere.append(worker)
        worker.learn(_ReferenceElsewhere(self._scale, images, steps, torch.get_num_threads()))

        def call() -> object:
            worker.give(None)
            return worker.result()

        return call

    def _step_floor(self, images: int) -> float:
        """Milliseconds of one gradient step: arithmetic or traffic, whichever is more."""
        flops, traffic = step_cost(self._network, images, 2 if self._device.type == "cuda" else 4)
        return 1e3 * max(flops / self._flops, traffic / self._bandwidth)

    def _run_ahead(self, step: Callable[[], object]) -> None:
        """As many calls as will be measured: a host that runs ahead of its device claims pinned memory at first."""
        for _ in range(self._scale.iterations):
            step()
        self._wait()

    def _host(self, step: Callable[[], object]) -> float:
        """Median milliseconds to launch a call on a device that has nothing to do, so that no queue is full."""
        times = []
        for _ in range(self._scale.iterations):
            self._wait()
            began = time.perf_counter()
            step()
            times.append(1e3 * (time.perf_counter() - began))
        self._wait()
        return statistics.median(times)

    def _beside(self, step: Callable[[], object], reference: Callable[[], object] | None) -> tuple[float, float | None]:
        """Milliseconds of an iteration, and of the reference's where there is one.

        On a CPU, which other work may share, both are the best of calls in turn, after a first of each.
        """
        if reference is None:
            return self._median(step, self._scale.iterations), None
        if self._device.type == "cuda":
            ours = self._median(step, self._scale.iterations)
            return ours, self._median(reference, self._scale.reference_iterations)
        reference()
        times = []
        for _ in range(1 + self._scale.iterations):
            marks = [time.perf_counter()]
            for call in (step, reference):
                call()
                marks.append(time.perf_counter())
            times.append([1e3 * (after - before) for before, after in itertools.pairwise(marks)])
        best_ours, best_reference = map(min, zip(*times, strict=True))
        return best_ours, best_reference

    def _median(self, call: Callable[[], object], repeats: int) -> float:
        """Median milliseconds of a call, after warm-up; on a GPU, of calls that follow one another without waiting."""
        for _ in range(min(WARM_UP_ITERATIONS, repeats)):
            call()
        if self._device.type == "cuda":
            return self._median_on_gpu(call, repeats)
        times = []
        for _ in range(repeats):
            self._wait()
            began = time.perf_counter()
            call()
            self._wait()
            times.append(1e3 * (time.perf_counter() - began))
        return statistics.median(times)

    def _median_on_gpu(self, call: Callable[[], object], repeats: int) -> float:
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
        marks[0].record()
        for mark in marks[1:]:
            call()
            mark.record()
        self._wait()
        return statistics.median(before.elapsed_time(after) for before, after in itertools.pairwise(marks))

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def contrastive_divergence(chains: int, steps: int, kernel: str = "langevin") -> ContrastiveDivergence:
    """With draws from the three snapshots of ``random_experts``."""
    return ContrastiveDivergence(expert_epochs=1, max_start_epoch=None, chains=chains, steps=steps, kernel=kernel)


def construction_iteration(
    data: Dataset,
    network: Network,
    method: GradientMethod,
    ipc: int,
    device: torch.device,
    backend: Backend,
    experts: Experts | None = None,
    learn_weights: bool = False,
) -> Callable[[], None]:
    """One iteration of a construction by ``method``; random experts where none are given."""
    settings = ConstructionSettings(ipc=ipc, learning_rate=1e-3)
    start = real_coreset(data, settings, network.spec, "bench")
    learner = Learner(Parameterisation(start.points, learn_weights=learn_weights), method, settings, device)
    problem = Problem(
        Energy(Classifier(network), len(data.train)),
        source=experts or random_experts(network),
        real_data=cache(lambda: RealData.of(data, device)),
        augmentation=backend.augmentation(dsa(flippable=True), network.spec.shape),
        backend=backend,
    )
    return iterating(learner, method, problem, device)


def iterating(learner: Learner, method: GradientMethod, problem: Problem, device: torch.device) -> Callable[[], None]:
    """An iteration of a construction, to be called again and again."""
    randomness = Randomness.for_purpose(0, "bench", device=device)

    def iteration() -> None:
        randomness.reseed(0, "bench", learner.iteration)
        learner.step(method, problem, randomness)

    return iteration


def random_experts(network: Network, device: str | torch.device = "cpu") -> Experts:
    """Three short trajectories of parameters that were never trained."""
    trajectories = [network.initialise(number, 3, device) for number in range(3)]
    return Experts(network, NOTHING, ExpertSettings(epochs=2), trajectories)


@dataclass
class _ReferenceElsewhere:
    """The reference loop, made where it is called first."""

    scale: Scale
    images: int
    steps: int
    threads: int
    loop: ReferenceLoop | None = None

    def __call__(self, _: object) -> None:
        if self.loop is None:
            torch.set_num_threads(self.threads)
            network = build_network(self.scale.network, self.scale.shape, 10)
            self.loop = ReferenceLoop(network, self.images, self.steps, torch.device("cpu"))
        self.loop()


class ReferenceLoop:
    """An iteration of Algorithm 1 as a plain loop; its Langevin noise has the size that matches the energies."""

    def __init__(self, network: Network, images: int, steps: int, device: torch.device) -> None:
        self._module = network.module(network.initialise(0)).to(device)
        self._start = [parameter.detach().clone() for parameter in self._module.parameters()]
        self._images = torch.randn(images, *network.spec.shape, device=device, requires_grad=True)
        self._labels = torch.arange(images, device=device) % network.spec.classes
        self._steps = steps
        self._augmentation = dsa(flippable=True)
        self._randomness = Randomness.for_purpose(0, "reference", device=device)

    def __call__(self) -> None:
        parameters = list(self._module.parameters())
        with torch.no_grad():
            for parameter, start in zip(parameters, self._start, strict=True):
                parameter.copy_(start)
        (positive,) = torch.autograd.grad(self._energy(self._images), self._images)
        for _ in range(self._steps):
            gradients = torch.autograd.grad(self._energy(self._images.detach()), parameters)
            with torch.no_grad():
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    parameter.sub_(0.01 * gradient - 6e-4 * torch.randn_like(parameter))
        (negative,) = torch.autograd.grad(self._energy(self._images), self._images)
        with torch.no_grad():
            self._images.sub_(1e-3 * (positive - negative))

    def _energy(self, images: Tensor) -> Tensor:
        seen = self._augmentation.draw(len(images), self._randomness)(images)
        return F.cross_entropy(self._module(seen), self._labels)


def step_cost(network: Network, images: int, bytes_per_value: int) -> tuple[float, float]:
    """Floating-point operations and bytes of one gradient in the parameters.

    Every convolution and product is counted once forward, once for its weights and, past the first layer, once for its
    input; every activation is written once and read once in each direction.
    """
    flops = traffic = 0.0
    first = True

    def count(layer: torch.nn.Module, given: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal flops, traffic, first
        assert isinstance(layer, torch.nn.Conv2d | torch.nn.Linear)
        products = 2.0 * output.numel() * layer.weight[0].numel()
        flops += images * products * (2 if first else 3)
        traffic += images * bytes_per_value * (2 * given[0].numel() + 4 * output.numel())
        first = False

    layers = [layer for layer in network.prototype.modules() if isinstance(layer, torch.nn.Conv2d | torch.nn.Linear)]
    hooks = [layer.register_forward_hook(count) for layer in layers]
    with torch.no_grad():
        network.prototype(torch.zeros(1, *network.spec.shape))
    for hook in hooks:
        hook.remove()
    return flops, traffic + 16.0 * network.size


def synthetic_data(shape: tuple[int, int, int], train_images: int, test_images: int, classes: int = 10) -> Dataset:
    """Random bytes in the shapes of real data: speed does not depend on what the pixels show."""
    generator = torch.Generator().manual_seed(0)

    def split(count: int) -> Split:
        images = torch.randint(0, 256, (count, *shape), generator=generator, dtype=torch.uint8)
        return Split(images, torch.arange(count) % classes)

    train = split(train_images)
    return Dataset(
        name="bench",
        train=train,
        test=split(test_images),
        classes=tuple(str(label) for label in range(classes)),
        transform=fit_normalisation(train.images),
    )


def _matrix_rate(device: torch.device) -> float:
    """Operations a second of a large product: bfloat16 on a GPU, float32 on a CPU."""
    side, dtype = (8192, torch.bfloat16) if device.type == "cuda" else (1024, torch.float32)
    a = torch.randn(side, side, device=device).to(dtype)
    seconds = seconds_of(lambda: a @ a, device)
    return 2 * side**3 / seconds


def _copy_rate(device: torch.device) -> float:
    """Bytes read and written per second by a large copy."""
    count = 2**30 if device.type == "cuda" else 2**26
    source = torch.ones(count, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * count / seconds_of(lambda: target.copy_(source), device)


def seconds_of(call: Callable[[], object], device: torch.device, repeats: int = 10, warm_ups: int = 3) -> float:
    """The mean of calls that follow one another."""
    for _ in range(warm_ups):
        call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    began = time.perf_counter()
    for _ in range(repeats):
        call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return (time.perf_counter() - began) / repeats
