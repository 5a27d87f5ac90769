"""The pickle reader builds plain data and nothing else."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pseudocoresets.core.errors import FileFormatError
from pseudocoresets.data.pickles import read_pickle

plain_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.binary(), inner) | st.tuples(inner, inner),
    max_leaves=20,
)


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@given(value=plain_values, protocol=st.sampled_from([2, 3, 4, 5]))
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_plain_values_come_back(tmp_path: Path, value: object, protocol: int) -> None:
    assert read_pickle(written(tmp_path / "plain", pickle.dumps(value, protocol=protocol))) == value


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("dtype", ["u1", "<i8", ">i4", "f4", "f8", "?"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_come_back(tmp_path: Path, protocol: int, dtype: str, order: str) -> None:
    array = np.asarray(np.arange(24).reshape(2, 3, 4) % 7, dtype=dtype, order=order)
    content = {"data": array, "again": [array, array]}
    stored = pickle.dumps(content, protocol=protocol)
    result = read_pickle(written(tmp_path / "arrays", stored))
    for found in (result["data"], *result["again"]):
        assert found.dtype == pickle.loads(stored)["data"].dtype
        np.testing.assert_array_equal(found, array)


class Call:
    """Pickles as a call of anything."""

    def __init__(self, function: object, *arguments: object) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return self.function, self.arguments


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize(
    "function",
    [os.system, eval, exec, getattr, __import__, np.load, np.fromfile, np.save, np.frombuffer, pickle.loads, open],
    ids=lambda function: function.__name__,
)
def test_calls_are_refused_and_not_made(tmp_path: Path, protocol: int, function: object) -> None:
    trace = tmp_path / "trace"
    argument = f"touch {trace}" if function is os.system else f"open({str(trace)!r}, 'w')"
    content = {"data": np.zeros(3, np.uint8), "labels": Call(function, argument)}
    path = written(tmp_path / "malicious", pickle.dumps(content, protocol=protocol))
    with pytest.raises(FileFormatError, match="nothing in it was run"):
        read_pickle(path)
    assert not trace.exists()


@pytest.mark.parametrize(
    "program",
    [
        b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00true\x85R.",
        b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93\x8c\x011\x85R.",
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n.",
        b"\x80\x02cnumpy.core.multiarray\nscalar\nK\x01\x85R.",
        b"\x80\x02cnumpy.testing._private.utils\nruntests\nK\x01\x85R.",
        b"\x80\x02cnumpy\nndarray\n)\x81.",
        b"\x80\x02(cos\nsystem\nX\x04\x00\x00\x00trueo.",
        b"(S'true'\nios\nsystem\n.",
        b"\x80\x02cnumpy\ndtype\nU\x01O\x85R.",
        b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x03\x00\x00\x00hex\x86R.",
        b"\x80\x02c__builtin__\nbytes\nJ\xff\xff\xff\x7f\x85R.",
        b"\x80\x02c__builtin__\nbytes\n}b.",
        b"\x80\x02cnumpy\ndtype\n}X\x04\x00\x00\x00codeX\x01\x00\x00\x00as\x86b.",
        b"\x80\x02cnumpy\nndarray\nJ\xff\xff\xff\x7f\x85\x85R.",
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R.",
        b"\x80\x02cnumpy.core.multiarray\nfromfile\n.",
        b"\x80\x02Nr\xff\xff\xff\x7f.",
        b"\x80\x05\x96\x00\x00\x00\x00\x00\x00\x00\x10.",
        b"\x80\x04\x95\x00\x00\x00\x00\x00\x00\x00\x10N.",
        b"\x80\x02}" + b"N" + b"\x85" * 200_000 + b"Ns.",
        b"\x80\x02}" + b"N" + b"".join(b"\x85q%c\x86h%ch%c\x86" % (n, n, n) for n in range(100)) + b"Ns.",
        b"\x80\x02}N\x85" + b"".join(b"}bq%ch%c\x86" % (n, n) for n in range(100)) + b"Ns.",
        b"\x80\x02}N\x85" + b"".join(b"(eq%ch%c\x86" % (n, n) for n in range(100)) + b"Ns.",
        b"\x80\x02}(" + b"".join(pickle.dumps(n * (2**61 - 1))[11:-1] + b"N" for n in range(9, 2000)) + b"u.",
        b"\x80\x02}}b.",
        b"\x80\x02K\x01K\x02a.",
        b"\x80\x02h\x05.",
        b"\x80\x02T\xff\xff\xff\x7fab.",
        b"\x80\x02e.",
        b"\x80\x02.",
        b"\x80\x02]",
        b"",
        b"not a pickle",
    ],
)
def test_hostile_and_broken_programs_are_refused(tmp_path: Path, program: bytes) -> None:
    with pytest.raises(FileFormatError):
        read_pickle(written(tmp_path / "program", program))


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_object_arrays_are_refused(tmp_path: Path, protocol: int) -> None:
    path = written(tmp_path / "objects", pickle.dumps(np.array([{}, Call(os.getcwd)]), protocol=protocol))
    with pytest.raises(FileFormatError):
        read_pickle(path)


def test_an_array_must_fill_its_shape(tmp_path: Path) -> None:
    content = pickle.dumps(np.zeros((3, 5), np.uint8), protocol=2)
    assert content.count(b"K\x05") == 1
    with pytest.raises(FileFormatError, match="does not fit its shape"):
        read_pickle(written(tmp_path / "short", content.replace(b"K\x05", b"K\x06")))


@given(content=st.binary(max_size=60), at=st.integers(0, 200))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damage_gives_data_or_one_error(tmp_path: Path, content: bytes, at: int) -> None:
    whole = pickle.dumps({"data": np.arange(6, dtype=np.uint8), "labels": [1, 2], "x": ("a", 2.5)}, protocol=2)
    damaged = whole[: at % len(whole)] + content + whole[at % len(whole) + len(content) :]
    try:
        read_pickle(written(tmp_path / "damaged", damaged))
    except FileFormatError as error:
        assert "damaged" in str(error)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="nowhere"):
        read_pickle(tmp_path / "nowhere")
