"""Ctrl-C and other requests to end while the command is still importing."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

SLOW_IMPORT = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever the shell of the tests ignores
signal.signal(signal.SIGHUP, signal.SIG_DFL)
class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "MODULE":
            sys.stderr.write("importing\\n"); sys.stderr.flush()
            time.sleep(60)
sys.meta_path.insert(0, Slow())
from pseudocoresets.__main__ import main
main()
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda how: how.name)
@pytest.mark.parametrize("module", ["pseudocoresets._cli.app", "pseudocoresets._cli.show"])
def test_a_signal_while_importing_says_nothing(module: str, how: signal.Signals) -> None:
    program = SLOW_IMPORT.replace("MODULE", module)
    process = subprocess.Popen([sys.executable, "-c", program, "show", "x"], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert process.stderr.readline() == "importing\n"
    process.send_signal(how)
    assert process.wait(timeout=20) == 128 + how
    assert process.stderr.read() == ""
