"""Data, references, distances, the study and the command."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

from pseudocoresets._cli.posterior import parse_sizes, posterior
from pseudocoresets.core.errors import FileFormatError, InputError
from pseudocoresets.data.tables import ParquetData, load_posterior_data
from pseudocoresets.evaluation.distances import log_predictive, maximum_mean_discrepancy, sliced_wasserstein
from pseudocoresets.posterior import (
    METHODS,
    Gaussian,
    GaussianMean,
    LogisticRegression,
    MemoryData,
    NutsPlan,
    Points,
    PosteriorProblem,
    fit_gaussian,
    gaussian_fit,
    kl_divergence,
    reference_posterior,
    sample_posterior_of,
)
from pseudocoresets.workflows.study import run_study

DOUBLE = torch.float64
SHORT = NutsPlan(draws=150, warmup=100, chains=4)


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


# --- data -----------------------------------------------------------------------------------------


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
    assert data.problem.model.size == size
    assert len(data.held_out[0]) == round(0.2 * (len(data.held_out[0]) + data.problem.data_size))


@pytest.mark.parametrize("model", ["gaussian-mean", "linear", "logistic", "softmax", "poisson"])
def test_synthetic_data_for_every_model(model: str) -> None:
    data = load_posterior_data("synthetic", model, points=60, dimension=3)
    x, y = data.problem.data.rows(torch.arange(5))
    assert bool(
        torch.isfinite(data.problem.model.log_likelihood(torch.zeros(data.problem.model.size).double(), x, y)).all()
    )


def test_csv_with_text_classes(tmp_path: Path) -> None:
    rows = "\n".join(f"{i},{i % 3},{'yes' if i % 2 else 'no'}" for i in range(20))
    data = load_posterior_data(write(tmp_path / "a.csv", "a,b,bought\n" + rows), target="bought")
    assert data.model_name == "logistic"
    assert data.classes == ("no", "yes")


@pytest.mark.parametrize(
    ("text", "target", "model", "message"),
    [
        ("a,b,y\n1,,0\n2,3,1\n", "y", "auto", "Column 'b' has 1 missing value, the first in row 1"),
        ("a,b,y\n1,NA,0\n2,nan,1\n", "y", "auto", "Column 'b' has 2 missing values"),
        ("a,b,y\n1,x,0\n2,3,1\n", "y", "auto", "Column 'b' holds text \\('x' in row 1\\)"),
        ("a,b,y\n1,5,0\n2,5,1\n", "y", "auto", "Column 'b' is constant \\(5\\)"),
        ("a,y\n1,1\n2,1\n3,1\n4,1\n5,1\n", "y", "logistic", "one class only \\(1\\)"),
        ("a,y\n1,1\n2,1\n3,1\n4,1\n5,1\n", "y", "auto", "one class only \\(1\\)"),
        ("a,b\n1,1\n2,2\n", "price", "auto", "no column 'price' in .*; its columns are 'a', 'b'"),
        ("a,b\n1,1\n2,2\n", None, "auto", "Name the target column"),
        ("a,b\n1,1,4\n2,2\n", "b", "auto", "Line 2 .* has 3 fields"),
        ("a,a\n1,1\n", "a", "auto", "names a column twice"),
        ("a,b\n", "b", "auto", "at least one line of data"),
        ("a,y\n1,0.5\n2,1\n3,2\n4,3\n5,1\n", "y", "poisson", "must hold counts"),
        ("a,y\n1,red\n2,blue\n3,red\n", "y", "linear", "holds text \\('red'\\)"),
        ("a,y\n1,0\n2,1\n3,2\n4,1\n5,0\n6,1\n", "y", "logistic", "3 different values"),
        ("y\n1\n2\n", "y", "auto", "no column beside the target"),
        ("a,y\n1,inf\n2,1\n3,2\n4,3\n5,1\n", "a", "bayes", "no model named 'bayes'"),
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
    pytest.importorskip("pyarrow")
    import pyarrow
    from pyarrow import parquet

    x = torch.randn(500, 3, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    y = (x[:, 0] > 0).double()
    columns = {f"x{i}": x[:, i].numpy() for i in range(3)} | {"y": y.numpy()}
    parquet.write_table(pyarrow.table(columns), tmp_path / "data.parquet")
    stream, memory = ParquetData(tmp_path / "data.parquet", "y", batch_size=64), MemoryData(x, y)
    first, second = (fit_gaussian(LogisticRegression(3), data) for data in (stream, memory))
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


# --- references and distances ---------------------------------------------------------------------


def small_problem() -> PosteriorProblem:
    x = torch.randn(200, 2, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    chance = torch.rand(200, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)
    return PosteriorProblem(LogisticRegression(2), MemoryData(x, (chance < torch.sigmoid(x.sum(1))).double()))


def test_reference_is_checked_and_cached_by_content(tmp_path: Path) -> None:
    problem = small_problem()
    first = reference_posterior(problem, SHORT, cache=tmp_path)
    assert first.r_hat < 1.01
    (file,) = tmp_path.iterdir()
    written = file.stat().st_mtime_ns
    second = reference_posterior(small_problem(), SHORT, cache=tmp_path)
    assert torch.equal(first.samples, second.samples)
    assert file.stat().st_mtime_ns == written
    other = PosteriorProblem(LogisticRegression(2, prior_scale=3.0), problem.data)
    reference_posterior(other, SHORT, cache=tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    file.write_bytes(b"broken")
    again = reference_posterior(problem, SHORT, cache=tmp_path)
    assert torch.equal(first.samples, again.samples)


def test_nuts_and_importance_sampling_agree_on_a_coreset() -> None:
    """Two Gaussian fits of 2 parameters differ by about (2 + 3) / ess nats; five times that is allowed."""
    problem = small_problem()
    points = METHODS["giga"].build(problem, 10)
    fit, how = gaussian_fit(problem.model, points)
    sample = sample_posterior_of(problem.model, points, NutsPlan(400, 200, 4))
    assert how == "importance sampling"
    assert float(kl_divergence(fit, sample.gaussian)) < 5 * 5 / sample.ess


def test_exact_posteriors_are_used_where_they_exist() -> None:
    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    problem = PosteriorProblem(GaussianMean(dimension=3), MemoryData(x, torch.zeros(50, dtype=DOUBLE)))
    sample = reference_posterior(problem, SHORT)
    assert sample.exact
    torch.testing.assert_close(sample.gaussian.mean, x.sum(0) / 51)
    error = sample.gaussian.standard_deviation / math.sqrt(sample.ess)
    assert bool(((sample.samples.mean(0) - sample.gaussian.mean).abs() < 5 * error).all())


def test_distances_between_samples() -> None:
    generator = torch.Generator().manual_seed(0)
    first, second = (torch.randn(800, 2, generator=generator, dtype=DOUBLE) for _ in range(2))
    shifted = second + torch.tensor([1.0, 0.0], dtype=DOUBLE)
    assert maximum_mean_discrepancy(first, second) < 0.3 * maximum_mean_discrepancy(first, shifted)
    # A shift by one along one of two axes moves a projection by cos(angle): the root mean square is sqrt(1/2).
    assert sliced_wasserstein(first, shifted) == pytest.approx(math.sqrt(0.5), abs=0.1)
    # MMD^2 of N(0, I) and N(a, I) for this kernel: 2 (2 / 4)^(2/2) (1 - exp(-|a|^2 / (2 * (2 + 2)))) in two dimensions.
    expected = math.sqrt(2 * 0.5 * (1 - math.exp(-1 / 8)))
    assert maximum_mean_discrepancy(first, shifted) == pytest.approx(expected, abs=0.06)


def test_log_predictive_of_a_point_mass_is_the_log_likelihood() -> None:
    problem = small_problem()
    theta, (x, y) = torch.tensor([[0.5, -0.2]], dtype=DOUBLE), problem.data.rows(torch.arange(10))
    assert log_predictive(problem.model, theta, x, y) == pytest.approx(
        float(problem.model.log_likelihood(theta[0], x, y).mean())
    )


def test_coresets_survive_a_file(tmp_path: Path) -> None:
    points = METHODS["uniform"].build(small_problem(), 5)
    points.save(tmp_path / "c.safetensors")
    loaded = Points.load(tmp_path / "c.safetensors")
    assert torch.equal(loaded.x, points.x)
    assert loaded.indices is not None
    assert torch.equal(loaded.indices, points.indices)


# --- the study and the command ---------------------------------------------------------------------


def test_a_study_measures_every_method_and_size(tmp_path: Path) -> None:
    data = load_posterior_data("synthetic", "logistic", points=300, dimension=2)
    study = run_study(data, ["fkl", "uniform"], [5, 20], plan=SHORT)
    assert [(row.method, row.size) for row in study.rows] == [("fkl", 5), ("fkl", 20), ("uniform", 5), ("uniform", 20)]
    medians = study.medians("kl_full_coreset")
    assert medians["fkl"][20] < medians["uniform"][20]
    study.save(tmp_path)
    document = json.loads((tmp_path / "posterior.json").read_text())
    assert document["noise_floor"]["gaussian_fit"] is True
    assert (tmp_path / "distance.png").read_bytes().startswith(b"\x89PNG")
    assert len(list((tmp_path / "coresets").iterdir())) == 4
    with pytest.raises(InputError, match="between 1 and 240"):
        run_study(data, ["fkl"], [1000])
    with pytest.raises(InputError, match="no method named 'giggle'"):
        run_study(data, ["giggle"], [5])


def test_the_command_prints_a_table_and_json(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(posterior)
    common = [
        "--data",
        "synthetic",
        "--model",
        "linear",
        "--points",
        "100",
        "--dimension",
        "2",
        "--methods",
        "fkl,uniform",
    ]
    common += ["--sizes", "4", "--draws", "60", "--cache", str(tmp_path / "cache"), "--out", str(tmp_path / "out")]
    table = CliRunner().invoke(app, common)
    assert table.exit_code == 0, table.output
    assert "noise floor" in table.output
    result = CliRunner().invoke(app, [*common, "--json"])
    document = json.loads(result.stdout)
    assert {row["method"] for row in document["rows"]} == {"fkl", "uniform"}
    assert document["rows"][0]["distances"]["kl_full_coreset"] < 1e-3


def test_sizes_are_numbers() -> None:
    assert parse_sizes("30,10") == [10, 30]
    with pytest.raises(InputError, match="whole numbers"):
        parse_sizes("ten")


def test_the_documented_model_of_ones_own_runs(capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[2] / "docs" / "posteriors.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    lines = [line for line in code.splitlines() if line.strip()]
    assert len(lines) <= 30
    scope: dict[str, object] = {}
    exec(compile(code, "posteriors.md", "exec"), scope)
    found = re.search(r"KL\(full \|\| coreset\) = ([\d.]+)", capsys.readouterr().out)
    assert found is not None
    assert float(found.group(1)) < 0.2
    assert isinstance(scope["reference"].gaussian, Gaussian)  # type: ignore[attr-defined]
