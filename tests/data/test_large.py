"""Tables that are read in parts: the same rows, the same posterior, and no part read twice for the same sum."""

from __future__ import annotations

import json
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small import Invoke

from pseudocoresets._io.files import read_tensors, write_tensors
from pseudocoresets.core.errors import DivergenceError, FileFormatError, InputError
from pseudocoresets.core.points import Rows, sum_over
from pseudocoresets.data import large
from pseudocoresets.data.large import LargeRows, is_large, load_large_data
from pseudocoresets.data.tables import PosteriorData
from pseudocoresets.models import LogisticRegression, SoftmaxRegression
from pseudocoresets.models.named import build_model
from pseudocoresets.sources.gaussian_fit import GaussianFit, expected_log_joint, fit_gaussian
from pseudocoresets.sources.large import agreement, gaussian_reference, large_fit
from tables import FEATURES, ROWS, slow_moments, small_parts, write_parts


@pytest.fixture
def loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PosteriorData:
    small_parts(monkeypatch)
    return load_large_data(str(write_parts(tmp_path / "table")), target="y", store=tmp_path / "store")


def rows_of(data: PosteriorData) -> LargeRows:
    assert isinstance(data.rows, LargeRows)
    return data.rows


def test_parts_hold_all_rows_once_but_those_held_out(loaded: PosteriorData) -> None:
    rows = rows_of(loaded)
    assert len(rows.reader.table.parts) == 6
    batches = list(rows.batches())
    assert len(batches) > 6
    x, y = (torch.cat(each) for each in zip(*batches, strict=True))
    assert (len(x), len(loaded.held_out[0])) == (len(rows), round(0.2 * ROWS))
    every = torch.cat([x, loaded.held_out[0]])
    assert len(every.unique(dim=0)) == ROWS
    torch.testing.assert_close(every.mean(0), torch.tensor([0.0, 0, 0, 1]).double(), atol=1e-12, rtol=0)
    torch.testing.assert_close(every[:, :-1].std(0, correction=0), torch.ones(FEATURES).double())
    assert loaded.model == LogisticRegression(FEATURES + 1)
    picked = torch.tensor([len(rows) - 1, 0, 333, 333])
    torch.testing.assert_close(rows.rows(picked)[0], x[picked], rtol=0, atol=0)
    torch.testing.assert_close(rows.rows(picked)[1], y[picked], rtol=0, atol=0)
    known = {tuple(row) for row in x.tolist()}
    assert all(tuple(row) in known for row in rows.some.x.tolist())


def test_the_posterior_is_that_of_all_rows_at_once(loaded: PosteriorData) -> None:
    rows = rows_of(loaded)
    x, y = (torch.cat(each) for each in zip(*rows.batches(), strict=True))
    expected, found = fit_gaussian(loaded.model, Rows(x, y)), large_fit(loaded.model, rows).gaussian
    scale = expected.standard_deviation
    assert float(((found.mean - expected.mean) / scale).abs().max()) < 1e-4  # the ELBO is flat to 1e-9 nats there
    torch.testing.assert_close(found.covariance, expected.covariance, rtol=1e-3, atol=0)


