"""Writing files so that a reader, or a crash, never sees half of one."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from pseudocoresets._io.documents import json_text, parse_json
from pseudocoresets._io.schema import Array, Header, Kind, Mismatch, check_headers
from pseudocoresets.core.errors import FileFormatError, InputError
from pseudocoresets.core.text import first_line

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
    from torch import Tensor

PART_SUFFIX = ".part"
LOCK_SUFFIX = ".lock"
LONGEST_NAME = 235
"""Bytes; most file systems take 255, some of which temporary names add."""
CHECKSUM = "checksum"
"""The key of the hash of a file's document and tensors."""
CHECKSUM_KIND = "sha256:"
HASHED_AT_ONCE = 4 * 2**20
"""Bytes."""


def cannot_write(path: str | os.PathLike[str], error: OSError, doing: str = "write") -> InputError:
    """What is in the way of writing, in one sentence, and what to do about it."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    advice = "Make room there, or choose another folder" if full else "Choose a folder you may write to"
    return InputError(f"Cannot {doing} '{path}': {error.strerror}. {advice}.")


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path beside ``path`` that takes its place when the block ends without an exception.

    A link is written through, and only a file is ever replaced.
    """
    path = _destination(path)
    make_folder(path.parent)
    remove_leftovers(path)
    try:
        handle, name = tempfile.mkstemp(prefix=_part_prefix(path), suffix=PART_SUFFIX, dir=path.parent)
    except OSError as error:
        raise cannot_write(path, error) from None
    _lock(handle)  # until it is closed, nobody takes the file for that of a killed writer
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    except OSError as error:
        raise cannot_write(path, error) from None
    finally:
        temporary.unlink(missing_ok=True)
        os.close(handle)


@contextmanager
def only_writer(path: str | os.PathLike[str]) -> Iterator[None]:
    """Hold the output ``path``, a file or a folder, against other processes, which get one sentence.

    The lock is a hidden file beside it, which goes with the process that holds it, however that ends.
    """
    path = _destination(path).absolute()
    created = [parent for parent in path.parents if not parent.exists()]
    lock = make_folder(path.parent) / f".{path.name}{LOCK_SUFFIX}"
    handle = _acquired(lock, path)
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
        os.close(handle)
        for folder in created:
            with suppress(OSError):  # there is something in it
                folder.rmdir()


def _acquired(lock: Path, path: Path) -> int:
    """A handle that holds the lock; one that another process removed in the meantime is made anew."""
    while True:
        try:
            handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise cannot_write(path, error) from None
        if not _lock(handle):
            os.close(handle)
            raise InputError(
                f"Another process is writing '{path}'; wait until it is done, or name another place with --out."
            )
        with suppress(FileNotFoundError):
            if os.fstat(handle).st_ino == lock.stat().st_ino:
                return handle
        os.close(handle)


