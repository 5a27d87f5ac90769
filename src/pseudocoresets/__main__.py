"""``python -m pseudocoresets`` is ``bpc``: so light that Ctrl-C during the imports that follow ends quietly."""

from __future__ import annotations

import os
import signal

INTERRUPTED = 130


def main() -> None:
    # An interrupt in the middle of importing a compiled package leaves it half imported; nothing is lost by leaving.
    signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    from pseudocoresets._cli.app import main as run

    signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


if __name__ == "__main__":
    main()
