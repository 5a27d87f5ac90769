"""A run folder as one self-contained HTML page."""

from __future__ import annotations

from pseudocoresets._report.page import write_report

__all__ = ["write_report"]