def _lock(handle: int) -> bool:
    """Whether no other process holds this file; where a file system has no locks, nobody is known to."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def make_folder(folder: str | os.PathLike[str]) -> Path:
    """Create ``folder`` and its parents, or say in one sentence why that cannot be."""
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(folder, error, "create the folder") from None
    return folder


def require_writable(path: str | os.PathLike[str], source: str | os.PathLike[str] | None = None) -> None:
    """Find out before long work, not after it, that the file ``path`` cannot be written; nothing is left behind.

    It must be another file than its ``source``, which would be lost.
    """
    path = _destination(path)
    if source is not None and path.exists() and Path(source).exists() and path.samefile(source):
        raise InputError(f"'{path}' is the file that is read, and would be replaced; name another one to write.")
    if path.is_dir():
        raise InputError(f"'{path}' is a folder; give the name of a file to write.")
    require_writable_folder(path.parent)


def require_writable_folder(folder: str | os.PathLike[str]) -> None:
    """The same for a folder that may have to be created: try where its nearest existing parent is."""
    folder = _destination(folder)
    existing = next(parent for parent in (folder, *folder.absolute().parents) if os.path.lexists(parent))
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise cannot_write(existing, error, "write into") from None


def remove_leftovers(path: str | os.PathLike[str]) -> None:
    """Remove what a process killed while it was writing ``path`` left beside it; what one writes now stays."""
    path = Path(path)
    if not path.parent.is_dir():
        return
    with os.scandir(path.parent) as entries:
        parts = [
            entry.path
            for entry in entries
            if entry.name.startswith(_part_prefix(path))
            and entry.name.endswith(PART_SUFFIX)
            and entry.is_file(follow_symlinks=False)
        ]
    for part in parts:
        with suppress(OSError):  # gone by now, or of another user
            handle = os.open(part, os.O_RDWR | os.O_CLOEXEC)
            try:
                if _lock(handle):
                    Path(part).unlink(missing_ok=True)
            finally:
                os.close(handle)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: str | os.PathLike[str], content: Any) -> None:
    write_text(path, json_text(content, indent=2) + "\n")


def read_json(path: str | os.PathLike[str], kind: Kind | None = None) -> Any:
    """The content of a JSON file, which must be of this kind."""
    try:
        require_regular(path)
        content = parse_json(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise FileFormatError(f"Cannot read '{path}': {error.strerror}.") from None
    except ValueError:
        raise FileFormatError(f"'{path}' is not valid JSON; delete it or restore it from a copy.") from None
    if kind is not None:
        with naming(path):
            kind.check(content, "it")
    return content


def read_text(path: str | os.PathLike[str]) -> str:
    """The content of a text file in UTF-8."""
    try:
        require_regular(path)
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise FileFormatError(f"Cannot read '{path}': {error.strerror}.") from None
    except UnicodeDecodeError:
        raise FileFormatError(f"'{path}' is not text in UTF-8; restore it from a copy.") from None


def read_array(path: str | os.PathLike[str]) -> NDArray[Any]:
    """The array of a .npy file, mapped rather than read; files with Python objects are refused."""
    import numpy as np

    try:
        require_regular(path)
        array: Any = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileFormatError:
        raise
    except Exception as error:  # a damaged header makes NumPy raise almost anything
        raise FileFormatError(f"'{path}' is not a readable .npy file ({first_line(error)}).") from None
    if not isinstance(array, np.ndarray):  # NumPy opens archives of arrays, too
        raise FileFormatError(f"'{path}' is an archive of arrays, not one .npy array.")
    return array


@contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Say of which file a value is wrong."""
    try:
        yield
    except Mismatch as error:
        raise FileFormatError(f"'{path}' cannot be used: {error}; restore it from a copy, or make it again.") from None


def require_regular(path: str | os.PathLike[str]) -> None:
    """Refuse what would be waited for, or never end, when it is read: pipes, devices and sockets."""
    try:
        mode = Path(path).stat().st_mode
    except ValueError as error:  # a zero in the name
        raise FileFormatError(f"Cannot read {str(path)!r}: {error}.") from None
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(mode):
        raise FileFormatError(f"'{path}' is a device, a pipe or a socket; name a file.")


