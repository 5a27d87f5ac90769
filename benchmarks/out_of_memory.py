"""Does a device that runs out of memory cost one sentence, and nothing that was finished?

    python benchmarks/out_of_memory.py --out out_of_memory.json          one GPU that nobody else uses, two minutes

Another process takes the device's memory, all but a little of it. The command must end with a status other than 0 and
one line that says why. With the memory given back, the same command must end well, and experts that were stored before
must not have been touched.

experts   has hardly any memory
run       has enough for its experts and its construction, but not for the chains of its evaluation
"""

from __future__ import annotations

import argparse
import json
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
import sys, torch
kept, spare = [torch.zeros(1, device="cuda")], int(sys.argv[1]) << 20
for size in (1 << 30, 1 << 26, 1 << 22):
    while torch.cuda.mem_get_info()[0] - size > spare:
        try:
            kept.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:
            break
print("holding", torch.cuda.mem_get_info()[0] >> 20, "MiB left", flush=True)
sys.stdin.readline()
"""
"""Takes the memory, leaves some MiB of it, and gives it back when its input ends."""
NETWORK = ["--dataset", "digits", "--network", "convnet:width=1024"]
"""19 million parameters."""
EXPERTS = ["experts", *NETWORK, "--count", "2", "--epochs", "1", "--batch-size", "1024", "--out", "experts"]
RUN = ["run", *NETWORK, "--method", "cd", "--set", "expert_epochs=1", "--expert-count", "2", "--epochs", "1"]
RUN += ["--iterations", "20", "--chains", "40", "--sampling-steps", "50", "--samples", "2", "--out", "run"]
CASES = {"experts": (EXPERTS, 1000), "run": (RUN, 5000)}
"""Commands and the MiB that are left to them, of which a process takes some 600 before it does anything."""


@contextmanager
def memory_taken(spare: int) -> Iterator[str]:
    """By another process, which says how much it left."""
    command = [sys.executable, "-c", HOLDER, str(spare)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.communicate(timeout=60)


def ended(command: list[str], folder: Path) -> dict[str, Any]:
    began, whole = time.monotonic(), [sys.executable, "-m", "pseudocoresets", *command]
    process = subprocess.run(whole, cwd=folder, stderr=subprocess.PIPE, text=True, check=False)
    lines = [line for line in process.stderr.splitlines() if line.strip()]
    seconds = round(time.monotonic() - began, 1)
    said, traceback = lines[-1] if lines else "", "Traceback" in process.stderr
    return {"status": process.returncode, "said": said, "traceback": traceback, "seconds": seconds}


def files(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in sorted(folder.rglob("expert-*.safetensors"))}


def tried(command: list[str], spare: int, folder: Path) -> dict[str, Any]:
    """The command without memory, and then with it."""
    with memory_taken(spare) as left:
        short = ended(command, folder)
    before = files(folder)
    again = ended(command, folder)
    kept = all(files(folder)[path] == written for path, written in before.items())
    well = short["status"] != 0 and not short["traceback"] and again["status"] == 0 and kept
    return {
        "command": " ".join(command),
        "holder": left,
        "short": short,
        "again": again,
        "experts kept": len(before) if kept else False,
        "as it should be": well and short["said"].startswith("Error: "),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("out-of-memory"))
    parser.add_argument("--only", choices=sorted(CASES), help="the one case to try")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    shutil.rmtree(given.folder, ignore_errors=True)
    given.folder.mkdir(parents=True)
    document: dict[str, Any] = {"provenance": provenance()}
    for name in [given.only] if given.only else CASES:
        command, spare = CASES[name]
        document[name] = tried(command, spare, given.folder)
        given.out.write_text(json.dumps(document, indent=1) + "\n")
        print(name, json.dumps(document[name], indent=1), flush=True)


if __name__ == "__main__":
    main()
