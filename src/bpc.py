"""The command's entry: so light that Ctrl-C during the imports that follow ends quietly, and at once."""

from __future__ import annotations

import os
import signal

INTERRUPTED = 130


def main() -> None:
    # An interrupt in the middle of importing a compiled package leaves it half imported; nothing is lost by leaving.
    signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    from pseudocoresets.cli import main as run

    signal.signal(signal.SIGINT, signal.default_int_handler)
    run()
