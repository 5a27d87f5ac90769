"""What ``bpc bench --networks`` says of a network: its arithmetic, and times beside the plain path."""

from __future__ import annotations

import json

import pytest
from small import Invoke
from torch import Tensor, nn

from pseudocoresets.models.networks import Network
from pseudocoresets.workflows import bench_networks as bench
from pseudocoresets.workflows.bench import step_cost


class Shortcut(nn.Module):
    """Two ways from the stem to the classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.shortcut, self.stem = nn.Conv2d(4, 6, 1, bias=False), nn.Conv2d(1, 4, 3, stride=2, padding=1)
        self.branch, self.classifier = nn.Conv2d(4, 6, 3, padding=1, groups=2), nn.Linear(6, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images)
        scores: Tensor = self.classifier((self.branch(x) + self.shortcut(x)).mean((2, 3)))
        return scores


def test_arithmetic_is_counted_along_the_forward() -> None:
    """Each product is one multiplication and one addition, forward and in two gradients; the first needs only one."""
    network = Network.from_module(Shortcut, (1, 8, 8), 10)
    stem, branch, shortcut, classifier = 16 * 4 * 9, 16 * 6 * 9 * 2, 16 * 6 * 4, 6 * 10
    flops, traffic = step_cost(network, images=5, bytes_per_value=2)
    assert flops == 5 * 2 * (2 * stem + 3 * (branch + shortcut + classifier))
    inputs, outputs = 64 + 64 + 64 + 6, 64 + 96 + 96 + 10
    assert traffic == 5 * 2 * (2 * inputs + 4 * outputs) + 16 * network.size


def test_networks_are_measured_beside_the_plain_path(bpc: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = (
        bench.Case("mlp:width=4", 2),
        bench.Case("mlp:width=8", 2, learn_weights=True),
        bench.Case("mlp:width=4", 1, "hmc:leapfrog_steps=3", gradients_per_step=3),
    )
    monkeypatch.setattr(bench, "ON_CPU", cases)
    shown = bpc("bench", "--networks", "--device", "cpu", "--out", "n.json", "--json")
    rows = json.loads(shown.stdout)["rows"]
    assert [row["case"]["network"] for row in rows] == [case.network for case in cases]
    assert all(row["times_faster"] == row["plain"] / row["ours"] > 0 for row in rows)
    assert [row["in_proportion_today"] is None for row in rows] == [True, False, False]
    assert not any(row["in_proportion"] for row in rows)  # the bound was set on a GPU
    more = rows[1]["gflop"] / rows[0]["gflop"]
    assert rows[1]["in_proportion_today"] == pytest.approx(rows[0]["ours"] * more)
    assert rows[2]["gflop"] / rows[0]["gflop"] == pytest.approx(3 / 2)
