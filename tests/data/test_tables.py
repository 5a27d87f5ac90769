"""Tables of every kind in, and what is wrong with one in one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
import torch
from pyarrow import parquet

import pseudocoresets as pc
from pseudocoresets.core.errors import FileFormatError, InputError
from pseudocoresets.data.large import ParquetData
from pseudocoresets.data.tables import load_posterior_data
from pseudocoresets.models import MODELS, RandomIntercepts
from pseudocoresets.sources.gaussian_fit import fit_gaussian

pandas = pytest.importorskip("pandas")

COLUMNS = {"a": [1.0, 2.0, 4.0, 3.0], "b": [0, 1, 0, 2], "y": [1, 0, 1, 1]}


@pytest.mark.parametrize("kind", [dict, pandas.DataFrame, pyarrow.table])
def test_rows_come_from_any_table(kind: Any) -> None:
    rows = pc.Rows.from_table(kind(COLUMNS), "y")
    assert rows.columns == ("a", "b", "intercept")
    expected = torch.tensor([[1, 0, 1], [2, 1, 1], [4, 0, 1], [3, 2, 1.0]], dtype=torch.float64)
    assert torch.equal(rows.x, expected)
    assert rows.y.tolist() == [1, 0, 1, 1]
    assert pc.Rows.from_table(kind(COLUMNS), ["y", "b"], intercept=False).y.shape == (4, 2)
    with pytest.raises(InputError, match="no column 'z'; the columns are 'a', 'b', 'y'"):
        pc.Rows.from_table(kind(COLUMNS), "z")


@pytest.mark.parametrize("kind", [np.asarray, torch.tensor, pandas.DataFrame, lambda x: pyarrow.table({"a": x[:, 0]})])
def test_points_and_targets_of_any_kind_are_rows(kind: Any) -> None:
    x = np.arange(4, dtype=np.float32)[:, None]
    rows = pc.Rows(kind(x), pandas.Series([0, 1, 0, 1]))
    assert torch.equal(rows.x, torch.arange(4, dtype=torch.float64)[:, None])
    coreset = pc.construct((kind(x), [0, 1, 0, 1]), model="logistic", method="uniform", size=2)
    assert coreset.x.shape[1] == 1


def test_what_a_table_lacks_is_said() -> None:
    with pytest.raises(InputError, match="a pandas frame, an Arrow table or a mapping"):
        pc.Rows.from_table(np.zeros((3, 2)), "y")
    with pytest.raises(InputError, match="Column 'b' must be a tensor or an array of numbers"):
        pc.Rows.from_table(pandas.DataFrame({"b": ["u", "v"], "y": [1, 2]}), "y")
    with pytest.raises(InputError, match="Column 'b' holds a value that is not finite"):
        pc.Rows.from_table(pandas.DataFrame({"b": [1.0, None], "y": [1, 2]}), "y")
    with pytest.raises(InputError, match="no column beside the target"):
        pc.Rows.from_table({"y": [1, 2]}, "y", intercept=False)


def write(path: Path, table: Any) -> str:
    """A frame, or the text of one, as a file."""
    path.write_text(table if isinstance(table, str) else table.to_csv(index=False))
    return str(path)


def random_frame(count: int = 60) -> Any:
    stream = np.random.default_rng(0)
    frame = pandas.DataFrame(stream.standard_normal((count, 3)), columns=list("abc"))
    return frame.assign(
        y=frame.a + stream.standard_normal(count),
        kind=np.array(["u", "v", "w"])[np.arange(count) % 3],
        time=stream.exponential(size=count),
        died=(stream.random(count) < 0.6).astype(int),
        events=stream.poisson(2.0, count),
    )


def test_a_formula_says_target_and_features(tmp_path: Path) -> None:
    pytest.importorskip("formulaic")
    path = write(tmp_path / "f.csv", random_frame())
    data = load_posterior_data(path, "gaussian", formula="y ~ a * b + C(kind)")
    assert data.rows.columns == ("a", "b", "C(kind)[T.v]", "C(kind)[T.w]", "a:b", "intercept")
    by_hand = random_frame().assign(ab=lambda f: f.a * f.b, v=lambda f: f.kind == "v", w=lambda f: f.kind == "w")
    design = by_hand[["a", "b", "v", "w", "ab"]].to_numpy(float)
    plain = load_posterior_data(
        write(tmp_path / "p.csv", pandas.DataFrame(design, columns=list("abvwp")).assign(y=by_hand.y)), "gaussian", "y"
    )
    torch.testing.assert_close(data.rows.x, plain.rows.x)
    torch.testing.assert_close(data.rows.y, plain.rows.y)


def test_a_formula_takes_classes_by_name_and_ignores_other_columns(tmp_path: Path) -> None:
    pytest.importorskip("formulaic")
    frame = random_frame().assign(bought=lambda f: np.where(f.a > 0, "yes", "no"), c=np.nan)
    data = load_posterior_data(write(tmp_path / "f.csv", frame), formula="bought ~ a + b")
    assert (data.model_name, data.classes) == ("logistic", ("no", "yes"))
    assert data.rows.columns == ("a", "b", "intercept")
    assert bool(((data.rows.x[:, 0] > data.rows.x[data.rows.y == 0, 0].max()) == (data.rows.y == 1)).all())


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        ("y ~ nothing", "cannot be used .*`nothing`"),
        ("y ~ a +", "cannot be used"),
        ("~ a", "A formula has one target"),
        ("y ~ 1", "names 0 features"),
        ("y ~ 0 + a", "leaves the intercept out"),
        ("y ~ log(a)", r"Column 'log\(a\)' holds a value that is not finite"),
        ("log(a) ~ b", r"The target 'log\(a\)' holds a value that is not finite"),
        ("kind ~ log(a)", r"Column 'log\(a\)' holds a value that is not finite"),
    ],
)
def test_bad_formulas_get_one_sentence(tmp_path: Path, formula: str, message: str) -> None:
    pytest.importorskip("formulaic")
    with pytest.raises(InputError, match=message) as caught:
        load_posterior_data(write(tmp_path / "f.csv", random_frame()), "gaussian", formula=formula)
    assert "\n" not in str(caught.value)


def test_survival_and_groups_come_from_columns(tmp_path: Path) -> None:
    path = write(tmp_path / "s.csv", random_frame().drop(columns=["kind", "y", "events"]))
    survival = load_posterior_data(path, "weibull", "time", event="died")
    assert survival.rows.y.shape == (48, 2)
    assert set(survival.rows.y[:, 1].tolist()) == {0.0, 1.0}
    path = write(tmp_path / "g.csv", random_frame().drop(columns=["time", "died", "events"]))
    grouped = load_posterior_data(path, "random-intercepts", "y", group="kind")
    assert isinstance(grouped.model, RandomIntercepts)
    assert (grouped.model.groups, grouped.rows.columns[-1]) == (3, "group")
    assert set(grouped.rows.x[:, -1].tolist()) == {0.0, 1.0, 2.0}
    with pytest.raises(InputError, match="needs a column of groups; name it with --group"):
        load_posterior_data(write(tmp_path / "n.csv", random_frame()[["a", "y"]]), "random-intercepts", "y")
    with pytest.raises(InputError, match="Survival times must be positive"):
        load_posterior_data(write(tmp_path / "n.csv", random_frame()[["a", "y"]]), "weibull", "y")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.assign(d=7), "Column 'd' is constant"),
        (lambda f: f.assign(d=f.a), "says the same as '[ad]', up to scale; remove one of them"),
        (lambda f: f.assign(d=3 - 2 * f.a), "says the same as '[ad]', up to scale"),
        (lambda f: f.assign(d=f.a + f.b - 1), "is a combination of '.', '.'; remove it"),
        (lambda f: f.assign(d=[None, *range(59)]), "Column 'd' has 1 missing value"),
        (lambda f: f.assign(d=1e200 * f.a), r"Column 'd' holds a value of size .*e\+200; use units"),
        (lambda f: f.assign(y=1e200 * f.a), r"The target 'y' holds a value of size .*e\+200; use units"),
        (lambda f: f.assign(y=3.5), "The target 'y' is constant"),
        (lambda f: f.head(0), "needs a line of column names and at least one line of data"),
        (lambda f: f.head(1), "at least 5 are needed"),
        (lambda f: pandas.DataFrame(np.zeros((20, 3000)), columns=map(str, range(3000))).assign(y=0), "3,001 columns"),
    ],
)
def test_a_bad_table_is_refused_in_one_sentence_before_any_work(tmp_path: Path, change: Any, message: str) -> None:
    path = write(tmp_path / "bad.csv", change(random_frame()[["a", "b", "c", "y"]]))
    with pytest.raises(InputError, match=message) as caught:
        load_posterior_data(path, "linear", "y")
    assert "\n" not in str(caught.value)


def test_parquet_without_rows_or_with_two_columns_of_one_name_is_refused(tmp_path: Path) -> None:
    twice = pyarrow.Table.from_arrays([pyarrow.array([1.0, 2.0, 3.0])] * 3, names=["a", "a", "y"])
    empty = pyarrow.Table.from_pandas(random_frame().head(0))
    for table, message in ((empty, "has no rows"), (twice, "two columns named 'a'")):
        parquet.write_table(table, tmp_path / "t.parquet")
        with pytest.raises(InputError, match=message):
            load_posterior_data(str(tmp_path / "t.parquet"), "linear", "y")


def test_more_columns_than_rows_are_no_combination_of_each_other(tmp_path: Path) -> None:
    stream = np.random.default_rng(0)
    frame = pandas.DataFrame(stream.standard_normal((20, 40)), columns=[f"x{i}" for i in range(40)])
    assert load_posterior_data(write(tmp_path / "w.csv", frame.assign(y=frame.x0)), "gaussian", "y").model.size == 42


@pytest.mark.parametrize(
    ("name", "model", "size"),
    [
        ("breast-cancer", "logistic", 31),
        ("wine", "softmax", 42),
        ("diabetes", "linear", 11),
        ("digits", "softmax", 620),
    ],
)
def test_embedded_sets_have_a_model(name: str, model: str, size: int) -> None:
    data = load_posterior_data(name)
    assert data.model_name == model
    assert data.model.size == size
    assert len(data.held_out[0]) == round(0.2 * (len(data.held_out[0]) + len(data.rows)))


@pytest.mark.parametrize("model", MODELS)
def test_synthetic_data_for_every_model(model: str) -> None:
    data = load_posterior_data("synthetic", model, points=60, dimension=3)
    x, y = data.rows.rows(torch.arange(5))
    assert bool(torch.isfinite(data.model.log_likelihood(torch.zeros(data.model.size).double(), x, y)).all())


def test_csv_with_text_classes(tmp_path: Path) -> None:
    rows = "\n".join(f"{i},{i % 3},{'yes' if i % 2 else 'no'}" for i in range(20))
    data = load_posterior_data(write(tmp_path / "a.csv", "a,b,bought\n" + rows), target="bought")
    assert data.model_name == "logistic"
    assert data.classes == ("no", "yes")


@pytest.mark.parametrize(("model", "target"), [("linear", "c"), ("weibull", "c"), ("gaussian-mean", None)])
def test_units_lead_back_to_the_file(tmp_path: Path, model: str, target: str | None) -> None:
    values = np.random.default_rng(0).gamma(2, 3, (30, 3)).round(6)
    text = "a,b,c\n" + "\n".join(",".join(map(str, row)) for row in values)
    data = load_posterior_data(write(tmp_path / "a.csv", text), model, target)
    x, y = data.rows.rows(torch.arange(len(data.rows)))
    seen = {"a": x[:, 0], "b": x[:, 1], "c": x[:, 2] if target is None else y.reshape(len(y), -1)[:, 0]}
    back = np.stack([data.units[name][0] + data.units[name][1] * column.numpy() for name, column in seen.items()], 1)
    assert {tuple(row) for row in back.round(6)} < {tuple(row) for row in values}


@pytest.mark.parametrize(
    ("text", "target", "model", "message"),
    [
        ("a,b,y\n1,,0\n2,3,1\n", "y", "auto", "Column 'b' has 1 missing value, the first in row 1"),
        ("a,b,y\n1,NA,0\n2,nan,1\n", "y", "auto", "Column 'b' has 2 missing values"),
        ("a,b,y\n1,x,0\n2,3,1\n", "y", "auto", "Column 'b' holds text \\('x' in row 1\\)"),
        ("a,y\n1,1\n2,1\n3,1\n4,1\n5,1\n", "y", "logistic", "one class only \\(1\\)"),
        ("a,y\n1,1\n2,1\n3,1\n4,1\n5,1\n", "y", "auto", "one class only \\(1\\)"),
        ("a,b\n1,1\n2,2\n", "price", "auto", "no column 'price' in .*; its columns are 'a', 'b'"),
        ("a,b\n1,1\n2,2\n", None, "auto", "Name the target column"),
        ("a,b\n1,1,4\n2,2\n", "b", "auto", "Line 2 .* has 3 fields"),
        ("a,a\n1,1\n", "a", "auto", "names a column twice"),
        ("a,y\n1,0.5\n2,1\n3,2\n4,3\n5,1\n", "y", "poisson", "must hold counts"),
        ("a,y\n1,red\n2,blue\n3,red\n", "y", "linear", "holds text \\('red'\\)"),
        ("a,y\n1,0\n2,1\n3,2\n4,1\n5,0\n6,1\n", "y", "logistic", "3 different values"),
        ("y\n1\n2\n", "y", "auto", "no column beside the target"),
        ("a,y\n1,inf\n2,1\n3,2\n4,3\n5,1\n", "a", "bayes", "no model named 'bayes'"),
        ("a,y\n1,inf\n2,1\n4,2\n3,3\n5,1\n", "y", "linear", "target 'y' .* not finite"),
        ("a,b\n1,2\n2,4\n3,6\n4,8\n5,10\n", None, "gaussian-mean", "says the same as"),
    ],
)
def test_problems_of_a_csv_file_get_one_sentence(
    tmp_path: Path, text: str, target: str | None, model: str, message: str
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        load_posterior_data(write(tmp_path / "a.csv", text), model, target)
    assert "\n" not in str(caught.value)


def test_files_that_are_not_there_or_not_data(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="There is no file"):
        load_posterior_data(str(tmp_path / "none.csv"), target="y")
    with pytest.raises(InputError, match="neither an embedded data set"):
        load_posterior_data("iris")
    (tmp_path / "bad.csv").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(FileFormatError, match="not a CSV file"):
        load_posterior_data(str(tmp_path / "bad.csv"), target="y")


def test_parquet_streams_give_the_posterior_of_the_data_in_memory(tmp_path: Path) -> None:
    x = torch.randn(500, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = (x[:, 0] > 0).double()
    columns = {f"x{i}": x[:, i].numpy() for i in range(3)} | {"y": y.numpy()}
    parquet.write_table(pyarrow.table(columns), tmp_path / "data.parquet")
    stream, memory = ParquetData(tmp_path / "data.parquet", "y", batch_size=64), pc.Rows(x, y)
    first, second = (fit_gaussian(pc.LogisticRegression(3), data) for data in (stream, memory))
    torch.testing.assert_close(first.mean, second.mean)
    indices = torch.tensor([400, 3, 77])
    torch.testing.assert_close(stream.rows(indices)[0], x[indices])
    loaded = load_posterior_data(str(tmp_path / "data.parquet"), target="y")
    assert loaded.model_name == "logistic"
    with pytest.raises(InputError, match="no column 'z'"):
        ParquetData(tmp_path / "data.parquet", "z")
    (tmp_path / "bad.parquet").write_text("no")
    with pytest.raises(FileFormatError, match="not a Parquet file"):
        ParquetData(tmp_path / "bad.parquet", "y")
    parquet.write_table(pyarrow.table({"a": [1.0, 2, np.inf, 4, 5], "y": [0.0, 1, 0, 1, 0]}), tmp_path / "bad.parquet")
    with pytest.raises(InputError, match="'a' holds a value that is not finite"):
        list(ParquetData(tmp_path / "bad.parquet", "y").batches())
