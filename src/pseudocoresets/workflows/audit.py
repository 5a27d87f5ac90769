"""The audit of a coreset file, with what it found in a folder beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pseudocoresets._io.files import only_writer, read_json, require_writable_folder, write_json
from pseudocoresets._io.schema import ListOf, Object, Text
from pseudocoresets.coreset import Coreset, coreset_path
from pseudocoresets.data import load_dataset
from pseudocoresets.privacy import AuditReport, audit
from pseudocoresets.sources.experts import load_experts
from pseudocoresets.workflows.evaluate import require_listed_shape, whole_coreset
from pseudocoresets.workflows.place import Workplace

AUDIT_FILE, PICTURE_FILE, SHADOWS = "audit.json", "neighbours.png", "shadows"
RUN_EXPERTS = "experts"
FINDINGS = Object({"findings": ListOf(Text(2000), 100)})


def audit_folder(coreset_file: Path) -> Path:
    """Where an audit goes if nobody says: ``privacy`` in a run's folder, ``c.privacy`` beside ``c.safetensors``."""
    if coreset_file.is_dir():
        return coreset_file / "privacy"
    return coreset_file.with_name(coreset_file.name.removesuffix(".safetensors") + ".privacy")


def audit_findings(folder: Path) -> list[str]:
    """What the audit in ``folder`` found, in words; nothing where there is none."""
    path = folder / AUDIT_FILE
    found: list[str] = read_json(path, FINDINGS)["findings"] if path.is_file() else []
    return found


def audit_file(
    coreset_file: Path,
    place: Workplace,
    *,
    dataset: str | None = None,
    network: str | None = None,
    experts: Path | None = None,
    data_dir: str | Path = "data",
    out: Path | None = None,
    sampling: Mapping[str, Any] | None = None,
    **options: Any,
) -> AuditReport:
    """The audit of a coreset file or a run's folder; ``options`` are those of ``audit``.

    A run's own experts are used where no others are named.
    """
    folder = audit_folder(coreset_file) if out is None else out
    coreset = Coreset.load(coreset_file)
    name = dataset or coreset.source
    require_listed_shape(coreset, name)
    require_writable_folder(folder)
    data = load_dataset(name, data_dir)
    coreset = whole_coreset(coreset, data, data_dir)
    kept = coreset_path(coreset_file).parent / RUN_EXPERTS
    chosen = kept if experts is None and coreset_file.is_dir() and kept.is_dir() else experts
    with only_writer(folder):
        found = audit(
            coreset,
            data,
            experts=None if chosen is None else load_experts(chosen),
            network=network,
            folder=folder / SHADOWS,
            device=place.device,
            backend=place.backend,
            progress=place.progress,
            **options,
            **(sampling or {}),
        )
        write_json(folder / AUDIT_FILE, found.as_json())
        found.show(folder / PICTURE_FILE)
    return found
