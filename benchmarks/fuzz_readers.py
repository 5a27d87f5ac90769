"""Damaged and forged files for every reader: ``python benchmarks/fuzz_readers.py --cases 1000000``.

Rounds of new cases go over all readers until the number, or the time, is reached. The first failure ends the run with
hypothesis's smallest example; the record says what was tried until then.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

from hostile_readers import Tried, readers, try_cases

ROUND = 20_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=1e9, help="Stop before a round that begins later than this.")
    parser.add_argument("--first", type=int, default=1, help="The number of the first round, which seeds it.")
    parser.add_argument("--out", type=Path, help="Where to write the record.")
    arguments = parser.parse_args()
    began, number, total = time.monotonic(), arguments.first, 0
    with tempfile.TemporaryDirectory() as name:
        found = readers(Path(name))
        shares = sum(reader.share for reader in found)
        tried = {reader.name: Tried() for reader in found}
        while total < arguments.cases and time.monotonic() - began < arguments.seconds:
            for reader in found:
                count = min(ROUND, arguments.cases) * reader.share // shares
                more, so_far = try_cases(reader, Path(name), count, number), tried[reader.name]
                tried[reader.name] = Tried(so_far.cases + more.cases, so_far.read + more.read)
            total, number = sum(each.cases for each in tried.values()), number + 1
            _record(arguments.out, tried, total, time.monotonic() - began, (arguments.first, number - 1))


def _record(out: Path | None, tried: dict[str, Tried], total: int, seconds: float, rounds: tuple[int, int]) -> None:
    document = {
        "cases": total,
        "rounds": rounds,
        "failures": 0,
        "seconds": round(seconds),
        "read after all": {name: f"{each.read} of {each.cases}" for name, each in tried.items()},
    }
    if out is not None:
        out.write_text(json.dumps(document, indent=2) + "\n")
    print(f"{total:,} cases in {seconds:.0f} s, no failure", flush=True)


if __name__ == "__main__":
    main()
