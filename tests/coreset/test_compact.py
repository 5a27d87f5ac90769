"""Coreset files without whitening matrices: small, and certain to get the same whitening back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from small import Invoke
from torch import Tensor

import pseudocoresets as pc
from pseudocoresets._io.files import read_tensors, write_tensors
from pseudocoresets.core.errors import FileFormatError, InputError
from pseudocoresets.coreset import COMPACT_VERSION, FORMAT_VERSION, half_if_exact
from pseudocoresets.data import Dataset, InputTransform, fit_zca
from pseudocoresets.data import zca_cache as cache
from pseudocoresets.data.restoring import MissingWhitening, probe_values, without_matrices
from pseudocoresets.data.transforms import WhiteningOrigin, fingerprint

HALF = torch.finfo(torch.float16).eps / 2
PROBE_BYTES = [135.0, 86.0, 132.0, 133.0]


@pytest.fixture(autouse=True)
def cache_of_its_own(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="module")
def whitened() -> Dataset:
    return pc.load_dataset("digits", whiten=True)


def real_images(data: Dataset, count: int = 20, source: str = "digits") -> pc.Coreset:
    """The first images of ``data`` as a coreset, whose pixels are known."""
    return pc.Coreset(
        x=data.transform(data.train.images[:count]),
        y=data.train.labels[:count],
        weights=torch.full((count,), len(data.train) / count),
        transform=data.transform,
        classes=data.classes,
        data_size=len(data.train),
        source=source,
        method="random",
        network=pc.build_network("mlp:depth=1,width=16", data.shape, len(data.classes)).spec,
        flippable=data.flippable,
    )


@pytest.fixture
def full(whitened: Dataset, tmp_path: Path) -> Path:
    real_images(whitened).save(tmp_path / "full.safetensors")
    return tmp_path / "full.safetensors"


@pytest.fixture
def small(whitened: Dataset, tmp_path: Path) -> Path:
    real_images(whitened).save(tmp_path / "small.safetensors", compact=True)
    return tmp_path / "small.safetensors"


def document_of(path: Path) -> dict[str, Any]:
    return read_tensors(path)[1]


def same_tensors(first: InputTransform, second: InputTransform) -> bool:
    own, other = first.tensors(), second.tensors()
    return own.keys() == other.keys() and all(torch.equal(own[name], other[name]) for name in own)


def test_commands_leave_out_whitening_that_the_cache_keeps_and_nothing_else(
    whitened: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, coreset = tmp_path / "c.safetensors", real_images(whitened)
    coreset.save(path, large_whitening=False)
    assert same_tensors(pc.Coreset.load(path).require_images(), whitened.transform), "too small to be kept elsewhere"

    monkeypatch.setattr(cache, "SMALLEST_KEPT", 64)
    coreset.save(path, large_whitening=False)
    assert path.stat().st_size < 20 * 64 * 4 + 8000 and not any(name[10:] == "unwhitening" for name in load_file(path))
    lacking = pc.Coreset.load(path)
    assert not lacking.is_whole and torch.equal(lacking.x, coreset.x), "images are not rounded"
    assert torch.equal(lacking.restored(whitened).to_pixels(), coreset.to_pixels())
    cache.fit_zca_once(whitened.train.images)
    assert pc.Coreset.load(path).is_whole

    unknown = replace(coreset, transform=replace(coreset.require_images(), origin=None))
    unknown.save(path, large_whitening=False)
    assert pc.Coreset.load(path).is_whole, "nobody could fit it again"


def test_ten_cifar_images_a_class_take_less_than_700_kilobytes(tmp_path: Path) -> None:
    size = 3 * 32 * 32
    transform = InputTransform(
        torch.full((3,), 0.5),
        torch.full((3,), 0.2),
        torch.eye(size) * 2,
        torch.eye(size) / 2,
        torch.zeros(size),
        WhiteningOrigin("0" * 32, held_out=((0.1, 0),)),
    )
    coreset = pc.Coreset(
        torch.randn(100, 3, 32, 32, generator=torch.Generator().manual_seed(0)),
        torch.arange(10).repeat(10),
        torch.full((100,), 450.0),
        45_000,
        "cifar10",
        "cd",
        transform,
        tuple("abcdefghij"),
        configuration={"settings": {f"setting{index}": index for index in range(50)}},
    )
    coreset.save(tmp_path / "c.safetensors", compact=True)
    assert (tmp_path / "c.safetensors").stat().st_size < 700_000
    (tmp_path / "c.safetensors").unlink()
    coreset.save(tmp_path / "c.safetensors")
    assert (tmp_path / "c.safetensors").stat().st_size > 75_000_000


def test_a_compact_file_has_its_own_version_and_the_full_one_keeps_its(full: Path, small: Path) -> None:
    """A release that reads version 1 alone refuses version 2 in one sentence, as this one does version 3."""
    assert (document_of(full)["version"], document_of(small)["version"]) == (FORMAT_VERSION, COMPACT_VERSION) == (1, 2)
    assert load_file(small)["images"].dtype == torch.float16
    assert not {name for name in load_file(small) if "whitening" in name}
    assert document_of(small)["whitening"] == document_of(full)["whitening"]


@given(seed=st.integers(0, 10_000), scale=st.sampled_from([1e-3, 1.0, 1e3]))
@settings(max_examples=30, deadline=None)
def test_float16_loses_no_more_than_its_rounding(seed: int, scale: float) -> None:
    images = torch.randn(3, 1, 4, 4, generator=torch.Generator().manual_seed(seed)) * scale
    stored = half_if_exact(images)
    assert stored.dtype == torch.float16
    # Half a unit in the last place of each value, or of the smallest normal one.
    bound = HALF * images.abs().clamp_min(torch.finfo(torch.float16).tiny)
    assert ((stored.float() - images).abs() <= bound).all()


@pytest.mark.parametrize("values", [(65_520.0, 1.0), (-1e6, 3.0), (1e-6, 3.3e-7), (1e-9, 0.0)])
def test_values_that_float16_cannot_hold_stay_float32(
    values: tuple[float, float], whitened: Dataset, tmp_path: Path
) -> None:
    coreset = real_images(whitened, 1)
    images = torch.tensor(values).repeat(32).reshape(1, 1, 8, 8)
    replace(coreset, x=images).save(tmp_path / "c.safetensors", compact=True)
    assert load_file(tmp_path / "c.safetensors")["images"].dtype == torch.float32
    assert torch.equal(pc.Coreset.load(tmp_path / "c.safetensors").images, images)


def test_the_largest_float16_is_still_one() -> None:
    assert half_if_exact(torch.tensor([65_504.0, -2.0])).dtype == torch.float16


def test_without_whitening_only_the_images_are_rounded(coreset: pc.Coreset, tmp_path: Path) -> None:
    coreset.save(tmp_path / "c.safetensors", compact=True)
    loaded = pc.Coreset.load(tmp_path / "c.safetensors")
    assert loaded.is_whole
    assert loaded.images.dtype == torch.float32
    assert ((loaded.images - coreset.images).abs() <= HALF * coreset.images.abs().max()).all()
    assert torch.equal(loaded.weights, coreset.weights)
    assert torch.equal(loaded.labels, coreset.labels)
    assert same_tensors(loaded.transform, coreset.transform)
    assert (loaded.network, dict(loaded.configuration)) == (coreset.network, dict(coreset.configuration))


@pytest.mark.parametrize("held_out", [(), ((0.1, 0),), ((0.2, 7),), ((0.1, 0), (0.3, 1))])
def test_the_whitening_that_comes_back_is_the_one_left_out(
    held_out: tuple[tuple[float, int], ...], whitened: Dataset, tmp_path: Path
) -> None:
    data = whitened
    for fraction, seed in held_out:
        data = data.holding_out(fraction, seed)
    original = real_images(data)
    original.save(tmp_path / "c.safetensors", compact=True)
    assert document_of(tmp_path / "c.safetensors")["whitening"]["held_out"] == [list(part) for part in held_out]
    restored = pc.Coreset.load(tmp_path / "c.safetensors", data_dir=tmp_path)
    assert same_tensors(restored.transform, original.transform)
    assert restored.transform.origin == original.transform.origin
    for given_data in (whitened, data):
        again = pc.Coreset.load(tmp_path / "c.safetensors").restored(given_data)
        assert same_tensors(again.transform, original.transform)
    # The images err by float16 rounding; unwhitening and the deviation of the pixels pass that on.
    assert data.transform.unwhitening is not None
    rows = data.transform.unwhitening.abs().sum(1).max() * data.transform.std.max()
    bound = float(HALF * original.images.abs().max() * rows) + 1e-5
    assert (restored.to_pixels() - data.train.images[:20].float() / 255).abs().max() <= bound


def test_another_epsilon_comes_back(whitened: Dataset, tmp_path: Path) -> None:
    other = fit_zca(whitened.train.images, epsilon=0.5)
    replace(real_images(whitened), transform=other).save(tmp_path / "c.safetensors", compact=True)
    restored = pc.Coreset.load(tmp_path / "c.safetensors", data_dir=tmp_path)
    assert same_tensors(restored.transform, other)


def test_a_restored_coreset_is_saved_whole_again(small: Path, full: Path, tmp_path: Path) -> None:
    pc.Coreset.load(small, data_dir=tmp_path).save(tmp_path / "again.safetensors")
    own, other = load_file(tmp_path / "again.safetensors"), load_file(full)
    assert document_of(tmp_path / "again.safetensors") == document_of(full)
    assert all(torch.equal(own[name], other[name]) for name in other if name != "images")


def test_the_cache_of_whitening_is_enough(small: Path, whitened: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "SMALLEST_KEPT", 1)
    assert not pc.Coreset.load(small).is_whole
    cache.fit_zca_once(whitened.train.images)
    assert same_tensors(pc.Coreset.load(small).transform, whitened.transform)


def test_a_cache_that_holds_another_whitening_is_passed_over(small: Path, whitened: Dataset) -> None:
    other = fit_zca(whitened.train.images[:-1])
    path = cache.cache_folder() / f"zca-{fingerprint(whitened.train.images)}.safetensors"
    write_tensors(path, other.tensors(), {})
    assert not pc.Coreset.load(small).is_whole


def test_missing_data_leaves_a_coreset_that_trains_and_samples(whitened: Dataset, tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    original = real_images(whitened, source="cifar10")
    original.save(path, compact=True)
    loaded = pc.Coreset.load(path, data_dir=tmp_path / "empty")
    assert not loaded.is_whole
    assert loaded.transform.kind == "zca"
    assert len(loaded.dataset()) == 20
    samples = pc.sample_posterior(loaded, chains=2, steps=5, samples=1, device="cpu")
    for use in (
        loaded.to_pixels,
        lambda: loaded.show(tmp_path / "c.png"),
        lambda: loaded.transform(whitened.test.images),
        lambda: samples.predict(whitened.test.images),
    ):
        with pytest.raises(InputError, match=r"all training images of 'cifar10'.*data_dir.*bpc data fetch cifar10"):
            use()
    assert not (tmp_path / "c.png").exists()
    again = replace(samples, transform=loaded.restored(whitened).transform).predict(whitened.test.images)
    expected = replace(samples, transform=whitened.transform).predict(whitened.test.images)
    assert torch.equal(again, expected)


def test_a_coreset_without_its_whitening_can_be_saved(small: Path, whitened: Dataset, tmp_path: Path) -> None:
    """What a long construction made of it must not be lost at the end."""
    loaded = pc.Coreset.load(small)
    for name, compact in (("again", True), ("float32", False)):
        loaded.save(tmp_path / name, compact=compact)
        assert document_of(tmp_path / name)["version"] == COMPACT_VERSION
        assert same_tensors(pc.Coreset.load(tmp_path / name).restored(whitened).transform, whitened.transform)
    assert (tmp_path / "again").read_bytes() == small.read_bytes()
    assert load_file(tmp_path / "float32")["images"].dtype == torch.float32


@pytest.mark.parametrize("change", ["one pixel", "one image less", "another order"])
def test_other_training_images_are_refused(change: str, small: Path, whitened: Dataset) -> None:
    images, labels = whitened.train.images.clone(), whitened.train.labels
    if change == "one pixel":
        images[5, 0, 3, 3] += 1
    index = {"one image less": torch.arange(1, len(labels)), "another order": torch.arange(len(labels)).flip(0)}
    chosen = index.get(change, torch.arange(len(labels)))
    other = replace(whitened, train=pc.data.Split(images[chosen], labels[chosen]))
    with pytest.raises(InputError, match="has other training images"):
        pc.Coreset.load(small).restored(other)


def test_a_fit_that_differs_is_refused(
    small: Path, whitened: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = replace(fit_zca(whitened.train.images[:-1]), origin=whitened.transform.origin)
    monkeypatch.setattr("pseudocoresets.data.restoring.fit_zca_once", lambda images, span: wrong)
    with pytest.raises(InputError, match="by more than rounding"):
        pc.Coreset.load(small, data_dir=tmp_path)


def missing_part(transform: InputTransform) -> MissingWhitening:
    record = without_matrices(transform, "digits")
    assert isinstance(record, MissingWhitening)
    return record


def moved(transform: InputTransform, name: str, factor: float, seed: int) -> InputTransform:
    """A matrix or mean whose entries are off by ``factor`` units in the last place, up or down."""
    tensor: Tensor = getattr(transform, name)
    signs = torch.randint(0, 2, tensor.shape, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    units = factor * torch.finfo(torch.float32).eps / 2
    return replace(transform, **{name: (tensor.double() * (1 + units * signs)).float()})


@given(seed=st.integers(0, 10_000), name=st.sampled_from(["whitening", "unwhitening", "whitening_mean"]))
@settings(max_examples=30, deadline=None)
def test_the_probes_allow_rounding_and_nothing_else(seed: int, name: str) -> None:
    """Another machine may round each entry the other way; a change of a few thousandths is another whitening."""
    transform = pc.load_dataset("digits", whiten=True).transform
    record = missing_part(transform)
    assert record.is_met_by(transform)
    assert record.is_met_by(moved(transform, name, 1, seed))
    assert not record.is_met_by(moved(transform, name, 2**16, seed))


def test_the_probes_tell_a_held_out_part_from_all(whitened: Dataset) -> None:
    record = missing_part(whitened.transform)
    assert not record.is_met_by(whitened.holding_out(0.1).transform)
    assert not record.is_met_by(fit_zca(whitened.train.images, epsilon=0.1001))
    assert not record.is_met_by(fit_zca(whitened.train.images[1:]))
    assert not record.is_met_by(replace(whitened.transform, mean=whitened.transform.mean * 1.001))
    assert not record.is_met_by(pc.load_dataset("digits").transform)
    assert not record.is_met_by(fit_zca(whitened.train.images[:, :, :7]))


def test_the_probe_is_the_same_everywhere() -> None:
    """Recorded once: a file's probes would otherwise mean something else on another machine."""
    assert (probe_values(3072)[:4] * 64 + 128).tolist() == PROBE_BYTES
    assert probe_values(3072).std() > 1


