"""Fetching official files: resumed, retried, checked against a known hash, and never left half-unpacked."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import shutil
import ssl
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from filelock import FileLock

from pseudocoresets._io.files import cannot_write, make_folder, replacing
from pseudocoresets.core.errors import DataUnavailableError, InputError
from pseudocoresets.core.progress import Progress, task

PIECE = 1 << 18
KILOBYTE = 1000
LARGEST_BY_HASH = 1 << 30
_BROKEN = (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError, ssl.SSLError)


@dataclass(frozen=True)
class Source:
    """One official file: where it is, how large it is, its hash, and what it becomes below the data folder."""

    addresses: tuple[str, ...]
    md5: str
    size: int
    gives: str
    """The file or folder, relative to the data folder, that this becomes."""
    unpack: Literal["", "gzip", "tar", "zip"] = ""

    @property
    def filename(self) -> str:
        """The name of the official file, which a user may put beside ``gives`` by hand."""
        return PurePosixPath(self.addresses[0].partition("?")[0]).name


@dataclass(frozen=True)
class Patience:
    """How long to try: seconds until a silent connection is given up, and tries in a row that bring nothing."""

    timeout: float = 30.0
    attempts: int = 4
    backoff: float = 1.0
    """Seconds before the second try; each further wait is twice as long."""


class _Refused(Exception):
    """The server has answered, and trying again would not change the answer."""


def fetch_sources(
    name: str,
    sources: tuple[Source, ...],
    root: Path,
    is_present: Callable[[Path], bool],
    progress: Progress,
    patience: Patience | None = None,
) -> None:
    """Bring every source that is missing below ``root``, one process at a time."""
    if is_present(root):
        return
    make_folder(root)
    with _locked(root / f".{name}.lock"):
        if is_present(root):
            return
        for source in sources:
            if not (root / source.gives).exists():
                _fetch(name, source, root, progress, patience or Patience())
    if not is_present(root):
        raise DataUnavailableError(
            f"The folder '{root}' holds an incomplete copy of {name}; remove or complete it, and fetch it again."
        )


def fetch_by_hash(address: str, sha256: str, place: Path, patience: Patience | None = None) -> None:
    """The file at ``address`` as ``place``, once it is sure that it is the one with this hash."""
    digest, have = hashlib.sha256(), 0
    request = urllib.request.Request(address, headers={"User-Agent": "pseudocoresets"})
    try:
        with (
            urllib.request.urlopen(request, timeout=(patience or Patience()).timeout) as response,
            replacing(place) as temporary,
            temporary.open("wb") as file,
        ):
            while piece := response.read(PIECE):
                have += len(piece)
                if have > LARGEST_BY_HASH:
                    raise DataUnavailableError(
                        f"'{address}' is larger than {LARGEST_BY_HASH:,} bytes; it is no coreset."
                    )
                digest.update(piece)
                file.write(piece)
            if digest.hexdigest() != sha256:
                raise DataUnavailableError(
                    f"'{address}' has the SHA-256 {digest.hexdigest()}, not the {sha256} that was asked for; it has "
                    "changed or is damaged, and is not used."
                )
    except (*_BROKEN, ValueError) as error:
        raise DataUnavailableError(f"'{address}' could not be fetched ({error}).") from None


def _fetch(name: str, source: Source, root: Path, progress: Progress, patience: Patience) -> None:
    """Download one source unless its official file is already beside its place, and unpack it."""
    place = root / source.gives
    archive = place.parent / source.filename if source.unpack else place
    own_copy = archive.is_file() and _md5(archive) == source.md5
    if not own_copy:
        kilobytes = -(-source.size // KILOBYTE)
        with task(progress, f"fetch {name}: {source.filename} (kB)", kilobytes):
            _download(source, archive, _Meter(progress), patience)
    if not source.unpack:
        return
    try:
        _unpack(source, archive, place)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error) as error:
        raise DataUnavailableError(f"'{archive}' cannot be unpacked ({error}); remove it and fetch it again.") from None
    except OSError as error:
        raise InputError(f"Cannot unpack '{archive}': {error.strerror or error}.") from None
    if not own_copy:
        archive.unlink(missing_ok=True)


def _download(source: Source, path: Path, meter: _Meter, patience: Patience) -> None:
    """``path``, from the first address that delivers the file with the right hash."""
    make_folder(path.parent)
    problems = []
    for address in source.addresses:
        try:
            _download_from(address, source, path, meter, patience)
            return
        except _Refused as problem:
            problems.append(f"{address}: {problem}")
        except OSError as error:
            raise InputError(f"Cannot write '{path}': {error.strerror or error}.") from None
    becomes = f", or what it holds as '{path.parent / PurePosixPath(source.gives).name}'" if source.unpack else ""
    raise DataUnavailableError(
        f"'{source.filename}' could not be fetched ({'; '.join(problems)}). "
        f"If you have it, put it by hand at '{path}'{becomes}."
    )


def _download_from(address: str, source: Source, path: Path, meter: _Meter, patience: Patience) -> None:
    """Download, check, and put in place; a resumed file with a wrong hash is fetched once more from its start."""
    part = path.with_name(path.name + ".part")
    resumed = part.exists() and part.stat().st_size > 0
    _complete(address, part, source.size, meter, patience)
    found = _md5(part)
    if found != source.md5:
        part.unlink()
        if resumed:
            _download_from(address, source, path, meter, patience)
            return
        raise _Refused(f"the file has the wrong hash, {found} instead of {source.md5}")
    part.replace(path)


def _complete(address: str, part: Path, size: int, meter: _Meter, patience: Patience) -> None:
    """Append to ``part`` until it is whole, giving up after several tries in a row that brought nothing."""
    failures, furthest = 0, _size(part)
    while True:
        try:
            _transfer(address, part, size, meter, patience.timeout)
            return
        except urllib.error.HTTPError as error:
            if error.code == 416:  # the server's file is shorter than what is here
                part.unlink(missing_ok=True)
            elif error.code < 500 and error.code not in (408, 429):
                raise _Refused(f"the server answers {error.code} ({error.reason})") from None
            problem = f"the server answers {error.code} ({error.reason})"
        except _BROKEN as error:
            problem = str(getattr(error, "reason", None) or error) or type(error).__name__
        failures = 1 if _size(part) > furthest else failures + 1
        furthest = max(furthest, _size(part))
        if failures >= patience.attempts:
            raise _Refused(f"{problem}, {failures} times")
        time.sleep(patience.backoff * 2 ** (failures - 1))


def _transfer(address: str, part: Path, size: int, meter: _Meter, timeout: float) -> None:
    """One connection: ask for what is missing, and append it."""
    have = _size(part)
    if have == size:
        return
    if have > size:
        part.unlink()
        have = 0
    headers = {"User-Agent": "pseudocoresets", **({"Range": f"bytes={have}-"} if have else {})}
    with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=timeout) as response:
        if response.status != 206:
            have = 0  # the server does not resume: it sends the whole file
        meter.reach(have)
        with part.open("ab" if have else "wb") as file:
            while piece := response.read(PIECE):
                file.write(piece)
                have += len(piece)
                meter.reach(have)
                if have > size:
                    return  # not the file that was expected; the hash will say so
    if have < size:
        raise ConnectionError(f"the connection ended after {have} of {size} bytes")


class _Meter:
    """Bytes as whole kilobytes of progress."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._shown = 0

    def reach(self, have: int) -> None:
        self._progress.advance(have // KILOBYTE - self._shown)
        self._shown = have // KILOBYTE


def _unpack(source: Source, archive: Path, place: Path) -> None:
    """Unpack into a temporary folder beside ``place`` and rename what is wanted into place."""
    if source.unpack == "gzip":
        with replacing(place) as temporary, gzip.open(archive, "rb") as packed, temporary.open("wb") as file:
            shutil.copyfileobj(packed, file, PIECE)
        return
    with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=place.parent) as folder:
        if source.unpack == "tar":
            with tarfile.open(archive) as tar:
                tar.extractall(folder, filter="data")
        else:
            with zipfile.ZipFile(archive) as packed_files:
                packed_files.extractall(folder)  # drops '..' and absolute paths by itself
        inner = Path(folder) / PurePosixPath(source.gives).name
        if not inner.exists():
            raise DataUnavailableError(f"'{archive}' does not hold '{inner.name}'; it is not the official file.")
        inner.rename(place)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Wait until no other process holds ``path``."""
    lock = FileLock(path)
    try:
        lock.acquire()
    except OSError as error:
        raise cannot_write(path, error) from None
    try:
        yield
    finally:
        lock.release()


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
