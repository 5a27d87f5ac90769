"""The page of an audit alone, for a coreset that is in no run's folder."""

from __future__ import annotations

from pathlib import Path

from markupsafe import Markup

from pseudocoresets._io.files import write_text
from pseudocoresets._report.page import environment, resource
from pseudocoresets._report.privacy import audit_section
from pseudocoresets.core.errors import InputError
from pseudocoresets.coreset import library_versions

AUDIT_PAGE = "audit.html"


def write_audit_page(folder: Path) -> Path:
    """Write the page of the audit in ``folder``, and return its path."""
    section = audit_section(folder)
    if section is None:
        raise InputError(f"There is no audit in '{folder}'; make one with 'bpc privacy audit'.")
    text = (
        environment()
        .get_template("privacy.html")
        .render(
            title=section["title"],
            style=Markup(resource("page.css")),
            privacy=section,
            version=library_versions()["pseudocoresets"],
        )
    )
    write_text(folder / AUDIT_PAGE, text)
    return folder / AUDIT_PAGE
