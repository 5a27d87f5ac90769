"""Files: written whole or not at all, and without pickle."""

from __future__ import annotations

import ast
import errno
import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

import pseudocoresets
from pseudocoresets._io.documents import json_text
from pseudocoresets._io.files import (
    make_folder,
    read_json,
    read_tensors,
    remove_leftovers,
    replacing,
    require_writable,
    write_json,
    write_tensors,
    write_text,
)
from pseudocoresets.core.errors import FileFormatError, InputError

SOURCE = Path(pseudocoresets.__file__).parent


def test_a_block_that_ends_well_replaces_the_file(tmp_path: Path) -> None:
    path = tmp_path / "below" / "a.txt"
    write_text(path, "old")
    with replacing(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old", "a reader sees the old file until the new one is whole"
        assert temporary.parent == path.parent, "a rename is atomic only within one folder"
    assert path.read_text() == "new"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit, OSError(28, "No space left")])
def test_a_block_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, error: type[BaseException] | BaseException
) -> None:
    path = tmp_path / "a.txt"
    write_text(path, "old")
    with pytest.raises(InputError if isinstance(error, OSError) else error), replacing(path) as temporary:  # type: ignore[arg-type]
        temporary.write_text("half")
        raise error
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_leaves_no_new_file(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        write_tensors(tmp_path / "a.safetensors", {"x": torch.zeros(2)}, {"not JSON": object()})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "advice"),
    [(errno.ENOSPC, "Make room there, or choose another folder"), (errno.EACCES, "Choose a folder you may write to")],
)
def test_a_full_disk_is_told_apart_from_a_folder_of_others(tmp_path: Path, number: int, advice: str) -> None:
    with pytest.raises(InputError, match=advice), replacing(tmp_path / "a.json"):
        raise OSError(number, "as the system says")


def test_permissions_follow_the_umask(tmp_path: Path) -> None:
    plain = tmp_path / "plain.txt"
    plain.write_text("made by open()")
    write_text(tmp_path / "a.txt", "made by the library")
    assert (tmp_path / "a.txt").stat().st_mode == plain.stat().st_mode


def test_leftovers_of_a_killed_writer_are_removed_and_nothing_else(tmp_path: Path) -> None:
    path, other = tmp_path / "a.checkpoint", tmp_path / ".b.checkpoint.xyz.part"
    for file in (path, other, tmp_path / ".a.checkpoint.k3j.part"):
        file.write_text("")
    remove_leftovers(path)
    assert set(tmp_path.iterdir()) == {path, other}
    remove_leftovers(tmp_path / "missing" / "a")


@given(
    shape=st.lists(st.integers(0, 4), max_size=3),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.int64, torch.uint8]),
    document=st.dictionaries(
        st.text(max_size=5), st.integers(-(2**64), 2**64) | st.text(max_size=5) | st.booleans(), max_size=4
    ),
)
@settings(max_examples=25, deadline=None)
def test_tensors_and_their_document_come_back(
    tmp_path_factory: pytest.TempPathFactory, shape: list[int], dtype: torch.dtype, document: dict[str, object]
) -> None:
    path = tmp_path_factory.mktemp("tensors") / "t.safetensors"
    tensor = torch.randint(0, 100, shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    write_tensors(path, {"x": tensor, "transposed": torch.arange(6.0).view(2, 3).T}, document)
    tensors, found = read_tensors(path)
    assert tensors["x"].dtype == dtype
    assert torch.equal(tensors["x"], tensor)
    assert torch.equal(tensors["transposed"], torch.arange(6.0).view(2, 3).T)
    assert found == document


def test_the_same_content_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_tensors(tmp_path / name, {"x": torch.ones(3), "y": torch.zeros(2)}, {"one": 1, "two": [2]})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize("content", [b"", b"not safetensors at all", b"\x08\x00\x00\x00\x00\x00\x00\x00{}      "])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match="safetensors"):
        read_tensors(path)


