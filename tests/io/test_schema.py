"""Kinds of values: what they take, what they say, and that docs/files.md says it too."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import pseudocoresets as pc
from pseudocoresets import coreset
from pseudocoresets._io.documents import parse_json
from pseudocoresets._io.files import TensorFile, write_tensors
from pseudocoresets._io.schema import HASH, NAME, Array, Header, Mismatch, Nullable, Number, Object, Row, check_headers
from pseudocoresets.construction import checkpoint
from pseudocoresets.core.errors import FileFormatError
from pseudocoresets.core.settings import Range
from pseudocoresets.data import tiny_imagenet, zca_cache
from pseudocoresets.evaluation import function_space
from pseudocoresets.sources import reference
from pseudocoresets.sources.experts import store

ROOT = Path(__file__).parents[2]
SCHEMAS: dict[str, tuple[Object | None, Mapping[str, Array]]] = {
    "Metadata of a coreset": (coreset.DOCUMENT, {}),
    "Tensors of a coreset of images": (None, coreset.IMAGE_ARRAYS),
    "Tensors of a compact coreset": (None, coreset.COMPACT_ARRAYS),
    "Tensors of a coreset of rows": (None, coreset.ROW_ARRAYS),
    "Predictions": (function_space.DOCUMENT, function_space.ARRAYS),
    "`store.json` of experts": (store.DESCRIPTION, {}),
    "One expert": (store.EXPERT_DOCUMENT, store.EXPERT_ARRAYS),
    "Checkpoint": (checkpoint.DOCUMENT, {}),
    "Cached reference posterior": (reference.CACHE_DOCUMENT, reference.CACHE_ARRAYS),
    "Cached whitening": (None, zca_cache.CACHED_ARRAYS),
    "Decoded Tiny ImageNet": (None, tiny_imagenet.CACHE_ARRAYS),
}


def written(name: str) -> str:
    """The table of a kind of file as the documentation has it."""
    document, arrays = SCHEMAS[name]
    lines = [f"**{name}**", "", "| name | must be |", "|---|---|"]
    if document is not None:
        lines += [f"| `{key}` | {kind} |" for key, kind in document.required.items()]
        lines += [f"| `{key}`, if there | {kind} |" for key, kind in document.optional.items()]
    lines += [f"| tensor `{key}` | {kind} |" for key, kind in arrays.items()]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_documentation_has_every_kind_of_file(name: str) -> None:
    assert written(name) in (ROOT / "docs" / "files.md").read_text()


@pytest.mark.parametrize(
    ("kind", "right", "wrong", "sentence"),
    [
        (Number(Range(1, 9), whole=True), [1, 9], [0, 10, 1.0, True, None, "1", [1]], "whole number from 1 to 9"),
        (Number(), [1, 0.5, -1e308], [True, None, 10**400], "number"),
        (HASH, ["0" * 32], ["0" * 31, "../" + "0" * 29, "A" * 32, "0" * 32 + "\n", 0], "32 hexadecimal digits"),
        (NAME, ["", "a\nb"], ["a" * 1001, None, ["a"]], "text of up to 1,000 characters"),
        (Row((Number(), NAME)), [[1, "a"]], [[1], ["a", 1], [1, "a", 1], {}, None], "where"),
        (Nullable(Object({"a": NAME})), [None, {"a": ""}, {"a": "", "b": 1}], [{}, {"a": 1}, []], "'a'|object"),
        (Object(others=Number()), [{}, {"a": 1}], [{"a": "1"}, 1], "number|object"),
    ],
)
def test_kinds_take_what_they_are_for_and_say_what_they_want(
    kind: Any, right: list[Any], wrong: list[Any], sentence: str
) -> None:
    for value in right:
        kind.check(value, "it")
    for value in wrong:
        with pytest.raises(Mismatch, match=sentence):
            kind.check(value, "it")


def test_sides_of_the_same_name_agree_in_all_tensors_of_a_file() -> None:
    arrays = {
        "images": Array(["(m, height, width) float32"]),
        "labels": Array(["(m,) int64", "(m, C) float32"]),
        "matrix": Array(["(height*width, 2) float32"], optional=True),
    }
    images, labels = Header("F32", (5, 2, 3)), Header("I64", (5,))
    check_headers({"images": images, "labels": labels}, arrays, {"C": 4})
    check_headers({"images": images, "labels": Header("F32", (5, 4))}, arrays, {"C": 4})
    check_headers({"images": images, "labels": labels, "matrix": Header("F32", (6, 2))}, arrays, {})
    wrong = {
        "labels": [("I64", (4,)), ("I32", (5,)), ("F32", (5, 3)), ("F32", (5,)), ("I64", ()), ("F8_E4M3", (5, 4))],
        "images": [("F32", (0, 2, 3)), ("F64", (5, 2, 3))],
        "matrix": [("F32", (5, 2)), ("F32", (6, 3))],
        "other": [("F32", (1,))],
    }
    for name, headers in wrong.items():
        for header in headers:
            with pytest.raises(Mismatch, match=name):
                check_headers({"images": images, "labels": labels} | {name: Header(*header)}, arrays, {"C": 4})
    with pytest.raises(Mismatch, match="lacks the tensor 'labels'"):
        check_headers({"images": images}, arrays, {})


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a":' * 60 + "1" + "}" * 60, '"\\ud800"', '{"\\udfff": 1}', "1" * 5000, "", "{", "nul"]
)
def test_documents_that_could_harm_a_reader_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_json(text)


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_json_has_no_words_for_are_null(text: str) -> None:
    assert parse_json(f"[{text}, 1.5]") == [None, 1.5]


def test_every_flipped_bit_is_noticed_or_changes_nothing(tmp_path: Path) -> None:
    """One bit at a time; without the key of its checksum a file is like one of version 0.1, which has none."""
    path, tensors = tmp_path / "t.safetensors", {"x": torch.arange(3.0), "y": torch.ones(1, dtype=torch.int64)}
    write_tensors(path, tensors, {"records": ["loss"]})
    whole = path.read_bytes()
    noticed = 0
    for bit in range(8 * len(whole)):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        try:
            file = TensorFile.open(path)
            found = file.tensors()
        except FileFormatError:
            noticed += 1
            continue
        same = file.document == {"records": ["loss"]} and all(
            torch.equal(found[name], tensors[name]) for name in tensors
        )
        assert same or file.checksum is None, f"bit {bit} of {len(whole)} bytes"
    assert noticed > 7.2 * len(whole)


def test_recorded_coresets_are_read() -> None:
    for path in sorted((ROOT / "benchmarks" / "results" / "coresets").rglob("*.safetensors")):
        assert len(pc.Coreset.load(path)) > 0
