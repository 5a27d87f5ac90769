"""Small experts and a small coreset of the digits, made once and shared."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small import CONSTRUCTION, METHOD_OPTIONS, NETWORK, Invoke
from typer.testing import CliRunner

import pseudocoresets as pc
from pseudocoresets._cli.app import build_app
from pseudocoresets.data import Dataset
from pseudocoresets.sources.experts import Experts

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def digits() -> Dataset:
    return pc.load_dataset("digits")


@pytest.fixture(scope="session")
def experts_folder(tmp_path_factory: pytest.TempPathFactory, digits: Dataset) -> Path:
    """Two experts of a small network, four epochs each; tests must not change it."""
    folder = tmp_path_factory.mktemp("shared") / "experts"
    pc.train_experts(digits, NETWORK, 2, 4, out=folder, batch_size=32, learning_rate=0.05, device="cpu")
    return folder


@pytest.fixture(scope="session")
def experts(experts_folder: Path) -> Experts:
    return pc.load_experts(experts_folder)


@pytest.fixture(scope="session")
def coreset(digits: Dataset, experts: Experts) -> pc.Coreset:
    """One synthetic image per class, learned for long enough to be better than real ones."""
    return pc.construct(digits, experts, "cd", 1, method_options=METHOD_OPTIONS, device="cpu", **CONSTRUCTION)


@pytest.fixture(scope="session")
def coreset_file(tmp_path_factory: pytest.TempPathFactory, coreset: pc.Coreset) -> Path:
    path = tmp_path_factory.mktemp("shared") / "c.safetensors"
    coreset.save(path)
    return path


@pytest.fixture
def bpc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """The command in this process, in an empty working folder."""
    monkeypatch.chdir(tmp_path)
    runner = CliRunner()

    def invoke(*arguments: Any) -> Any:
        return runner.invoke(build_app(), [str(argument) for argument in arguments], catch_exceptions=False)

    return invoke


@pytest.fixture
def start_bpc(tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """The command as a process of its own, in an empty working folder."""

    def start(*arguments: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "pseudocoresets", *(str(argument) for argument in arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            preexec_fn=_heed_interrupts,
        )

    return start


def _heed_interrupts() -> None:
    """A shell's background jobs ignore Ctrl-C, and so would their children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
