"""``python -m pseudocoresets`` is ``bpc``: so light that Ctrl-C during the imports that follow ends quietly."""

from __future__ import annotations

from pseudocoresets._cli.process import heed_signals, leaving_at_once


def main() -> None:
    with leaving_at_once():
        from pseudocoresets._cli.app import main as run

    heed_signals()
    run()


if __name__ == "__main__":
    main()
