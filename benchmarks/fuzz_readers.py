"""Damaged and forged files for every reader: ``python benchmarks/fuzz_readers.py --cases 1000000``.

Rounds of new cases go over all readers until the number, or the time, is reached; the record is written after each. A
reader that fails is left out from then on, and the record says how; the status is then 1.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

from hostile_cases import Tried, try_cases
from hostile_readers import readers

from pseudocoresets.workflows.provenance import provenance

ROUND = 10_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=1e9, help="Stop before a round that begins later than this.")
    parser.add_argument("--first", type=int, default=1, help="The number of the first round, which seeds it.")
    parser.add_argument("--only", nargs="*", help="The names of the readers; default: all.")
    parser.add_argument("--out", type=Path, help="Where to write the record.")
    arguments = parser.parse_args()
    began, number, total = time.monotonic(), arguments.first, 0
    about = provenance(f"python benchmarks/fuzz_readers.py {' '.join(sys.argv[1:])}", torch.device("cpu"))
    failures: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as name:
        found = [each for each in readers(Path(name)) if not arguments.only or each.name in arguments.only]
        tried = {reader.name: Tried() for reader in found}
        while found and total < arguments.cases and time.monotonic() - began < arguments.seconds:
            shares = sum(reader.share for reader in found)
            for reader in list(found):
                count, so_far = min(ROUND, arguments.cases) * reader.share // shares, tried[reader.name]
                try:
                    more = try_cases(reader, Path(name), count, number)
                    tried[reader.name] = Tried(so_far.cases + more.cases, so_far.read + more.read)
                except Exception as error:
                    failures[reader.name] = "".join(traceback.format_exception(error))[-4000:]
                    found.remove(reader)
            total, number = sum(each.cases for each in tried.values()), number + 1
            rounds = {"rounds": (arguments.first, number - 1), "seconds": round(time.monotonic() - began)}
            _record(arguments.out, about | rounds, tried, failures)
    sys.exit(1 if failures else 0)


def _record(out: Path | None, about: dict[str, Any], tried: dict[str, Tried], failures: dict[str, str]) -> None:
    total = sum(each.cases for each in tried.values())
    read = {name: f"{each.read} of {each.cases}" for name, each in tried.items()}
    if out is not None:
        document = {**about, "cases": total, "failures": failures, "read after all": read}
        out.write_text(json.dumps(document, indent=2) + "\n")
    print(f"{total:,} cases in {about['seconds']} s, {len(failures) or 'no'} readers failed", flush=True)


if __name__ == "__main__":
    main()