# Full files that were written before they said what their whitening was fitted on.


@pytest.mark.parametrize("held_out", [False, True])
def test_whitening_of_unknown_origin_is_recognised(held_out: bool, whitened: Dataset, tmp_path: Path) -> None:
    data = whitened.holding_out() if held_out else whitened
    original = real_images(data)
    unknown = replace(original, transform=replace(original.transform, origin=None))
    with pytest.raises(InputError, match="does not say which images"):
        unknown.save(tmp_path / "c.safetensors", compact=True)
    known = unknown.restored(whitened)
    assert known.transform.origin == original.transform.origin
    known.save(tmp_path / "c.safetensors", compact=True)
    assert same_tensors(pc.Coreset.load(tmp_path / "c.safetensors", data_dir=tmp_path).transform, data.transform)


def test_whitening_of_other_images_is_not_taken_for_known(whitened: Dataset) -> None:
    other = replace(fit_zca(whitened.train.images[1:]), origin=None)
    with pytest.raises(InputError, match="neither on all training images"):
        replace(real_images(whitened), transform=other).restored(whitened)


@pytest.mark.parametrize(
    ("tensors", "document", "sentence"),
    [
        ({"transform.probe_whitened": None}, {}, "record of the whitening is incomplete"),
        ({}, {"whitening": None}, "neither the whitening"),
        ({}, {"whitening": {"fingerprint": 32 * "0"}}, "lacks"),
        ({}, {"whitening": {"fingerprint": "../" + 29 * "0", "epsilon": 0.1, "held_out": []}}, "hexadecimal"),
        ({}, {"whitening": {"fingerprint": 32 * "0", "epsilon": 0.1, "held_out": [3]}}, "list of"),
    ],
)
def test_an_incomplete_record_is_refused(
    tensors: dict[str, None], document: dict[str, Any], sentence: str, small: Path, tmp_path: Path
) -> None:
    found, metadata = read_tensors(small)
    kept = {name: tensor for name, tensor in found.items() if name not in tensors}
    write_tensors(tmp_path / "c.safetensors", kept, metadata | document)
    with pytest.raises(FileFormatError, match=sentence):
        pc.Coreset.load(tmp_path / "c.safetensors")


