"""Ctrl-C while the command is still importing."""

from __future__ import annotations

import signal
import subprocess
import sys

SLOW_IMPORT = """
import sys, time
class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "pseudocoresets._cli.app":
            sys.stderr.write("importing\\n"); sys.stderr.flush()
            time.sleep(60)
sys.meta_path.insert(0, Slow())
from pseudocoresets.__main__ import main
main()
"""


def test_ctrl_c_while_importing_is_status_130_and_says_nothing() -> None:
    process = subprocess.Popen([sys.executable, "-c", SLOW_IMPORT], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert process.stderr.readline() == "importing\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=20) == 130
    assert process.stderr.read() == ""
