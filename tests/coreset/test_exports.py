"""A coreset of rows in other tools: files are read back, and what fits them elsewhere finds the same posterior."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from small import Invoke

import pseudocoresets as pc
from pseudocoresets.models import build_model
from pseudocoresets.sources.gaussian_fit import find_mode, fit_gaussian

NAMES = ("age", "height", "intercept")


def rows(model: str) -> pc.Rows:
    stream = np.random.default_rng(0)
    x = np.c_[stream.standard_normal((300, 2)), np.ones(300)]
    eta = x @ np.array([0.8, -0.5, 0.3])
    y = {
        "linear": eta + stream.standard_normal(300),
        "logistic": stream.random(300) < 1 / (1 + np.exp(-eta)),
        "poisson": stream.poisson(np.exp(eta)),
        "gaussian": eta + stream.standard_normal(300),
    }[model]
    return pc.Rows(x, y, columns=NAMES)


def small(model: str) -> pc.Coreset:
    return pc.construct(rows(model), model=model, method="moments", size=8)


def test_rows_become_a_frame_and_files_with_weights(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    coreset = small("logistic")
    frame = coreset.to_frame()
    assert list(frame.columns) == [*NAMES, "y", "weight"]
    np.testing.assert_array_equal(frame[list(NAMES)].to_numpy(), coreset.x.numpy())
    coreset.to_csv(tmp_path / "c.csv")
    coreset.to_parquet(tmp_path / "c.parquet")
    pandas.testing.assert_frame_equal(pandas.read_csv(tmp_path / "c.csv"), frame)
    pandas.testing.assert_frame_equal(pandas.read_parquet(tmp_path / "c.parquet"), frame)
    coreset.to_stan(tmp_path / "c.json")
    document = json.loads((tmp_path / "c.json").read_text())
    assert (document["N"], document["K"], len(document["x"]), len(document["weight"])) == (8, 3, 8, 8)
    assert torch.equal(torch.tensor(document["y"], dtype=torch.float64), coreset.y)


def test_several_targets_have_numbered_columns() -> None:
    coreset = pc.Coreset(torch.zeros(2, 1), torch.ones(2, 2), torch.ones(2), 2, "t", "m")
    assert list(coreset.columns()) == ["x0", "y0", "y1", "weight"]
    with pytest.raises(pc.InputError, match="name of the target or of the weight"):
        replace(coreset, configuration={"columns": ["weight"]}).columns()


@pytest.mark.parametrize("model", ["linear", "logistic", "poisson"])
def test_scikit_learn_finds_the_mode_of_the_coresets_posterior(bpc: Invoke, tmp_path: Path, model: str) -> None:
    coreset = small(model)
    coreset.save(tmp_path / "c.safetensors")
    done = bpc("export", tmp_path / "c.safetensors", "--to", "sklearn", "--json")
    assert done.exit_code == 0, done.output
    program = json.loads(done.stdout)["program"]
    output = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, check=True, cwd=Path(program).parent
    ).stdout
    found = {line.split()[0]: float(line.split()[1]) for line in output.splitlines()}
    mode = find_mode(build_model(model, rows(model)), coreset.points, torch.zeros(3, dtype=torch.float64)).mean
    assert list(found) == list(NAMES)
    np.testing.assert_allclose(list(found.values()), mode.numpy(), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("model", ["gaussian"])
def test_numpyro_samples_the_coresets_posterior(tmp_path: Path, model: str) -> None:
    """Means within five Monte Carlo errors of at least 200 effective draws, and the skewness that a Gaussian misses."""
    pytest.importorskip("numpyro")
    coreset = small(model)
    coreset.to_csv(tmp_path / "c.csv")
    (tmp_path / "fit.py").write_text(coreset.program("numpyro", "c.csv"))
    output = subprocess.run(
        [sys.executable, "fit.py", "1000"], capture_output=True, text=True, check=True, cwd=tmp_path
    ).stdout
    found = np.array([[float(part) for part in line.split()[1:]] for line in output.splitlines()])
    nearest = fit_gaussian(build_model(model, rows(model)), coreset.points)
    deviation = nearest.standard_deviation.numpy()
    np.testing.assert_array_less(np.abs(found[:, 0] - nearest.mean.numpy()), (5 / 200**0.5 + 0.1) * deviation)
    np.testing.assert_allclose(found[:, 1], deviation, rtol=0.25)


def test_programs_hold_the_models_numbers_and_nothing_else() -> None:
    coreset = small("linear")
    noise = coreset.configuration["model"]["noise_scale"]
    assert f"normal_lpdf(y[i] | eta[i], {noise!r})" in coreset.program("stan", "c.json")
    assert f"pm.Normal.dist(eta, {noise!r})" in coreset.program("pymc", "c.csv")
    compile(coreset.program("pymc", 'odd "name".csv'), "fit.py", "exec")
    hostile = replace(coreset, configuration={"model": {"kind": "LinearRegression", "prior_scale": "1); evil("}})
    with pytest.raises(pc.InputError, match="something else than numbers"):
        hostile.program("pymc", "c.csv")
    with pytest.raises(pc.InputError, match="no stan program for Own"):
        replace(coreset, configuration={"model": {"kind": "Own"}}).program("stan", "c.json")
    with pytest.raises(pc.InputError, match="does not say for which model"):
        replace(coreset, configuration={}).program("stan", "c.json")


def test_the_command_says_what_it_wrote_and_what_it_cannot(bpc: Invoke, tmp_path: Path) -> None:
    small("poisson").save(tmp_path / "c.safetensors")
    for to, names in {"csv": ["c.csv"], "parquet": ["c.parquet"], "stan": ["c.json", "c.stan"]}.items():
        done = bpc("export", tmp_path / "c.safetensors", "--to", to)
        assert done.exit_code == 0
        assert all(name in done.stdout.replace("\n", "") and (tmp_path / name).is_file() for name in names)
    refused = bpc("export", tmp_path / "c.safetensors", "--to", "excel")
    assert refused.exit_code == 2
    assert "no export to 'excel'; choose csv" in refused.stderr.replace("\n", " ")


def test_samples_become_inference_data(tmp_path: Path) -> None:
    arviz = pytest.importorskip("arviz")
    coreset = small("logistic")
    model = build_model("logistic", rows("logistic"))
    samples = pc.sample_posterior(coreset, "nuts", chains=2, model=model, samples=20, warmup=50)
    data = samples.to_arviz(NAMES)
    data.to_netcdf(str(tmp_path / "s.nc"))
    read = arviz.from_netcdf(str(tmp_path / "s.nc"))
    np.testing.assert_array_equal(read.posterior["height"].values, samples.parameters[..., 1].numpy())
    samples.to_zarr(tmp_path / "s.zarr", NAMES)
    stored = pytest.importorskip("xarray").open_datatree(tmp_path / "s.zarr", engine="zarr", consolidated=False)
    assert arviz.from_datatree(stored).posterior.equals(data.posterior)
    assert samples.to_arviz().posterior["theta"].shape == (2, 20, 3)
    with pytest.raises(pc.InputError, match="3 parameters; got 1 names"):
        samples.to_arviz(["a"])