# The command line.


def test_compact_show_and_evaluate_as_a_user_types_them(bpc: Invoke, whitened: Dataset, tmp_path: Path) -> None:
    """The file of a held-out part, without a cache: each command fits the whitening on the data that it has.

    The images are float16 numbers, so that nothing is rounded and the two files must score the same.
    """
    coreset = real_images(whitened.holding_out())
    replace(coreset, x=coreset.images.half().float()).save(tmp_path / "c.safetensors")
    answer = bpc("compact", "c.safetensors", "s.safetensors", "--json")
    assert answer.exit_code == 0, answer.stderr
    sizes = json.loads(answer.stdout)
    assert sizes["bytes"] == (tmp_path / "s.safetensors").stat().st_size < sizes["bytes_before"]
    assert not pc.Coreset.load("s.safetensors").is_whole
    for name in ("c", "s"):
        shown = bpc("show", f"{name}.safetensors")
        assert shown.exit_code == 0, shown.stderr
    assert Path("c.png").read_bytes() == Path("s.png").read_bytes()
    scores = {}
    for name in ("c", "s"):
        options = ("--protocol", "point", "--sampling-steps", 40, "--chains", 2, "--device", "cpu", "--json")
        judged = bpc("evaluate", f"{name}.safetensors", *options)
        assert judged.exit_code == 0, judged.stderr
        scores[name] = json.loads(judged.stdout)["nll"]["values"]
    assert scores["s"] == scores["c"]


