"""What an audit found, as a section of the page of a run or as a page of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pseudocoresets._io.files import read_json, require_regular, write_text
from pseudocoresets._io.pictures import data_address
from pseudocoresets._report import charts
from pseudocoresets._report.templates import rendered
from pseudocoresets.core.errors import FileFormatError, InputError
from pseudocoresets.privacy.report import ATTACK_COLUMNS, POINT_COLUMNS, attack_rows, point_rows
from pseudocoresets.workflows.audit import AUDIT_FILE, PICTURE_FILE

AUDIT_PAGE = "audit.html"
STYLES = ("first", "second", "third")
CURVE_TITLE = "True against false positives"


def write_audit_page(folder: Path) -> Path:
    """Write the page of the audit in ``folder``, and return its path."""
    section = audit_section(folder)
    if section is None:
        raise InputError(f"There is no audit in '{folder}'; make one with 'bpc privacy audit'.")
    write_text(folder / AUDIT_PAGE, rendered("privacy.html", title=section["title"], privacy=section))
    return folder / AUDIT_PAGE


def audit_section(folder: Path) -> dict[str, Any] | None:
    """What the template shows of the audit in ``folder``; None where there is none."""
    path = folder / AUDIT_FILE
    if not path.is_file():
        return None
    document = read_json(path)
    try:
        return _section(document, folder / PICTURE_FILE)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError):
        raise FileFormatError(f"'{path}' is not what an audit wrote; audit again, or remove it.") from None


def _section(document: Mapping[str, Any], picture: Path) -> dict[str, Any]:
    lines = [_line(row, style) for row, style in zip(document["membership"], STYLES, strict=True)]
    about = "; ".join(f"{line.name}: {line.points[-1][1]:.3g} at {line.points[-1][0]:.3g}" for line in lines)
    return {
        "title": f"Privacy of a coreset of {document['dataset']}",
        "summary": f"{document['points']:,} points by the method '{document['method']}', made from "
        f"{document['training_images']:,} images.",
        "findings": [str(each) for each in document["findings"]],
        "attack_columns": ATTACK_COLUMNS,
        "attacks": attack_rows(document),
        "point_columns": POINT_COLUMNS,
        "points": point_rows(document),
        "curve_title": CURVE_TITLE,
        "curve": charts.roc_curves(CURVE_TITLE, about, lines),
        "picture": _picture(picture),
    }


def _line(row: Mapping[str, Any], style: str) -> charts.Series:
    """Of the last attack, which is the strongest that was made."""
    return charts.Series(str(row["of"]), style, [(float(x), float(y)) for x, y in row["attacks"][-1]["curve"]])


def _picture(path: Path) -> str | None:
    if not path.is_file():
        return None
    require_regular(path)
    return data_address(path.read_bytes(), "image/png")
