"""Train ConvNet D3W128 on real data at the paper's expert settings and write its test accuracy by epoch.

A bug in a reader, in the whitening or in the augmentation would show here.

    python benchmarks/real_data.py --data-dir .data --out results/real_data.json mnist fashion-mnist svhn cifar10

An existing output file is added to, so that the sets can be run one after another.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch

from pseudocoresets.core.devices import resolve_device
from pseudocoresets.data import Dataset, load_dataset
from pseudocoresets.models.networks import Network
from pseudocoresets.sources.experts import Experts, train_experts
from pseudocoresets.workflows.provenance import provenance

NETWORK = "convnet:depth=3,width=128"
WANTED = {"mnist": 0.992, "fashion-mnist": 0.915, "svhn": 0.92, "cifar10": 0.78}
REPORTED_EPOCHS = (1, 10, 20, 30, 40, 50)


def accuracy(network: Network, theta: torch.Tensor, data: Dataset, device: torch.device) -> float:
    transform = data.transform.to(device)
    right = 0
    with torch.no_grad():
        for images, labels in zip(data.test.images.split(1000), data.test.labels.split(1000), strict=True):
            predicted = network.logits(theta.to(device), transform(images.to(device))).argmax(-1)
            right += int((predicted.cpu() == labels).sum())
    return right / len(data.test)


def measure(name: str, data_dir: Path, epochs: int, device: torch.device) -> dict[str, object]:
    data = load_dataset(name, data_dir)
    began = time.monotonic()
    experts: Experts = train_experts(data, NETWORK, count=1, epochs=epochs, device=device)
    seconds = time.monotonic() - began
    reported = [epoch for epoch in REPORTED_EPOCHS if epoch <= epochs]
    by_epoch = {str(epoch): accuracy(experts.network, experts.snapshot(0, epoch), data, device) for epoch in reported}
    return {
        "test_accuracy": accuracy(experts.network, experts.snapshot(0, epochs), data, device),
        "wanted": WANTED.get(name),
        "test_accuracy_by_epoch": by_epoch,
        "settings": vars(experts.settings) | {"network": NETWORK, "transform": data.transform.kind},
        "training_seconds": seconds,
        "provenance": provenance(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="+")
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    results = json.loads(options.out.read_text()) if options.out.exists() else {}
    for name in options.datasets:
        results[name] = measure(name, options.data_dir, options.epochs, resolve_device())
        print(f"{name}: {100 * results[name]['test_accuracy']:.2f} % in {results[name]['training_seconds']:.0f} s")
        options.out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
