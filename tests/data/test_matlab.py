"""MATLAB files: the arrays that SciPy writes, and one sentence for everything else."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy.io import loadmat, savemat

from pseudocoresets.core.errors import FileFormatError
from pseudocoresets.data.matlab import read_matlab

NUMBERS = st.sampled_from(["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8"])
HEADER = b" " * 124 + b"\0\1IM"


def written(content: dict[str, object], packed: bool) -> bytes:
    file = io.BytesIO()
    savemat(file, content, do_compression=packed)
    return file.getvalue()


@given(
    array=arrays.arrays(NUMBERS, arrays.array_shapes(min_dims=2, max_dims=4, max_side=5)),
    packed=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_arrays_are_read_as_scipy_reads_them(
    array: np.ndarray, packed: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "a.mat"
    path.write_bytes(written({"other": np.eye(2), "text": "abc", "X": array, "y": np.arange(3.0)}, packed))
    found, expected = read_matlab(path, ("X", "y")), loadmat(path)
    for name in ("X", "y"):
        assert found[name].dtype == expected[name].dtype
        np.testing.assert_array_equal(found[name], expected[name])


@given(data=st.data(), packed=st.booleans())
@settings(max_examples=600, deadline=None)
def test_a_damaged_file_is_read_or_refused_in_one_sentence(
    data: st.DataObject, packed: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    content = bytearray(written({"X": np.arange(24, dtype=np.uint8).reshape(2, 3, 4), "y": np.arange(3.0)}, packed))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "damaged.mat"
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content)
    try:
        read_matlab(path, ("X", "y"))
    except FileFormatError as error:
        assert "\n" not in str(error)


def test_what_cannot_have_been_packed_is_not_unpacked(tmp_path: Path) -> None:
    bomb = zlib.compress(struct.pack("<II", 14, 1 << 30) + bytes(1 << 16))
    (tmp_path / "a.mat").write_bytes(HEADER + struct.pack("<II", 15, len(bomb)) + bomb)
    with pytest.raises(FileFormatError, match="cannot have been packed"):
        read_matlab(tmp_path / "a.mat", ("X",))


@pytest.mark.parametrize("value", ["text", np.array([{}, {}]), np.eye(2) * 1j])
def test_text_cells_and_complex_numbers_are_named(tmp_path: Path, value: object) -> None:
    (tmp_path / "a.mat").write_bytes(written({"X": value}, packed=True))
    with pytest.raises(FileFormatError, match="X is no array of real numbers"):
        read_matlab(tmp_path / "a.mat", ("X",))


def test_a_missing_array_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.mat").write_bytes(written({"X": np.eye(2)}, packed=False))
    with pytest.raises(FileFormatError, match="it has no y"):
        read_matlab(tmp_path / "a.mat", ("X", "y"))
