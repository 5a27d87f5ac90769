"""Writing files so that a reader, or a crash, never sees half of one."""

from __future__ import annotations

import json
import math
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from pseudocoresets._io.documents import json_text
from pseudocoresets.core.errors import FileFormatError, InputError

PART_SUFFIX = ".part"


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path beside ``path`` that takes its place when the block ends without an exception.

    A link is written through, and only a file is ever replaced.
    """
    path = _destination(path)
    make_folder(path.parent)
    try:
        handle, name = tempfile.mkstemp(prefix=_part_prefix(path), suffix=PART_SUFFIX, dir=path.parent)
    except OSError as error:
        raise InputError(f"Cannot write '{path}': {error.strerror}. Choose a folder you may write to.") from None
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    except OSError as error:
        raise InputError(f"Cannot write '{path}': {error.strerror}. Choose a folder you may write to.") from None
    finally:
        temporary.unlink(missing_ok=True)


def make_folder(folder: str | os.PathLike[str]) -> Path:
    """Create ``folder`` and its parents, or say in one sentence why that cannot be."""
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"Cannot create the folder '{folder}': {error.strerror}. Choose a folder you may write to."
        ) from None
    return folder


def require_writable(path: str | os.PathLike[str]) -> None:
    """Find out before long work, not after it, that the file ``path`` cannot be written; nothing is left behind."""
    path = _destination(path)
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
        raise InputError(
            f"Cannot write into '{existing}': {error.strerror}. Choose a folder you may write to."
        ) from None


def remove_leftovers(path: str | os.PathLike[str]) -> None:
    """Remove what a process killed while it was writing ``path`` left beside it."""
    path = Path(path)
    if path.parent.is_dir():
        for entry in path.parent.iterdir():
            if entry.name.startswith(_part_prefix(path)) and entry.name.endswith(PART_SUFFIX):
                entry.unlink(missing_ok=True)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: str | os.PathLike[str], content: Any) -> None:
    write_text(path, json_text(content, indent=2) + "\n")


def finite_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields, with ``None`` for what is not finite, which JSON does not know."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in fields.items()
    }


def read_json(path: str | os.PathLike[str]) -> Any:
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise FileFormatError(f"Cannot read '{path}': {error.strerror}.") from None
    except ValueError:
        raise FileFormatError(f"'{path}' is not valid JSON; delete it or restore it from a copy.") from None


def write_tensors(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
    """A safetensors file whose metadata is one JSON document under the key ``json``."""
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with replacing(path) as temporary:
        try:
            save_file(contiguous, temporary, metadata={"json": json.dumps(metadata, sort_keys=True)})
        except SafetensorError as error:
            raise InputError(f"Cannot write '{path}': {error}. Choose a folder with room for it.") from None


def read_tensors(
    path: str | os.PathLike[str], device: str | torch.device = "cpu"
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the JSON document of a file that ``write_tensors`` wrote."""
    path = Path(path)
    if not path.is_file():
        raise FileFormatError(f"There is no file '{path}'.")
    try:
        with safe_open(path, framework="pt", device=str(device)) as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            document = dict(json.loads((file.metadata() or {})["json"]))
    except (SafetensorError, OSError) as error:
        raise FileFormatError(
            f"'{path}' is not a complete safetensors file ({error}); it may be truncated or of another kind."
        ) from None
    except (KeyError, ValueError, TypeError):
        raise FileFormatError(f"'{path}' is a safetensors file, but not one that this library wrote.") from None
    return tensors, document


def _destination(path: str | os.PathLike[str]) -> Path:
    """Where ``path`` leads, through links; a device, a pipe or a socket there would be replaced, and is refused."""
    path = Path(path)
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