def test_a_sum_that_was_broken_off_goes_on_and_one_that_was_made_is_read(
    loaded: PosteriorData, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, read = rows_of(loaded), []
    real = large.PartReader.batches

    def counted(self: Any, index: int) -> Any:
        read.append(index)
        if len(read) == 4:
            raise KeyboardInterrupt
        return real(self, index)

    monkeypatch.setattr(large.PartReader, "batches", counted)
    monkeypatch.setattr("tables.time.sleep", lambda seconds: None)
    with pytest.raises(KeyboardInterrupt):
        rows.summed(slow_moments)
    total, _ = rows.summed(slow_moments)
    assert read == [0, 1, 2, 3, 3, 4, 5]
    assert all(torch.equal(*pair) for pair in zip(total, rows.summed(slow_moments)[0], strict=True))
    assert len(read) == 7
    rows.summed(partial(_scaled, 2.0))
    rows.summed(partial(_scaled, 3.0))
    assert len(read) == 7 + 12


def _scaled(factor: float, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (factor * x.sum(0),)


def test_other_values_in_the_same_file_are_other_data(
    loaded: PosteriorData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_parts(tmp_path / "table", x0=np.random.default_rng(1).standard_normal(ROWS))
    other = load_large_data(str(tmp_path / "table"), target="y", store=tmp_path / "store")
    assert rows_of(other).fingerprint != rows_of(loaded).fingerprint
    first, second = (sum_over(rows_of(each), partial(_scaled, 1.0))[0] for each in (loaded, other))
    assert not torch.equal(first, second)


def test_a_model_has_classes_that_no_row_in_memory_is_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_parts(monkeypatch)
    monkeypatch.setattr(large, "SOME_ROWS", 20)
    y = np.arange(ROWS) % 2
    y[-1] = 2
    data = load_large_data(str(write_parts(tmp_path / "table", y=y)), target="y")
    assert 2 not in rows_of(data).some.y
    assert data.model == SoftmaxRegression(FEATURES + 1, 3)


@pytest.mark.parametrize("target", ["linear", "softmax", "text"])
def test_models_know_of_all_rows_what_they_know_of_those_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    small_parts(monkeypatch)
    stream = np.random.default_rng(3)
    y: Any = {
        "linear": stream.standard_normal(ROWS) * 5 + 20,
        "softmax": stream.integers(0, 3, ROWS),
        "text": np.where(stream.random(ROWS) < 0.5, "no", "yes"),
    }[target]
    folder = str(write_parts(tmp_path / "table", y=y))
    data = load_large_data(folder, target="y")
    rows = rows_of(data)
    assert data.model_name == {"text": "logistic"}.get(target, target)
    assert data.classes == {"text": ("no", "yes"), "softmax": ("0", "1", "2"), "linear": ()}[target]
    training = rows.rows(torch.arange(len(rows)))
    x, encoded = (torch.cat(each) for each in zip(training, data.held_out, strict=True))
    if target == "linear":
        back = data.units["y"][0] + data.units["y"][1] * encoded.numpy()
        np.testing.assert_allclose(np.sort(back), np.sort(y))
    expected = build_model(data.model_name, (x, encoded))
    assert type(data.model) is type(expected)
    assert vars(data.model) == pytest.approx(vars(expected))


@pytest.mark.parametrize(
    ("columns", "model", "message"),
    [
        ({"x1": np.full(ROWS, 2.0)}, "auto", r"Column 'x1' is constant \(2\)"),
        ({"x1": np.where(np.arange(ROWS) == 700, np.nan, 1.0)}, "auto", "'x1' holds a value that is not finite"),
        ({"x1": [None, *np.arange(ROWS - 1.0)]}, "auto", "'x1' has missing values"),
        ({"x1": np.array(["a"] * ROWS)}, "auto", "'x1' holds text"),
        ({"x3": np.arange(ROWS), "x4": 2.0 * np.arange(ROWS) + 1}, "auto", "'x3', 'x4' are combinations"),
        ({"y": np.arange(ROWS)}, "logistic", "more than 100 different values"),
        ({"y": np.zeros(ROWS)}, "auto", "has 1 different values"),
        ({"y": np.full(ROWS, 3.5)}, "linear", "The target 'y' is constant"),
        ({"y": 1e200 * np.arange(ROWS)}, "linear", "The target 'y' holds a value of size"),
        ({"x1": 1e200 * np.arange(ROWS)}, "auto", "Column 'x1' holds a value of size"),
        ({"y": np.arange(ROWS) - 1}, "poisson", "must hold counts"),
        ({"y": np.array(["a"] * ROWS)}, "linear", "holds text; the model 'linear' needs numbers"),
        ({}, "weibull", "take the models logistic, softmax"),
    ],
)
def test_what_cannot_be_used_gets_one_sentence(
    tmp_path: Path, columns: dict[str, Any], model: str, message: str
) -> None:
    folder = write_parts(tmp_path / "table", **columns)
    with pytest.raises(InputError, match=message) as caught:
        load_large_data(str(folder), model, "y")
    assert "\n" not in str(caught.value)


def test_what_is_large_is_a_folder_or_fills_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_parts(tmp_path / "digits")
    assert is_large(str(folder))
    assert not is_large(str(folder / "a.parquet"))
    monkeypatch.setattr(large, "host_memory", lambda: 1000)
    assert is_large(str(folder / "a.parquet"))
    monkeypatch.chdir(tmp_path)
    assert not is_large("digits")
    assert not is_large("nothing.parquet")
    for source, target, message in (
        (str(tmp_path / "empty"), "y", "neither a Parquet file nor a folder"),
        (str(folder), "z", "no column 'z'"),
        (str(folder), None, "Name the target column"),
    ):
        with pytest.raises(InputError, match=message):
            load_large_data(source, target=target)


def test_the_gap_is_the_divergence_from_the_posterior() -> None:
    """KL(q || pi) of two coefficients, on a grid that holds all of pi."""
    generator = torch.Generator().manual_seed(2)
    x = torch.cat([torch.randn(25, 1, generator=generator), torch.ones(25, 1)], 1).double()
    data, model = Rows(x, (x[:, 0] + 0.5 > 0).double()), LogisticRegression(2, prior_scale=2.0)
    fit = GaussianFit(model, data)
    axes = [
        m + s * torch.linspace(-9, 9, 400).double()
        for m, s in zip(fit.gaussian.mean, fit.gaussian.standard_deviation, strict=True)
    ]
    grid = torch.cartesian_prod(*axes)
    log_joint = model.log_likelihood(grid, data.x, data.y).sum(-1) + model.log_prior(grid)
    area = (axes[0][1] - axes[0][0]) * (axes[1][1] - axes[1][0])
    log_evidence = torch.logsumexp(log_joint, 0) + area.log()
    bound = expected_log_joint(model, fit.gaussian, data).value + fit.gaussian.entropy
    exact = float(log_evidence - bound)
    assert exact > 0.02
    found = agreement(fit)
    assert abs(found.gap - exact) < 2 * found.error < 0.1


def test_a_posterior_that_is_no_gaussian_is_refused(loaded: PosteriorData, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rows_of(loaded)
    fit = large_fit(loaded.model, rows)
    run = gaussian_reference(fit, rows, 100, 4, 0)
    assert run.draws.shape == (400, FEATURES + 1)
    assert run.seconds_per_draw > 0
    monkeypatch.setattr("pseudocoresets.sources.large.LARGEST_GAP", 0.0)
    with pytest.raises(DivergenceError, match="too far from the posterior to stand for it"):
        gaussian_reference(fit, rows, 100, 4, 0)


def test_the_command_reads_a_folder(bpc: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_parts(monkeypatch)
    monkeypatch.setattr("pseudocoresets.methods.selection.hilbert.MOST_DATA", 300)
    monkeypatch.setattr("pseudocoresets.core.targets.LARGEST_READ", 10_000)
    write_parts(tmp_path / "table")
    words = "posterior --data table --target y --methods moments,uniform,giga --sizes 6 --draws 200 --jobs 1 --json"
    result = bpc(*words.split(" "))
    assert result.exit_code == 3, result.output
    rows = {row["method"]: row for row in json.loads(result.stdout)["rows"]}
    assert "needs all 720 rows in memory" in rows["giga"]["failure"]
    near, far = (rows[name]["distances"]["kl_full_coreset"] for name in ("moments", "uniform"))
    assert near < 0.2 < far
    table = bpc(*[word for word in words.split(" ") if word != "--json"])
    assert "draws of the nearest Gaussian" in " ".join(table.stdout.split())
    assert bpc(*words.split(" "), "--group", "x0").exit_code == 2


def test_a_kept_part_that_no_pass_can_have_found_is_found_again(
    tmp_path: Path, loaded: PosteriorData, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file with its checksum in order, but of other rows, or without a number that it must have."""
    expected = rows_of(loaded).fingerprint
    for path in (tmp_path / "store").glob("*.safetensors"):
        tensors, document = read_tensors(path)
        if "kinds" in document:
            write_tensors(path, tensors | {"mean": tensors["mean"][:1]}, document | {"rows": 1})
    again = load_large_data(str(tmp_path / "table"), target="y", store=tmp_path / "store")
    assert rows_of(again).fingerprint == expected


def test_a_damaged_page_is_one_sentence(tmp_path: Path) -> None:
    folder = write_parts(tmp_path / "table")
    path = folder / "a.parquet"
    content = bytearray(path.read_bytes())
    content[4:200] = bytes(196)
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match="is a damaged Parquet file"):
        load_large_data(str(folder), target="y")


@pytest.mark.parametrize("kept", [0, 1])
def test_rows_that_a_header_promises_and_no_page_holds_are_missed(
    kept: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_parts(monkeypatch)
    path, every = write_parts(tmp_path / "table"), large.parquet_batches
    monkeypatch.setattr(large, "parquet_batches", lambda *given: islice(every(*given), kept))
    with pytest.raises(FileFormatError, match="is a damaged Parquet file"):
        load_large_data(str(path), target="y")


def test_every_flipped_bit_of_a_header_is_one_sentence_or_none(tmp_path: Path) -> None:
    """One of them makes integers of 4 bits, for which pyarrow has an error of its own."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "small.parquet"
    parquet.write_table(pyarrow.table({"k": np.arange(3, dtype=np.int8)}), path)
    content = path.read_bytes()
    header = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    problems = set()
    for bit in range(8 * header, 8 * len(content)):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        try:
            large.parquet_file(path)
        except FileFormatError as error:
            problems.add(str(error))
    assert len(problems) > 10 and all("\n" not in each for each in problems)
