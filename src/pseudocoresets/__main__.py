"""``python -m pseudocoresets`` is ``bpc``."""

from pseudocoresets.cli import main

main()
