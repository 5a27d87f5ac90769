"""Tables of every kind in, and what is wrong with one in one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
import torch

import pseudocoresets as pc
from pseudocoresets.core.errors import InputError
from pseudocoresets.data.tables import load_posterior_data
from pseudocoresets.models import RandomIntercepts

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


def write(path: Path, frame: Any) -> str:
    frame.to_csv(path, index=False)
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


def test_an_empty_parquet_file_is_refused(tmp_path: Path) -> None:
    random_frame().head(0).to_parquet(tmp_path / "e.parquet")
    with pytest.raises(InputError, match="has no rows"):
        load_posterior_data(str(tmp_path / "e.parquet"), "linear", "y")


def test_more_columns_than_rows_are_no_combination_of_each_other(tmp_path: Path) -> None:
    stream = np.random.default_rng(0)
    frame = pandas.DataFrame(stream.standard_normal((20, 40)), columns=[f"x{i}" for i in range(40)])
    assert load_posterior_data(write(tmp_path / "w.csv", frame.assign(y=frame.x0)), "gaussian", "y").model.size == 42
