"""Normalisation and ZCA whitening, fitted, applied, inverted, stored."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from pseudocoresets._io.files import read_tensors, write_tensors
from pseudocoresets.core.errors import FileFormatError, InputError
from pseudocoresets.data import InputTransform, fit_normalisation, fit_zca
from pseudocoresets.data import zca_cache as cache
from pseudocoresets.data.transforms import ZCA_EPSILON

SINGLE = float(torch.finfo(torch.float32).eps)


def smooth_images(count: int, channels: int = 3, side: int = 8, seed: int = 0) -> Tensor:
    """Correlated neighbours, as in photographs, so that whitening is ill-conditioned."""
    noise = np.random.default_rng(seed).normal(size=(count, channels, side, side))
    smooth = noise.cumsum(2).cumsum(3) + noise.mean((1, 2, 3), keepdims=True) * 40
    scaled = (smooth - smooth.min()) / (smooth.max() - smooth.min())
    return torch.from_numpy((255 * scaled).astype(np.uint8))


IMAGES = smooth_images(700)


def numpy_zca(images: Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean, whitening matrix and whitened images, straight from the definition, in float64."""
    pixels = images.double().numpy() / 255
    normalised = (pixels - pixels.mean((0, 2, 3), keepdims=True)) / pixels.std((0, 2, 3), keepdims=True)
    flat = normalised.reshape(len(images), -1)
    covariance = np.cov(flat, rowvar=False)
    values, vectors = np.linalg.eigh(covariance)
    whitening = vectors @ np.diag(1 / np.sqrt(values.clip(0) + ZCA_EPSILON)) @ vectors.T
    return flat.mean(0), whitening, (flat - flat.mean(0)) @ whitening


def test_normalisation_is_the_mean_and_deviation_of_each_channel() -> None:
    pixels = IMAGES.double() / 255
    transform = fit_normalisation(IMAGES)
    torch.testing.assert_close(transform.mean.double(), pixels.mean((0, 2, 3)), rtol=4 * SINGLE, atol=0)
    expected = pixels.var((0, 2, 3), correction=0).sqrt()
    torch.testing.assert_close(transform.std.double(), expected, rtol=4 * SINGLE, atol=0)


def test_a_channel_that_never_varies_is_only_centred() -> None:
    images = torch.full((5, 1, 3, 3), 100, dtype=torch.uint8)
    transform = fit_normalisation(images)
    assert transform.std.item() == 1
    assert transform(images).abs().max() <= SINGLE
    assert transform(images + 51).mean().item() == pytest.approx(0.2, abs=2 * SINGLE)


@pytest.mark.parametrize("chunk", [64, 4096])
def test_zca_agrees_with_its_definition(chunk: int) -> None:
    transform = fit_zca(IMAGES, chunk=chunk)
    mean, whitening, whitened = numpy_zca(IMAGES)
    assert transform.whitening is not None and transform.whitening_mean is not None
    # The mean and deviation of the channels are rounded to float32 before the fit, hence relative errors of that order,
    # which the smallest eigenvalues (of order epsilon) cannot amplify beyond the norm of the covariance over epsilon.
    amplification = np.linalg.norm(np.linalg.inv(whitening), 2) ** 2 / ZCA_EPSILON
    bound = 4 * SINGLE * amplification * np.abs(whitening).max()
    np.testing.assert_allclose(transform.whitening.numpy(), whitening, rtol=0, atol=bound)
    normalised = transform.std.min().item(), np.abs(whitened @ np.linalg.inv(whitening)) + np.abs(mean)
    off = 4 * SINGLE * (1 / normalised[0] + normalised[1].max())
    np.testing.assert_allclose(transform.whitening_mean.numpy(), mean, rtol=0, atol=off)
    sums = normalised[1].sum(1).max() * bound + np.abs(whitening).sum(1).max() * off
    np.testing.assert_allclose(transform(IMAGES).flatten(1).numpy(), whitened, rtol=0, atol=sums)


def test_whitening_is_the_inverse_root_of_the_covariance_with_epsilon() -> None:
    """Covariance of the outputs: lambda / (lambda + eps) along each eigenvector, so at most 1."""
    transform = fit_zca(IMAGES)
    outputs = transform(IMAGES).flatten(1).double()
    spectrum = torch.linalg.eigvalsh(torch.cov(outputs.T))
    normalised = fit_normalisation(IMAGES)(IMAGES).flatten(1).double()
    eigenvalues = torch.linalg.eigvalsh(torch.cov(normalised.T))
    # W is rounded to float32, which the largest eigenvalue of the covariance amplifies where 1 / W^2 is near epsilon.
    bound = 4 * SINGLE * (eigenvalues.max() / ZCA_EPSILON).item()
    assert bound < 0.01
    torch.testing.assert_close(spectrum, eigenvalues / (eigenvalues + ZCA_EPSILON), rtol=0, atol=bound)


