"""Put the cells of several runs of cells.py into one record, without what only the choice of a sampler needed.

    python benchmarks/gather.py --out benchmarks/results/paper_cells.json --note "..." RUN/cells.json [RUN2/cells.json]

With ``--earlier`` and a record, its rows are kept too, but for cells, labels and seeds that the runs have again.
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
    plan = {name: row["plan"][name] for name in SETTINGS}
    return cell | {key: row[key] for key in KEPT if key in row} | {"plan": plan}


def identity(row: dict[str, Any]) -> tuple[Any, ...] | None:
    """What tells one construction from another."""
    return (row["dataset"], row["ipc"], row["label"], row["seed"]) if "label" in row else None


def kept_of(record: dict[str, Any], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of an earlier record that these do not replace."""
    replaced = {identity(row) for row in rows} - {None}
    return [row for row in record["rows"] if identity(row) not in replaced]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--earlier", type=Path, help="A record whose other rows are kept.")
    parser.add_argument("--note", action="append", default=[])
    options = parser.parse_args()
    documents = [json.loads(path.read_text()) for path in options.runs]
    shared = {key: documents[0][key] for key in ("device", "torch", "python", "held_out")}
    empty: dict[str, Any] = {"commands": [], "commits": [], "rows": []}
    earlier = json.loads(options.earlier.read_text()) if options.earlier else empty
    rows = [shortened(row) for document in documents for row in document["rows"]]
    record = shared | {
        "commands": earlier["commands"] + [document["command"] for document in documents],
        "commits": sorted({*earlier["commits"], *(document["commit"] for document in documents)}),
        "notes": options.note,
        "rows": kept_of(earlier, rows) + rows,
    }
    options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
