"""Files that somebody damaged or forged: strategies for hypothesis, from whole files of every kind."""

from __future__ import annotations

import copy
import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from pseudocoresets._io.documents import json_text
from pseudocoresets._io.files import CHECKSUM, _checksum

Document = Any
WORDS = [
    "",
    "cd",
    "digits",
    "mlp",
    "../../etc/passwd",
    "a" * 300,
    "\n",
    "\0",
    "<b>",
    "é",
    "0" * 32,
    "zca",
    "normalise",
    "nan",
]
NUMBERS = [0, 1, -1, 2, 3, 10, 2**31, 2**63, -(2**63) - 1, 10**400, 1e308, 5e-324, -1.5, 0.5, 1e9]
DEEP = '{"a":' * 5000 + "1" + "}" * 5000
TYPES = [torch.float16, torch.float32, torch.float64, torch.bfloat16, torch.float8_e4m3fn]
TYPES += [torch.int8, torch.uint8, torch.uint16, torch.int32, torch.int64, torch.bool]
VALUES = [0.0, 1.0, -1.0, 5.0, 1e30, -1e30, float("nan"), float("inf")]

scalars = st.sampled_from([*WORDS, *NUMBERS, None, True, False])
junk = scalars | st.lists(scalars, max_size=3) | st.dictionaries(st.sampled_from(WORDS[:5]), scalars, max_size=3)


def paths(document: Document, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The keys that lead to every value of a document, the first few of each list."""
    yield before
    if isinstance(document, dict):
        for key, value in document.items():
            yield from paths(value, (*before, key))
    elif isinstance(document, list):
        for index, value in enumerate(document[:3]):
            yield from paths(value, (*before, index))


@st.composite
def documents(draw: st.DrawFn, whole: Document) -> Document:
    """The document with up to three values changed, left out or added."""
    document = copy.deepcopy(whole)
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(list(paths(document))))
        if not path:
            if draw(st.integers(0, 9)) == 0:
                return draw(junk)
            continue
        inner = document
        for key in path[:-1]:
            inner = inner[key]
        if draw(st.booleans()) or isinstance(inner, list):
            inner[path[-1]] = draw(junk)
        else:
            del inner[path[-1]]
    return document


@st.composite
def texts(draw: st.DrawFn, whole: Document) -> bytes:
    """A JSON file: of a wrong document, cut off, of other bytes, or nested as deep as it goes."""
    content = json.dumps(draw(documents(whole)) if draw(st.booleans()) else whole, indent=1).encode()
    how = draw(st.sampled_from(["as it is", "as it is", "cut", "flipped", "deep", "surrogate", "bytes"]))
    if how == "cut":
        return content[: draw(st.integers(0, len(content)))]
    if how == "flipped":
        return flipped(content, draw(st.integers(0, 8 * len(content) - 1)))
    if how == "deep":
        return content.replace(b": ", b": " + DEEP.encode() + b', "x": ', 1)
    if how == "surrogate":
        return content.replace(b'"', b'"\\ud800', draw(st.integers(1, 6)))
    return draw(st.binary(max_size=50)) if how == "bytes" else content


@st.composite
def tensors(draw: st.DrawFn, whole: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors with up to two of another type, another shape, or other values, left out, added or renamed."""
    found = dict(whole)
    for _ in range(draw(st.integers(1, 2))):
        name = draw(st.sampled_from(sorted(found)))
        how = draw(st.sampled_from(["type", "shape", "values", "one value", "gone", "renamed", "added"]))
        tensor = found[name]
        if how == "type":
            found[name] = tensor.to(draw(st.sampled_from(TYPES)))
        elif how == "shape":
            found[name] = torch.zeros(draw(st.lists(st.integers(0, 5), max_size=5)), dtype=tensor.dtype)
        elif how in ("values", "one value"):
            value = draw(st.sampled_from(VALUES if tensor.is_floating_point() else [-1, 0, 3, 99]))
            found[name] = tensor.clone()
            found[name].view(-1)[0 if how == "values" else -1 :] = torch.tensor(value).to(tensor.dtype)
        elif how == "gone" and len(found) > 1:
            del found[name]
        elif how == "renamed":
            found[draw(st.sampled_from(["x", "leaves/y/z", "optimiser/x", "a" * 300, "méthode"]))] = found.pop(name)
        else:
            found["method/other"] = torch.ones(2)
    return found


@st.composite
def tensor_files(draw: st.DrawFn, whole: tuple[dict[str, Tensor], Document]) -> Callable[[Path], None]:
    """A function that writes a wrong safetensors file: forged with its checksum in order, or a damaged copy."""
    content, document = whole
    how = draw(st.sampled_from(["document", "tensors", "both", "text", "flipped", "cut", "header"]))
    if how in ("tensors", "both"):
        content = draw(tensors(content))
    if how in ("document", "both"):
        document = draw(documents(document))
    text = draw(texts(document)).decode("utf-8", "replace") if how == "text" else signed(document, content)
    seed = draw(st.integers(0, 2**31))
    forged = struct.pack("<Q", draw(st.sampled_from([0, 1, 8, 2**20, 2**63]))) + draw(st.binary(max_size=40))

    def write(path: Path) -> None:
        save_file(
            {name: tensor.contiguous().clone() for name, tensor in content.items()}, path, metadata={"json": text}
        )
        data = path.read_bytes()
        if how == "flipped":
            path.write_bytes(flipped(data, seed % (8 * len(data))))
        elif how == "cut":
            path.write_bytes(data[: seed % len(data)])
        elif how == "header":
            path.write_bytes(forged)

    return write


def signed(document: Document, content: dict[str, Tensor]) -> str:
    """The document as a file has it, with the checksum that it should have."""
    if not isinstance(document, dict):
        return json.dumps(document)
    plain = json.loads(json_text(document))
    return json_text({**plain, CHECKSUM: _checksum(plain, content)}, sort_keys=True)


def flipped(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)
