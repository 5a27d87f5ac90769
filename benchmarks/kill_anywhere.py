"""SIGKILLs at random moments of every command that writes: the same command then ends with the same bytes.

    OMP_NUM_THREADS=1 python benchmarks/kill_anywhere.py --kills 200 --out benchmarks/results/kill_anywhere.json

Each command runs once undisturbed. Then, again and again, it starts in an empty folder, is killed at a random moment of
the time that the undisturbed one took, and is started again until it ends by itself. Its files must then be those of
the undisturbed one, byte for byte but for measured times, and nothing hidden may be left beside them.
Commands run in forks of this process, which has imported everything: a kill hits work, not imports.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from pseudocoresets import LinearRegression, construct
from pseudocoresets._cli.app import build_app
from pseudocoresets.data import load_dataset

NETWORK = ("--network", "mlp:depth=1,width=8")
CHAIN = ("--set", "steps=3", "--set", "expert_epochs=2")
SMALL = (*NETWORK, *CHAIN, "--expert-count", "2", "--epochs", "3", "--iterations", "20")
SAMPLING = ("--chains", "2", "--sampling-steps", "40", "--samples", "4")
MADE = "made"
"""The folder of what commands read: experts, coresets of images and of rows, and a run."""
COMMANDS: dict[str, tuple[str, ...]] = {
    "experts": ("experts", *NETWORK, "--count", "3", "--epochs", "4", "--out", "out/experts"),
    "construct": (
        *("construct", "--experts", f"../{MADE}/experts", "--iterations", "60", "--checkpoint-seconds", "0"),
        *(*CHAIN, "--out", "out/c.safetensors"),
    ),
    "run": ("run", *SMALL, *SAMPLING, "--out", "out/run"),
    "compare": ("compare", "--methods", "cd,random", *SMALL, *SAMPLING, "--out", "out/compare"),
    "posterior": (
        *("posterior", "--data", "synthetic", "--points", "60", "--methods", "uniform", "--sizes", "5"),
        *("--draws", "400", "--dimension", "2", "--out", "out/posterior"),
    ),
    "evaluate": ("evaluate", f"../{MADE}/run/coreset.safetensors", *SAMPLING, "--out", "out/metrics.json"),
    "show": ("show", f"../{MADE}/run/coreset.safetensors", "--out", "out/c.png"),
    "compact": ("compact", f"../{MADE}/run/coreset.safetensors", "out/small.safetensors"),
    "report": ("report", f"../{MADE}/run", "--out", "out/report.html"),
    "share": ("share", f"../{MADE}/run", "--out", "out/shared"),
    "export": ("export", f"../{MADE}/rows.safetensors", "--to", "sklearn", "--out", "out/rows.csv"),
    "privacy audit": (
        *("privacy", "audit", f"../{MADE}/dm.safetensors", "--shadows", "6", "--images", "50", "--epochs", "1"),
        *(*SAMPLING, "--device", "cpu", "--out", "out/audit"),
    ),
    "reproduce": ("reproduce", "condensation", "--smoke", "--only", "dm:1", "--devices", "cpu", "--out", "out/paper"),
}
REFUSE_WHEN_DONE = ("share",)
"""They do not write into a folder that another call has finished, even if that call was killed after its work."""
MEASURED = re.compile(r"seconds|timings|peak_memory|speed_up|checksum|libraries|finished")
"""Keys of what a clock or the machine says."""
NOT_COMPARED = (".html", ".md", ".png")
"""They show measured times, or, of a study, its speed, as cached references do."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=1e9, help="Begin no trial after this time.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="Where to write the record.")
    parser.add_argument("--commands", nargs="*", default=list(COMMANDS))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    out = None if arguments.out is None else arguments.out.absolute()
    began, chance = time.monotonic(), random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        os.environ["XDG_CACHE_HOME"] = str(root / "cache")
        undisturbed = _prepare(root, arguments.commands)
        kills = dict.fromkeys(arguments.commands, 0)
        while sum(kills.values()) < arguments.kills and time.monotonic() - began < arguments.seconds:
            command = min(kills, key=lambda each: (kills[each], chance.random()))
            seconds, expected = undisturbed[command]
            kills[command] += _trial(root / "trial", COMMANDS[command], seconds, expected, chance)
            shutil.rmtree(root / "trial")
            _record(out, kills, time.monotonic() - began)


