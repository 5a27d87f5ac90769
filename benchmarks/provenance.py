"""What every recorded result carries; the library's own."""

from pseudocoresets.workflows.provenance import provenance

__all__ = ["provenance"]
