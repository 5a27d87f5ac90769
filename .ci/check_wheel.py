"""Check that a wheel installs one top-level package and holds every file of it."""

import sys
from pathlib import Path
from zipfile import ZipFile

package = Path(__file__).parent.parent / "src/pseudocoresets"
names = {name for name in ZipFile(sys.argv[1]).namelist() if ".dist-info/" not in name}
wanted = {
    path.relative_to(package.parent).as_posix()
    for path in package.rglob("*")
    if path.is_file() and "__pycache__" not in path.parts
}
if names != wanted:
    sys.exit(f"Missing from the wheel: {sorted(wanted - names)}; not of the package: {sorted(names - wanted)}")