def test_pixels_come_back_to_float32_rounding() -> None:
    """Inputs are rounded to float32, and W^-1 amplifies that by at most its norm; its own rounding adds as much."""
    transform = fit_zca(IMAGES)
    assert transform.unwhitening is not None
    inputs = transform(IMAGES)
    largest = inputs.flatten(1).norm(dim=1).max().item()
    norm = torch.linalg.matrix_norm(transform.unwhitening.double(), 2).item()
    bound = 2 * SINGLE * norm * largest * transform.std.max().item()
    error = (transform.to_pixels(inputs) - IMAGES.float() / 255).abs().max().item()
    assert error <= bound < 0.5 / 255
    assert torch.equal((transform.to_pixels(inputs) * 255).round().to(torch.uint8), IMAGES)


@pytest.mark.parametrize("fit", [fit_normalisation, fit_zca])
def test_one_image_a_batch_and_bytes_or_fractions_agree(fit: object) -> None:
    transform = fit(IMAGES)  # type: ignore[operator]
    whole = transform(IMAGES[:5])
    assert whole.dtype == torch.float32
    torch.testing.assert_close(transform(IMAGES[3]), whole[3])
    torch.testing.assert_close(transform(IMAGES[:5].float() / 255), whole)
    torch.testing.assert_close(transform.to_pixels(whole[3]), IMAGES[3].float() / 255)


def test_many_images_are_whitened_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    transform = fit_zca(IMAGES)
    whole = transform(IMAGES)
    monkeypatch.setattr("pseudocoresets.data.transforms.WHITENING_CHUNK", 33)
    torch.testing.assert_close(transform(IMAGES), whole)


def test_autocast_does_not_spoil_the_way_back() -> None:
    transform = fit_zca(IMAGES)
    with torch.autocast("cpu", torch.bfloat16):
        back = transform.to_pixels(transform(IMAGES[:20]))
    assert torch.equal((back * 255).round().to(torch.uint8), IMAGES[:20])


@pytest.mark.parametrize("fit", [fit_normalisation, fit_zca])
def test_a_file_gives_the_same_transform_back(tmp_path: Path, fit: object) -> None:
    transform = fit(IMAGES)  # type: ignore[operator]
    write_tensors(tmp_path / "t.safetensors", transform.tensors(), {})
    restored = InputTransform.from_tensors(read_tensors(tmp_path / "t.safetensors")[0])
    assert restored.kind == transform.kind
    assert torch.equal(restored(IMAGES[:9]), transform(IMAGES[:9]))
    assert torch.equal(restored.to_pixels(transform(IMAGES[:9])), transform.to_pixels(transform(IMAGES[:9])))


def test_incomplete_files_are_refused() -> None:
    tensors = fit_zca(IMAGES).tensors()
    for missing in tensors:
        with pytest.raises(FileFormatError, match="incomplete"):
            InputTransform.from_tensors({name: tensor for name, tensor in tensors.items() if name != missing})


@pytest.mark.parametrize("shape", [(2, 1, 8, 8), (2, 3, 9, 9), (8, 8)])
def test_images_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    transform = fit_zca(IMAGES)
    for apply in (transform, transform.to_pixels):
        with pytest.raises(InputError, match="3 channels"):
            apply(torch.zeros(shape))


def test_pixels_out_of_range_are_refused() -> None:
    transform = fit_normalisation(IMAGES)
    for images in (IMAGES.float(), IMAGES.float() - 1, torch.full((1, 3, 8, 8), torch.nan), IMAGES.int()):
        with pytest.raises(InputError):
            transform(images)


def test_a_large_whitening_is_kept_for_the_next_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cache, "SMALLEST_KEPT", 10)
    fits = []
    monkeypatch.setattr(cache, "fit_zca", lambda images, **options: fits.append(images) or fit_zca(images, **options))
    first = cache.fit_zca_once(IMAGES)
    again = cache.fit_zca_once(IMAGES.clone())
    assert len(fits) == 1
    assert torch.equal(again(IMAGES), first(IMAGES))
    cache.fit_zca_once(IMAGES[1:])
    assert len(fits) == 2
    for path in cache.cache_folder().iterdir():
        path.write_bytes(path.read_bytes()[:100])
    assert torch.equal(cache.fit_zca_once(IMAGES)(IMAGES), first(IMAGES))
    assert len(fits) == 3


def test_a_cache_that_cannot_be_written_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("no folder can be made here")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(cache, "SMALLEST_KEPT", 10)
    assert cache.fit_zca_once(IMAGES).kind == "zca"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_device_fits_the_same_whitening() -> None:
    on_device, on_host = fit_zca(IMAGES, device="cuda"), fit_zca(IMAGES)
    torch.testing.assert_close(on_device(IMAGES), on_host(IMAGES), rtol=1e-4, atol=1e-4)
    inputs = on_device.to("cuda")(IMAGES.cuda())
    assert torch.equal((on_device.to_pixels(inputs) * 255).round().to(torch.uint8).cpu(), IMAGES)
