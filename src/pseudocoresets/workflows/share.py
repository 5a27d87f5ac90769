"""A coreset with its card as one folder: for a model hub, or the supplement of a paper."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pseudocoresets._io.files import only_writer, read_json, require_writable_folder, write_json, write_text
from pseudocoresets.core.errors import InputError
from pseudocoresets.core.text import printable
from pseudocoresets.coreset import CORESET_FILE, Coreset, coreset_path, library_versions
from pseudocoresets.data import FOLDER_PREFIX, find_entry
from pseudocoresets.evaluation.metrics import METRICS
from pseudocoresets.evaluation.report import method_title
from pseudocoresets.methods.selection import SELECTIONS
from pseudocoresets.workflows.audit import audit_findings, audit_folder

UNKNOWN_LICENCE = "unknown: say it with --licence before you publish this folder"
CARD, METRICS_FILE, PICTURE, SUMS = "README.md", "metrics.json", "coreset.png", "SHA256SUMS"
UNFINISHED = ".unfinished"
"""Marks a folder that a killed process began, which the same command goes on with."""
REAL = (
    "**This coreset holds real data** of the data set above, chosen and weighted. Publishing it publishes them: the "
    "data set's licence and the rights of those it shows apply in full."
)
SYNTHETIC = (
    "The points are synthetic, but they were learned from real data and may start from real points. They carry **no "
    "formal guarantee of privacy**: the construction is not differentially private, and single points can resemble "
    "training data, the more so the fewer data a class has. Treat the folder as you would a model trained on the data."
)
NOT_COVERED = (
    "Figures of random real images, and what an audit found, are left out: they were computed from the private data, "
    "and the guarantee does not cover them."
)


def share(path: str | os.PathLike[str], out: str | os.PathLike[str], licence: str | None = None) -> dict[str, Any]:
    """Write the folder ``out`` from a coreset file or a run folder; what is known of the figures comes from the run."""
    file, folder = coreset_path(path), Path(out)
    require_writable_folder(folder)
    coreset = Coreset.load(file)
    terms = printable(licence or _licence_of(coreset.source))
    with only_writer(folder):
        if folder.exists() and not (folder / UNFINISHED).exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InputError(f"'{folder}' exists and is not empty; choose a new folder with --out.")
        write_text(folder / UNFINISHED, "")
        digest = _write(coreset, file, Path(path), folder, terms)
        (folder / UNFINISHED).unlink()
    return {"folder": str(folder), "sha256": digest, "licence": terms}


def _write(coreset: Coreset, file: Path, path: Path, folder: Path, licence: str) -> str:
    """Every file of the folder; the coreset's hash."""
    beside = file.parent / METRICS_FILE
    metrics = read_json(beside) if file.name == CORESET_FILE and beside.is_file() else None
    metrics = _published(metrics, coreset) if isinstance(metrics, dict) else None
    coreset.save(folder / CORESET_FILE)
    digest = hashlib.sha256((folder / CORESET_FILE).read_bytes()).hexdigest()
    if coreset.holds_images and coreset.is_whole:
        coreset.show(folder / PICTURE)
    if metrics is not None:
        write_json(folder / METRICS_FILE, metrics)
    write_text(folder / SUMS, f"{digest}  {CORESET_FILE}\n")
    found = audit_findings(audit_folder(path)) if coreset.guarantee is None else []
    write_text(folder / CARD, card(coreset, licence, digest, metrics, (folder / PICTURE).is_file(), found))
    return digest


