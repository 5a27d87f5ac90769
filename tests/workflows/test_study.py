"""References, distances, the study and the command."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import typer
from torch import Tensor
from torch.distributions import StudentT
from typer.testing import CliRunner

import pseudocoresets as pc
from pseudocoresets._cli.posterior import parse_sizes, posterior
from pseudocoresets.core.errors import DivergenceError, InputError
from pseudocoresets.core.gaussian import kl_divergence
from pseudocoresets.core.points import Rows
from pseudocoresets.data.tables import load_posterior_data
from pseudocoresets.methods import row_problem, starting_points
from pseudocoresets.sources.gaussian_fit import fit_gaussian
from pseudocoresets.workflows import study as study_module
from pseudocoresets.workflows.study import run_study

DOUBLE = torch.float64
SHORT = {"draws": 150, "warmup": 100}


def test_a_study_says_which_class_is_which(tmp_path: Path) -> None:
    rows = "\n".join(f"{i % 7},{1 if i % 2 else -1}" for i in range(40))
    (tmp_path / "a.csv").write_text("a,y\n" + rows)
    data = load_posterior_data(str(tmp_path / "a.csv"), target="y")
    study = run_study(data, ["uniform"], [5], **SHORT)
    assert "Classes: 0 is '-1', 1 is '1'." in study.notes
    assert study.as_json()["classes"] == ["-1", "1"]


def test_a_study_measures_every_method_and_size(tmp_path: Path) -> None:
    data = load_posterior_data("synthetic", "logistic", points=300, dimension=2)
    study = run_study(data, ["moments", "uniform"], [5, 20], **SHORT)
    assert [(row.method, row.size) for row in study.rows] == [
        ("moments", 5),
        ("moments", 20),
        ("uniform", 5),
        ("uniform", 20),
    ]
    medians = study.medians("kl_full_coreset")
    assert medians["moments"][20] < medians["uniform"][20]
    study.save(tmp_path)
    document = json.loads((tmp_path / "posterior.json").read_text())
    assert document["noise_floor"]["gaussian_fit"] is True
    assert (tmp_path / "distance.png").read_bytes().startswith(b"\x89PNG")
    assert len(list((tmp_path / "coresets").iterdir())) == 4
    with pytest.raises(InputError, match="between 1 and 240"):
        run_study(data, ["moments"], [1000])
    with pytest.raises(InputError, match="no method named 'giggle'"):
        run_study(data, ["giggle"], [5])


def test_a_study_goes_on_where_it_was_stopped_and_survives_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = load_posterior_data("synthetic", "linear", points=60, dimension=2)
    real, made = study_module.construct, []

    def counting(rows: Rows, fit: object, method: str, **options: object) -> pc.Coreset:
        made.append(options["size"])
        if options["size"] == 3 and len(made) < 3:
            raise RuntimeError("No room left.\nMore lines.")
        return real(rows, fit, method, **options)

    monkeypatch.setattr(study_module, "construct", counting)
    first = run_study(data, ["uniform"], [2, 3], **SHORT, folder=tmp_path)
    assert [row.failure for row in first.rows] == [None, "RuntimeError: No room left."]
    assert "More lines" in (tmp_path / "cells" / "uniform-3-seed0" / "failure.txt").read_text()
    second = run_study(data, ["uniform"], [2, 3], **SHORT, folder=tmp_path)
    assert made == [2, 3, 3]
    assert second.rows[0] == first.rows[0]
    assert second.rows[1].distances is not None
    assert torch.equal(*(study.coresets["uniform", 2, 0].x for study in (first, second)))
    other = replace(data, rows=Rows(data.rows.x, data.rows.y + 1))
    run_study(other, ["uniform"], [2], **SHORT, folder=tmp_path)
    assert made == [2, 3, 3, 2]


def test_the_command_prints_a_table_and_json(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(posterior)
    words = "--data synthetic --model linear --points 100 --dimension 2 --methods moments,uniform --sizes 4 --draws 60"
    common = [*words.split(), "--cache", str(tmp_path / "cache")]
    table = CliRunner().invoke(app, [*common, "--jobs", "1", "--out", str(tmp_path / "out")])
    assert table.exit_code == 0, table.output
    assert "noise floor" in table.output
    result = CliRunner().invoke(app, [*common, "--jobs", "2", "--json", "--out", str(tmp_path / "other")])
    document, alone = json.loads(result.stdout), json.loads((tmp_path / "out" / "posterior.json").read_text())
    assert {row["method"] for row in document["rows"]} == {"moments", "uniform"}
    assert document["rows"][0]["distances"]["kl_full_coreset"] < 1e-3
    assert document["rows"][0]["returned"] == "own"
    assert [row["distances"] for row in document["rows"]] == [row["distances"] for row in alone["rows"]]


def test_the_command_ends_with_status_3_after_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object, **__: object) -> pc.Coreset:
        raise DivergenceError("It went astray.")

    monkeypatch.setattr(study_module, "construct", failing)
    app = typer.Typer()
    app.command()(posterior)
    words = "--data synthetic --model linear --points 60 --dimension 2 --methods uniform --sizes 4 --draws 60 --jobs 1"
    options = [*words.split(), "--cache", str(tmp_path), "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(app, options)
    assert result.exit_code == 3
    assert "uniform 4, seed 0, failed: It went astray." in " ".join(result.output.split())


def test_several_processes_need_a_folder_and_a_model_that_can_be_sent() -> None:
    data = load_posterior_data("synthetic", "linear", points=60, dimension=2)
    with pytest.raises(InputError, match="needs a folder"):
        run_study(data, ["uniform"], [2], **SHORT, jobs=2)
    own = pc.FunctionModel(lambda theta, x, y: -(y - x @ theta).square(), lambda theta: -theta.square().sum(), 3)
    with pytest.raises(InputError, match="cannot be sent to another process"):
        run_study(replace(data, model=own), ["uniform"], [2], **SHORT, jobs=2)


def test_sizes_are_numbers() -> None:
    assert parse_sizes("30,10") == [10, 30]
    with pytest.raises(InputError, match="whole numbers"):
        parse_sizes("ten")


def test_a_model_of_ones_own_goes_through_the_front_doors(tmp_path: Path) -> None:
    """A robust regression with Student-t noise, whose scale is learned: KL as small as that of a built-in model."""

    def log_likelihood(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return StudentT(4.0, x @ theta[:-1], theta[-1].exp()).log_prob(y)

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 2, generator=generator).numpy()
    y = x @ [1.0, -0.5] + 0.3 * torch.randn(300, generator=generator).numpy()
    rows = pc.Rows(x, y[:, None])
    model = pc.FunctionModel(log_likelihood, lambda theta: -0.5 * theta.square().sum(), 3, pseudo_target="real")
    pc.construct(rows, model=model, method="moments", size=20).save(tmp_path / "c.safetensors")
    samples = pc.sample_posterior(
        pc.Coreset.load(tmp_path / "c.safetensors"), model=model, sampler="nuts", chains=8, samples=200, warmup=100
    )
    reference = pc.reference_posterior(rows, model, 200, 100, chains=8)
    assert pc.distance(samples, reference).kl_full_coreset < 0.2


@pytest.mark.parametrize("size", [1, 7])
def test_contrastive_divergence_finds_a_gaussian_posterior(size: int) -> None:
    """The chains leave noise, but far less than the 0.1 nats that are asked for (uniform: above ten)."""
    x = torch.randn(300, 20, generator=torch.Generator().manual_seed(0), dtype=DOUBLE) + 1
    rows, model = pc.Rows(x, torch.zeros(300)), pc.GaussianMean(dimension=20)
    coreset = pc.construct(rows, model=model, method="cd", size=size, method_options={"chains": 64}, iterations=200)
    full, found = (fit_gaussian(model, data) for data in (rows, coreset.points))
    assert float(kl_divergence(full, found)) < 0.1


@pytest.mark.parametrize("name", ["cd", "fkl", "fkl-hmc", "rkl", "psvi", "wasserstein"])
def test_gradient_methods_of_networks_learn_rows(name: str) -> None:
    """A few iterations from the start that matches the moments: seeds decide, and nothing goes astray."""
    x = torch.randn(200, 2, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    rows, model = pc.Rows(x, (x[:, 0] + 0.5 > x[:, 1]).double()), pc.LogisticRegression(2)
    first, second = (
        pc.construct(rows, model=model, method=name, size=6, iterations=5, seed=3, check=False) for _ in range(2)
    )
    assert torch.equal(first.x, second.x)
    assert first.method == name
    start = starting_points(row_problem(model, rows), 6, 3, sharpen=True).start
    assert 0 < float((first.x - start.x).abs().max()) < 0.5
    full, found = (fit_gaussian(model, data) for data in (rows, first.points))
    assert float(kl_divergence(full, found)) < 0.1


def test_data_and_model_must_fit_each_other() -> None:
    rows = pc.Rows(torch.eye(2), torch.tensor([-1.0, 1.0]))
    with pytest.raises(InputError, match="Labels of -1"):
        pc.construct(rows, model=pc.LogisticRegression(2), method="uniform", size=1)
    with pytest.raises(InputError, match="Rows need a model"):
        pc.construct(rows)
