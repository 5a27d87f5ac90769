"""Three ways to serve a population of ConvNets: torch.func.vmap, a loop over the chains, and Network.logits.

    python benchmarks/population_forward.py [--device cuda]

Times the scores and their gradient by the parameters: on the CPU as they are, on a GPU captured in a CUDA graph,
with TF32, so that launches do not count. Records the least time of several runs and, without TF32, the largest
difference of the gradients relative to the largest gradient.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from pseudocoresets.models.networks import Network, build_network

CASES = {
    "cpu": [
        ("convnet:depth=2,width=32", (1, 8, 8), 10, (1, 5, 30)),
        ("convnet:depth=3,width=128", (3, 32, 32), 10, (1, 5)),
    ],
    "cuda": [
        ("convnet:depth=3,width=128", (3, 32, 32), 10, (1, 5)),
        ("convnet:depth=3,width=128", (3, 32, 32), 100, (5, 20)),
    ],
}

Forward = Callable[[Tensor, Tensor], Tensor]


def forwards(network: Network, device: str) -> dict[str, Forward]:
    module = network.module(network.initialise(0)).to(device)

    def one(theta: Tensor, images: Tensor) -> Tensor:
        return functional_call(module, network.unflatten(theta), (images,))

    return {
        "vmap": vmap(one, in_dims=(0, None)),
        "loop": lambda theta, images: torch.stack([one(member, images) for member in theta]),
        "logits": network.logits,
    }


def gradient_of(forward: Forward, theta: Tensor, images: Tensor) -> Callable[[], Tensor]:
    def gradient() -> Tensor:
        leaf = theta.detach().requires_grad_()
        loss = forward(leaf, images).log_softmax(-1)[..., 0].sum()
        return torch.autograd.grad(loss, leaf)[0]

    return gradient


def captured(work: Callable[[], Tensor]) -> Callable[[], None]:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()

    def replay() -> None:
        graph.replay()
        torch.cuda.synchronize()

    return replay


def least_milliseconds(work: Callable[[], object], seconds: float = 2.0) -> float:
    work()
    times: list[float] = []
    while sum(times) < seconds or len(times) < 5:
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return 1000 * min(times)


def allow_tf32(allowed: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=list(CASES), default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    device = options.device
    torch.set_num_threads(options.threads)
    rows = []
    for name, shape, batch, populations in CASES[device]:
        network = build_network(name, shape, 10)
        images = torch.randn(batch, *shape, generator=torch.Generator().manual_seed(0)).to(device)
        for chains in populations:
            theta = network.initialise(0, chains, device)
            works = {way: gradient_of(f, theta, images) for way, f in forwards(network, device).items()}
            allow_tf32(False)
            gradients = {way: work() for way, work in works.items()}
            apart = max((gradient - gradients["loop"]).abs().max().item() for gradient in gradients.values())
            allow_tf32(True)
            timed = {way: captured(work) if device == "cuda" else work for way, work in works.items()}
            times = {way: round(least_milliseconds(work), 3) for way, work in timed.items()}
            rows.append({"network": name, "shape": shape, "images": batch, "chains": chains, "milliseconds": times})
            rows[-1]["largest_relative_difference"] = apart / gradients["loop"].abs().max().item()
            print(json.dumps(rows[-1]), flush=True)
    record = {"device": device, "threads": options.threads, "torch": torch.__version__, "rows": rows}
    (options.out / f"population_forward_{device}.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