def _prepare(root: Path, names: list[str]) -> dict[str, tuple[float, dict[str, Any]]]:
    """What commands read, and what each leaves when nothing disturbs it, with the time that takes."""
    made = root / MADE
    made.mkdir()
    load_dataset("digits")
    _finish(made, ("run", *SMALL, *SAMPLING, "--out", "run", "--experts", "experts"))
    _finish(made, ("construct", "--method", "dm", *NETWORK, "--iterations", "20", "--out", "dm.safetensors"))
    model = LinearRegression(2)
    x = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    construct((x, x.sum(1)), model=model, method="uniform", size=5).save(made / "rows.safetensors")
    found = {}
    for name in names:
        folder = root / f"undisturbed {name}"
        folder.mkdir()
        began = time.monotonic()
        _finish(folder, COMMANDS[name])
        found[name] = time.monotonic() - began, _files(folder)
    return found


def _trial(
    folder: Path, command: tuple[str, ...], seconds: float, expected: dict[str, Any], chance: random.Random
) -> int:
    """The number of kills until the command came to its end with what it should leave; up to three are tried."""
    folder.mkdir()
    kills = 0
    for _ in range(3):
        process = _start(folder, command)
        process.join(chance.uniform(0, seconds))
        if process.exitcode is not None:
            break
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join()
        kills += process.exitcode == -signal.SIGKILL
    if command[0] not in REFUSE_WHEN_DONE or _files(folder) != expected:
        _finish(folder, command)
    found = _files(folder)
    if found != expected:
        differing = [path for path in found.keys() | expected.keys() if found.get(path) != expected.get(path)]
        kept = Path(tempfile.mkdtemp(prefix="kill_anywhere-"))
        shutil.copytree(folder, kept / "trial")
        sys.exit(f"After {kills} kills, '{' '.join(command)}' left other files: {differing}; they are in {kept}.")
    return kills


def _start(folder: Path, command: tuple[str, ...]) -> multiprocessing.Process:
    process = multiprocessing.get_context("fork").Process(target=_call, args=(folder, command))
    process.start()
    return process


def _finish(folder: Path, command: tuple[str, ...]) -> None:
    process = _start(folder, command)
    process.join()
    if process.exitcode != 0:
        sys.exit(f"'{' '.join(command)}' ended with the status {process.exitcode}.")


def _call(folder: Path, command: tuple[str, ...]) -> None:
    os.chdir(folder)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    build_app()(list(command))


def _files(folder: Path) -> dict[str, Any]:
    """The content of every file below, without what was measured."""
    return {str(path.relative_to(folder)): _content(path) for path in folder.rglob("*") if path.is_file()}


def _content(path: Path) -> Any:
    if path.name.endswith(NOT_COMPARED) or ".cache" in path.parts:
        return "there"
    if path.suffix == ".json":
        return _unmeasured(json.loads(path.read_text()))
    return path.read_bytes()


def _unmeasured(document: Any) -> Any:
    if isinstance(document, dict):
        return {key: _unmeasured(value) for key, value in document.items() if not MEASURED.search(key)}
    return [_unmeasured(each) for each in document] if isinstance(document, list) else document


def _record(out: Path | None, kills: dict[str, int], seconds: float) -> None:
    total = sum(kills.values())
    print(f"{total} kills in {seconds:.0f} s, all byte-equal: {kills}", flush=True)
    if out is not None:
        document = {"kills": total, "by command": kills, "different files": 0, "seconds": round(seconds)}
        out.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
