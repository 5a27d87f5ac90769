"""The page of an audit alone, for a coreset that is in no run's folder."""

from __future__ import annotations

from pathlib import Path

from markupsafe import Markup

from pseudocoresets._io.files import read_json, write_text
from pseudocoresets._report.page import environment, resource
from pseudocoresets._report.privacy import audit_section
from pseudocoresets.coreset import library_versions
from pseudocoresets.workflows.audit import AUDIT_FILE

AUDIT_PAGE = "audit.html"


def write_audit_page(folder: Path) -> Path:
    """Write the page of the audit in ``folder``, and return its path."""
    document = read_json(folder / AUDIT_FILE)
    text = (
        environment()
        .get_template("privacy.html")
        .render(
            style=Markup(resource("page.css")),
            title=f"Privacy of a coreset of {document['dataset']}",
            summary=f"{document['points']:,} points by the method '{document['method']}', made from "
            f"{document['training_images']:,} images.",
            privacy=audit_section(folder),
            version=library_versions()["pseudocoresets"],
        )
    )
    write_text(folder / AUDIT_PAGE, text)
    return folder / AUDIT_PAGE
