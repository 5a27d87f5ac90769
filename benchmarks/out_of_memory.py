"""Does a device that runs out of memory cost one sentence, and nothing that was finished?

    python benchmarks/out_of_memory.py --out out_of_memory.json          one GPU that nobody else uses, two minutes

Another process takes the device's memory, all but a little of it, before or in the middle of a command. The command
must end with a status other than 0 and one line that says why. With the memory given back, the same command must end
well, and experts that were stored before must not have been touched.

experts   is started with hardly any memory left
run       loses the memory when its construction writes its first checkpoint; evaluation needs more than it holds
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pseudocoresets.workflows.provenance import provenance

HOLDER = """
import sys, time, torch
kept, spare = [], int(sys.argv[1]) << 20
held = torch.zeros(1, device="cuda")
print("ready", flush=True)
sys.stdin.readline()
for size in (1 << 30, 1 << 26, 1 << 22):
    while torch.cuda.mem_get_info()[0] - size > spare:
        try:
            kept.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:
            break
print("holding", torch.cuda.mem_get_info()[0] >> 20, "MiB left", flush=True)
sys.stdin.readline()
"""
"""Takes the memory when it is told to, leaves some MiB of it, and gives it back when its input ends."""
EXPERTS = ["experts", "--dataset", "digits", "--network", "convnet:width=1024", "--count", "2", "--epochs", "1"]
EXPERTS += ["--batch-size", "1024", "--out", "experts"]
RUN = ["run", "--dataset", "digits", "--network", "convnet:width=256", "--method", "cd", "--ipc", "10", "--count", "2"]
RUN += ["--epochs", "5", "--iterations", "400", "--checkpoint-seconds", "1", "--chains", "100", "--out", "run"]
FOR_A_START, FOR_MORE = 1000, 100
"""MiB that are left to a command that is to start, which needs some 600 for nothing, and to one that runs already."""


class Holder:
    """Another process on the device."""

    def __init__(self, spare: int) -> None:
        command = [sys.executable, "-c", HOLDER, str(spare)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._says()

    def take(self) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write("take\n")
        self._process.stdin.flush()
        return self._says()

    def give_back(self) -> None:
        self._process.communicate(timeout=60)

    def _says(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@contextmanager
def holder(spare: int) -> Iterator[Holder]:
    other = Holder(spare)
    try:
        yield other
    finally:
        other.give_back()


def started(command: list[str], folder: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    whole = [sys.executable, "-m", "pseudocoresets", *command]
    return subprocess.Popen(whole, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str]) -> dict[str, Any]:
    _, errors = process.communicate()
    lines = [line for line in errors.splitlines() if line.strip()]
    return {"status": process.returncode, "said": lines[-1] if lines else "", "traceback": "Traceback" in errors}


def files(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in sorted(folder.rglob("expert-*.safetensors"))}


def experts_without_memory(folder: Path) -> dict[str, Any]:
    with holder(FOR_A_START) as other:
        left = other.take()
        short = ended(started(EXPERTS, folder))
    return {"command": EXPERTS, "holder": left, "short": short, "again": ended(started(EXPERTS, folder))}


def run_that_loses_memory(folder: Path) -> dict[str, Any]:
    with holder(FOR_MORE) as other:
        process = started(RUN, folder)
        while process.poll() is None and not list(folder.rglob("construction.checkpoint")):
            time.sleep(0.1)
        left = other.take()
        short = ended(process)
    before = files(folder)
    again = ended(started(RUN, folder))
    kept = all(files(folder)[path] == written for path, written in before.items())
    return {"command": RUN, "holder": left, "short": short, "again": again, "experts kept": kept and bool(before)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("out-of-memory"))
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    shutil.rmtree(given.folder, ignore_errors=True)
    given.folder.mkdir(parents=True)
    document: dict[str, Any] = {"provenance": provenance()}
    for name, case in (("experts", experts_without_memory), ("run", run_that_loses_memory)):
        document[name] = found = case(given.folder)
        given.out.write_text(json.dumps(document, indent=1) + "\n")
        short, again = found["short"], found["again"]
        well = short["status"] != 0 and not short["traceback"] and again["status"] == 0
        well = well and short["said"].startswith("Error: ") and found.get("experts kept", True)
        found["as it should be"] = well
        print(
            f"{name}: {'as it should be' if well else 'NOT AS IT SHOULD BE'}", json.dumps(found), sep="\n", flush=True
        )
    given.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
