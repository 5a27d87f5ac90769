"""A checkpoint is read as a whole or refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pseudocoresets._io.files import TensorFile, write_tensors
from pseudocoresets.construction.checkpoint import read_checkpoint
from pseudocoresets.construction.loop import run_construction
from pseudocoresets.construction.settings import ConstructionSettings
from pseudocoresets.core.errors import FileFormatError
from pseudocoresets.data import load_dataset
from pseudocoresets.methods import BPTT, FeatureAlignment, GradientMatching, GradientMethod
from pseudocoresets.methods.condensation.private_matching import PrivateMatching

DOCUMENT = {"run": "0" * 32, "iteration": 0, "iterations": 1, "records": []}


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64])
def test_numbers_of_a_kind_that_no_state_has_are_refused(tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = {"records": torch.zeros(0, 0, dtype=torch.float64), "leaves/x": torch.ones(2)}
    write_tensors(tmp_path / "c.checkpoint", tensors, DOCUMENT)
    assert read_checkpoint(tmp_path / "c.checkpoint").iterations == 1
    write_tensors(tmp_path / "c.checkpoint", tensors | {"leaves/x": torch.ones(2).to(dtype)}, DOCUMENT)
    with pytest.raises(FileFormatError, match="which no state does"):
        read_checkpoint(tmp_path / "c.checkpoint")


@pytest.mark.parametrize(
    "method",
    [
        BPTT(chains=3, steps=2, horizon=4, burn_in=2, batch_size=8, unrolls=1),
        BPTT(chains=2, steps=2, horizon=4, burn_in=2, batch_size=8, unrolls=1, networks="mlp:depth=1,width=3"),
        GradientMatching(matches=2, epochs=1, batch_size=4),
        FeatureAlignment(settled=0.0, moved=0.0, batch_size=4, watched_images=4, most_epochs=1),
        PrivateMatching(noise_multiplier=1.0, networks=2, at_once=1),
    ],
    ids=lambda method: f"{method.name} {type(method).__name__} {getattr(method, 'networks', '')}",
)
def test_a_method_state_of_another_shape_is_refused(method: GradientMethod, tmp_path: Path) -> None:
    """Each tensor that a method carries, in a checkpoint whose checksum is right, with another side or name."""
    data, path = load_dataset("digits"), tmp_path / "c.checkpoint"
    settings, network = ConstructionSettings(ipc=1, iterations=1, learning_rate=0.01), "mlp:depth=1,width=2"

    def construct() -> object:
        return run_construction(
            *(data, None, method.name, method, settings),
            network=network,
            checkpoint=path,
            device="cpu",
            checkpoint_seconds=0,
        )

    construct()
    construct()
    file = TensorFile.open(path)
    tensors = file.tensors()
    carried = [name for name in tensors if name.startswith("method/")]
    assert carried
    for name in carried:
        write_tensors(path, tensors | {name: tensors[name][None]}, file.document)
        with pytest.raises(FileFormatError, match=r"the method's '.*' is \(1,.*\), not \("):
            construct()
    write_tensors(path, tensors | {"method/another": torch.zeros(2)}, file.document)
    with pytest.raises(FileFormatError, match="the method has no 'another'"):
        construct()