def test_compact_again_is_the_same_file(bpc: Invoke, full: Path, tmp_path: Path) -> None:
    once, twice = tmp_path / "once.safetensors", tmp_path / "twice.safetensors"
    assert "instead of" in bpc("compact", full, once).stdout
    assert bpc("compact", once, twice).exit_code == 0
    assert twice.read_bytes() == once.read_bytes()


def test_compact_recognises_the_whitening_of_an_older_file(bpc: Invoke, full: Path, whitened: Dataset) -> None:
    tensors, document = read_tensors(full)
    del document["whitening"]
    write_tensors(full, tensors, document)
    assert bpc("compact", full, "s.safetensors").exit_code == 0
    assert same_tensors(pc.Coreset.load("s.safetensors", data_dir=".").transform, whitened.transform)


def test_show_without_the_data_says_what_to_do(bpc: Invoke, whitened: Dataset, tmp_path: Path) -> None:
    real_images(whitened, source="cifar10").save(tmp_path / "c.safetensors", compact=True)
    answer = bpc("show", "c.safetensors")
    assert answer.exit_code == 2
    assert "--data-dir" in answer.stderr and "bpc data fetch cifar10" in answer.stderr


def test_evaluate_on_other_images_than_those_of_the_file_is_refused(bpc: Invoke, small: Path, tmp_path: Path) -> None:
    """The digits of another release: the same name and shape, one image changed."""
    tensors, document = read_tensors(small)
    document["whitening"]["fingerprint"] = "f" * 32
    write_tensors(small, tensors, document)
    answer = bpc("evaluate", small, "--device", "cpu")
    assert answer.exit_code == 2
    assert "has other training images" in answer.stderr
