"""Tables that no posterior can be had of are refused in one sentence, at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from pseudocoresets.core.errors import InputError, PseudocoresetsError
from pseudocoresets.data.tables import load_posterior_data


@pytest.mark.parametrize(
    ("model", "target", "rows", "sentence"),
    [
        ("linear", "y", [f"{i},{i * i % 7},{'inf' if i == 3 else i}" for i in range(30)], "target 'y' .* not finite"),
        ("linear", "y", [f"{i},{'nan' if i == 3 else i % 7},{i}" for i in range(30)], "'b'"),
        ("gaussian-mean", None, [f"{i},{2 * i},{i % 2}" for i in range(30)], "says the same as"),
        ("linear", "y", [], "at least one line of data"),
    ],
)
def test_wrong_rows(tmp_path: Path, model: str, target: str | None, rows: list[str], sentence: str) -> None:
    (tmp_path / "t.csv").write_text("\n".join(["a,b,y", *rows]) + "\n")
    with pytest.raises(PseudocoresetsError, match=sentence):
        load_posterior_data(str(tmp_path / "t.csv"), model, target)


def test_too_many_columns(tmp_path: Path) -> None:
    names = [f"c{index}" for index in range(3000)]
    rows = [",".join(str((row * column) % 11) for column in range(3000)) for row in range(10)]
    (tmp_path / "t.csv").write_text("\n".join([",".join(names), *rows]) + "\n")
    with pytest.raises(InputError, match="3,000 columns"):
        load_posterior_data(str(tmp_path / "t.csv"), "linear", "c0")


def test_parquet_without_rows_or_with_two_columns_of_one_name(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    empty = arrow.array([], arrow.float64())
    parquet.write_table(arrow.table({"a": empty, "y": empty}), tmp_path / "t.parquet")
    with pytest.raises(InputError, match="no rows"):
        load_posterior_data(str(tmp_path / "t.parquet"), "linear", "y")
    columns = [arrow.array([1.0, 2.0, 3.0])] * 3
    parquet.write_table(arrow.Table.from_arrays(columns, names=["a", "a", "y"]), tmp_path / "t.parquet")
    with pytest.raises(InputError, match="two columns named 'a'"):
        load_posterior_data(str(tmp_path / "t.parquet"), "linear", "y")
