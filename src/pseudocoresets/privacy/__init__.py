"""What a coreset gives away of the data that it was made from."""

from pseudocoresets.privacy.front import audit
from pseudocoresets.privacy.report import AuditReport

__all__ = ["AuditReport", "audit"]
