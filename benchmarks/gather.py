"""Put the cells of several runs of cells.py into one record, without what only the choice of a sampler needed.

python benchmarks/gather.py --out benchmarks/results/paper_cells.json --note "..." RUN/cells.json [RUN/cells.json ...]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

KEPT = (
    "seed",
    "iterations",
    "construct_seconds",
    "judge_seconds",
    "seconds_per_iteration",
    "peak_memory",
    "last",
    "curve",
    "chosen",
    "test",
)
SETTINGS = ("method_options", "construction", "sampling")


def shortened(row: dict[str, Any]) -> dict[str, Any]:
    """A row of cells.json; experts as they are, a failure as its first line."""
    if "failed" in row:
        return {"failed": row["failed"], "error": row["error"]}
    if "job" not in row:
        return row
    job = row["job"]
    cell = {"dataset": job["dataset"], "ipc": job["ipc"], "label": job.get("label", job["method"])}
    cell |= {"method": job["method"], "initial": job.get("initial")}
    cell |= {"whiten": True} if job.get("whiten") else {}
    plan = {name: row["plan"][name] for name in SETTINGS}
    return cell | {key: row[key] for key in KEPT if key in row} | {"plan": plan}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--note", action="append", default=[])
    options = parser.parse_args()
    documents = [json.loads(path.read_text()) for path in options.runs]
    shared = {key: documents[0][key] for key in ("device", "torch", "python", "held_out")}
    record = shared | {
        "commands": [document["command"] for document in documents],
        "commits": sorted({document["commit"] for document in documents}),
        "notes": options.note,
        "rows": [shortened(row) for document in documents for row in document["rows"]],
    }
    options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