def card(
    coreset: Coreset,
    licence: str,
    digest: str,
    metrics: Mapping[str, Any] | None,
    pictured: bool,
    audited: Sequence[str] = (),
) -> str:
    """What it is, how it was made, its figures, the licence of the data, privacy, and how to load it."""
    kind = "images" if coreset.holds_images else "rows"
    source = _source_name(coreset.source)
    real = coreset.method in SELECTIONS or coreset.indices is not None
    versions = ", ".join(f"{name} {version}" for name, version in library_versions().items())
    settings = json.dumps(coreset.configuration, indent=2, default=str)
    network = "" if coreset.network is None else f", for the network `{coreset.network}`"
    header = {
        "license": "other",
        "license_name": licence,
        "tags": ["bayesian-pseudo-coreset", "dataset-distillation", "pseudocoresets"],
        "pretty_name": f"Pseudo-coreset of {source}",
    }
    lines = ["---", *(f"{name}: {json.dumps(value)}" for name, value in header.items()), "---", ""]
    lines += [f"# {'Coreset' if real else 'Pseudo-coreset'} of {source}", ""]
    lines += [f"![The coreset, one row per class]({PICTURE})", ""] if pictured else []
    lines += ["## What it is", ""]
    lines += [
        f"{len(coreset):,} weighted {kind} that stand in for {coreset.data_size:,} of {source}: the posterior of these "
        "few, each raised to its weight, is meant to be close to that of all.",
        "",
    ]
    lines += ["## How it was made", "", f"By the method `{coreset.method}` with seed {coreset.seed}{network}.", ""]
    lines += ["```json", settings, "```", "", f"Libraries: {versions}.", ""]
    lines += ["## Figures", "", *_figures(metrics, coreset), ""]
    lines += ["## Licence of the data", "", f"{licence}.", "", "## Privacy", "", _privacy(coreset, real), ""]
    lines += ["`bpc privacy audit` found:", "", *(f"- {printable(each)}" for each in audited), ""] if audited else []
    lines += ["## How to load it", "", "```python", "import pseudocoresets as pc", ""]
    lines += [
        f'coreset = pc.Coreset.load("{CORESET_FILE}")',
        f"# or from a server: <address>/{CORESET_FILE}#sha256={digest}",
    ]
    lines += ["```", "", f"SHA-256 of `{CORESET_FILE}`: `{digest}`", ""]
    return "\n".join(lines)


def _privacy(coreset: Coreset, real: bool) -> str:
    if coreset.guarantee is not None:
        return f"The points are synthetic and were made with differential privacy. {coreset.guarantee}\n\n{NOT_COVERED}"
    return REAL if real else SYNTHETIC


def _published(metrics: dict[str, Any], coreset: Coreset) -> dict[str, Any]:
    """The figures of a run; of a private coreset only its own, on test data."""
    secret = () if coreset.guarantee is None else ("control", "gain", "not_covered")
    return {name: value for name, value in metrics.items() if name not in secret}


def _figures(metrics: Mapping[str, Any] | None, coreset: Coreset) -> list[str]:
    """The figures of a run as a table; a file alone has none."""
    if metrics is None:
        return ["None were recorded with the file; `bpc evaluate` measures them."]
    lines = [f"On test data, protocol `{printable(str(metrics.get('protocol')))}`, mean ± deviation over runs.", ""]
    own_title = method_title("this coreset", coreset.labels_learned, coreset.formation)
    lines += [f"| metric | {own_title} | random real images |", "|---|---|---|"]
    for name, metric in METRICS.items():
        own, control = (_spread(block, name, metric.spread) for block in (metrics, metrics.get("control") or {}))
        lines.append(f"| {metric.title} | {own} | {control} |")
    return lines


def _spread(block: Mapping[str, Any], name: str, written: Any) -> str:
    try:
        return str(written(float(block[name]["mean"]), float(block[name]["std"])))
    except (KeyError, TypeError, ValueError):
        return "not recorded"


def _licence_of(source: str) -> str:
    """As the catalogue has it; of data of one's own nobody knows it here."""
    if source.startswith(FOLDER_PREFIX):
        return UNKNOWN_LICENCE
    try:
        return find_entry(source).licence
    except InputError:
        return UNKNOWN_LICENCE


def _source_name(source: str) -> str:
    """A folder by its last name alone: the rest is nobody's business."""
    name = Path(source.removeprefix(FOLDER_PREFIX)).name if source.startswith(FOLDER_PREFIX) else source
    return printable(name)