@given(keep=st.floats(0, 0.999))
@settings(max_examples=25, deadline=None)
def test_a_truncated_file_is_refused(tmp_path_factory: pytest.TempPathFactory, keep: float) -> None:
    path = tmp_path_factory.mktemp("cut") / "x.safetensors"
    write_tensors(path, {"x": torch.ones(50)}, {"a": 1})
    whole = path.read_bytes()
    path.write_bytes(whole[: int(keep * len(whole))])
    with pytest.raises(FileFormatError, match=r"x\.safetensors"):
        read_tensors(path)


def test_a_document_that_is_no_mapping_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file({"x": torch.ones(2)}, path, metadata={"json": json.dumps([1, 2])})
    with pytest.raises(FileFormatError, match="not one that this library wrote"):
        read_tensors(path)


def test_bad_json_is_refused(tmp_path: Path) -> None:
    write_text(tmp_path / "a.json", "{half")
    with pytest.raises(FileFormatError, match="not valid JSON"):
        read_json(tmp_path / "a.json")
    with pytest.raises(FileFormatError, match="Cannot read"):
        read_json(tmp_path / "missing.json")


def test_places_that_cannot_be_written_are_found_beforehand(tmp_path: Path) -> None:
    blocking = tmp_path / "file"
    blocking.write_text("not a folder")
    for path in (blocking / "c.safetensors", blocking / "deeper" / "c.safetensors", tmp_path):
        with pytest.raises(InputError):
            require_writable(path)
        with pytest.raises(InputError):
            write_json(path, {})
    with pytest.raises(InputError):
        make_folder(blocking)
    require_writable(tmp_path / "new" / "folder" / "c.safetensors")
    assert list(tmp_path.iterdir()) == [blocking], "asking leaves nothing behind"


def test_no_pickle_is_written_or_loaded_anywhere() -> None:
    """Only the reader of CIFAR's files derives from Python's unpickler, and never calls its ``load`` or ``loads``."""
    modules = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
    calls = {"torch.load", "torch.save", "pandas.read_pickle", "pd.read_pickle"}
    offences = []
    restricted = SOURCE / "data" / "pickles.py"
    assert "pickle.load" not in restricted.read_text()
    for path in set(SOURCE.rglob("*.py")) - {restricted}:
        for node in ast.walk(ast.parse(path.read_text())):
            imported = _imported(node)
            if {name.split(".")[0] for name in imported} & modules or "torch.serialization" in imported:
                offences.append(f"{path.name}: imports {imported}")
            if isinstance(node, ast.Attribute) and ast.unparse(node) in calls:
                offences.append(f"{path.name}:{node.lineno}: {ast.unparse(node)}")
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle" and ast.unparse(node.value) != "False":
                offences.append(f"{path.name}: allow_pickle")
            if _numpy_load_without_refusal(node):
                offences.append(f"{path.name}: np.load without allow_pickle=False")
    assert offences == []


def _imported(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    if isinstance(node, ast.ImportFrom) and node.module and not node.module.startswith("pseudocoresets"):
        return {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return set()


def _numpy_load_without_refusal(node: ast.AST) -> bool:
    if not (isinstance(node, ast.Call) and ast.unparse(node.func) in ("np.load", "numpy.load")):
        return False
    return "allow_pickle" not in {keyword.arg for keyword in node.keywords}


def test_a_link_is_written_through(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "there" / "a.txt")
    write_text(link, "first")
    assert link.read_text() == "first"
    write_text(link, "second")
    assert link.is_symlink()
    assert (tmp_path / "there" / "a.txt").read_text() == "second"


def test_a_loop_of_links_and_an_impossible_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name in ("loop", "x" * 300, "nul\0"):
        with pytest.raises(InputError, match=r"Choose a(nother name| shorter one)"):
            write_text(tmp_path / name, "text")


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(st.text(), inner),
)


@given(JSON_VALUES)
@settings(deadline=None)
def test_json_is_what_every_reader_takes(content: object) -> None:
    def refused(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    found = json.loads(json_text(content), parse_constant=refused)
    if isinstance(content, float):
        assert found == (content if math.isfinite(content) else None)


def test_numbers_that_are_not_finite_are_null(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"a": [math.nan, 1.5, (math.inf,)], "b": {"c": -math.inf}})
    assert read_json(tmp_path / "a.json") == {"a": [None, 1.5, [None]], "b": {"c": None}}