def write_tensors(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
    """A safetensors file whose metadata is one JSON document under the key ``json``, with a checksum of all of it."""
    from safetensors.torch import save_file

    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    document = {**metadata, CHECKSUM: _checksum(metadata, contiguous)}
    with replacing(path) as temporary:
        try:
            save_file(contiguous, temporary, metadata={"json": json_text(document, sort_keys=True)})
        except SafetensorError as error:
            raise InputError(f"Cannot write '{path}': {error}. Make room there, or choose another folder.") from None


@dataclass(frozen=True)
class TensorFile:
    """A file that ``write_tensors`` wrote: its JSON document, and what its header says of its tensors."""

    path: Path
    document: dict[str, Any]
    headers: Mapping[str, Header]
    checksum: str | None
    """None in files of version 0.1."""

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> TensorFile:
        path = Path(path)
        with _reading(path) as file:
            document = parse_json((file.metadata() or {})["json"])
            if not isinstance(document, dict):
                raise TypeError
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            headers = {name: Header(part.get_dtype(), tuple(part.get_shape())) for name, part in slices.items()}
        return cls(path, document, headers, document.pop(CHECKSUM, None))

    def tensors(
        self,
        arrays: Mapping[str, Array] | None = None,
        sides: Mapping[str, int] | None = None,
        device: str | torch.device = "cpu",
    ) -> dict[str, Tensor]:
        """The tensors, once the header says what ``arrays`` do; ``sides`` are known before.

        They are copies: nothing that happens to the file later can reach them.
        """
        from pseudocoresets.core.devices import require_memory

        if arrays is not None:
            with naming(self.path):
                check_headers(self.headers, arrays, dict(sides or {}))
        require_memory(self.path.stat().st_size, f"'{self.path}'")
        with _reading(self.path) as file:
            tensors = {name: file.get_tensor(name).clone() for name in self.headers}
        if self.checksum is not None and not _agrees(self.checksum, self.document, tensors):
            raise FileFormatError(
                f"'{self.path}' is damaged: its content is not what its checksum says; restore it from a copy, or make "
                "it again."
            )
        with naming(self.path):
            for name, array in (arrays or {}).items():
                if name in tensors:
                    array.check(tensors[name], name)
        return {name: tensor.to(device) for name, tensor in tensors.items()}


def read_tensors(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the JSON document of a file that ``write_tensors`` wrote, whatever they are."""
    file = TensorFile.open(path)
    return file.tensors(), file.document


@contextmanager
def _reading(path: Path) -> Iterator[Any]:
    try:
        require_regular(path)
        with safe_open(path, framework="pt") as file:
            yield file
    except FileNotFoundError:
        raise FileFormatError(f"There is no file '{path}'.") from None
    except (SafetensorError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise FileFormatError(
            f"'{path}' is not a complete safetensors file ({reason}); it may be truncated or of another kind."
        ) from None
    except (KeyError, ValueError, TypeError, RuntimeError):
        raise FileFormatError(f"'{path}' is a safetensors file, but not one that this library wrote.") from None


def _checksum(document: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of the document and of what each tensor is called, of which kind and shape it is, and holds.

    Tensors are hashed in parts, several at once: one thread would take three times as long as writing them.
    """
    parts = {name: _bytes(tensors[name]).split(HASHED_AT_ONCE) for name in sorted(tensors)}
    flat = [memoryview(part.numpy()) for each in parts.values() for part in each]
    if len(flat) > len(parts):
        with ThreadPoolExecutor() as threads:
            digests = list(threads.map(_sha256, flat))
    else:
        digests = [_sha256(part) for part in flat]
    kinds = [[name, str(tensors[name].dtype), list(tensors[name].shape), len(parts[name])] for name in parts]
    whole = json_text([document, kinds, digests], sort_keys=True).encode("utf-8", "surrogatepass")
    return CHECKSUM_KIND + hashlib.sha256(whole).hexdigest()


def _agrees(checksum: Any, document: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bool:
    if isinstance(checksum, str) and checksum.startswith(CHECKSUM_KIND):
        return checksum == _checksum(document, tensors)
    from pseudocoresets.core.fingerprint import fingerprint

    # As files were written before.
    return checksum == fingerprint(json_text(document, sort_keys=True), dict(tensors))


def _bytes(tensor: Tensor) -> Tensor:
    import torch

    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def _sha256(part: memoryview) -> str:
    return hashlib.sha256(part).hexdigest()


def _destination(path: str | os.PathLike[str]) -> Path:
    """Where ``path`` leads, through links; a device, a pipe or a socket there would be replaced, and is refused."""
    path = Path(path)
    if any(each < " " or "\ud800" <= each <= "\udfff" for each in str(path)):
        raise InputError(
            f"Cannot write {str(path)!r}: its name has a line break, a control code or bytes that are no UTF-8. Choose "
            "another name."
        )
    if any(len(os.fsencode(part)) > LONGEST_NAME for part in path.parts):
        raise InputError(f"Cannot write '{path}': its name has more than {LONGEST_NAME} bytes. Choose a shorter one.")
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        mode = stat.S_IFREG
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"Cannot write {str(path)!r}: {reason}. Choose another name.") from None
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise InputError(f"'{path}' is a device, a pipe or a socket, which stays as it is; name a file or folder.")
    return path.resolve() if path.is_symlink() else path


def _part_prefix(path: Path) -> str:
    return f".{path.name}."


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
