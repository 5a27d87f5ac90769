"""What the precision and the norm's kernels give for networks whose steps are captured as autograd has them.

An iteration of contrastive divergence (k = 100) at one and ten images per class of CIFAR-10's shape, each with bfloat16
(ConvNets only) or float32, and with the norm's kernels or PyTorch's. Run on a GPU:

    python benchmarks/network_variants.py --out benchmarks/results/network_variants_h200.json
"""

from __future__ import annotations

import argparse
from pathlib import Path
from unittest import mock

import torch

from pseudocoresets._io.files import write_json
from pseudocoresets.backends.fused import FusedBackend, norm
from pseudocoresets.models.networks import build_network
from pseudocoresets.workflows.bench import construction_iteration, contrastive_divergence, seconds_of, synthetic_data
from pseudocoresets.workflows.bench_networks import ON_GPU
from pseudocoresets.workflows.provenance import provenance

SHAPE, CLASSES, STEPS = (3, 32, 32), 10, 100


def milliseconds(name: str, ipc: int, dtype: torch.dtype, own_norms: bool) -> float:
    device = torch.device("cuda")
    network, method = build_network(name, SHAPE, CLASSES), contrastive_divergence(1, STEPS)
    has_kernel = norm.has_kernel if own_norms else (lambda *_: False)
    with mock.patch.object(norm, "has_kernel", has_kernel):
        data = synthetic_data(SHAPE, 1000, 10, CLASSES)
        iteration = construction_iteration(data, network, method, ipc, device, FusedBackend(device, dtype))
        return 1e3 * seconds_of(iteration, device, repeats=5, warm_ups=5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    rows = []
    for name in (case.network for case in ON_GPU[4:]):
        for ipc in (1, 10):
            for dtype in (torch.float32, torch.bfloat16) if name.startswith("convnet") else (torch.float32,):
                for own_norms in (False, True) if "norm=none" not in name and name != "alexnet" else (False,):
                    found = milliseconds(name, ipc, dtype, own_norms)
                    row = {"network": name, "ipc": ipc, "dtype": str(dtype), "own norms": own_norms, "ms": found}
                    print(row, flush=True)
                    rows.append(row)
                    write_json(out, {"provenance": provenance(device=torch.device("cuda")), "rows": rows})


if __name__ == "__main__":
    main()
