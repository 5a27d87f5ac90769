"""Readers of official formats, on small files of the same format, and the structural checks."""

from __future__ import annotations

import gzip
import hashlib
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat

from pseudocoresets.core.errors import DataUnavailableError, FileFormatError, InputError
from pseudocoresets.data import DATASETS, load_cifar10_c, load_dataset
from pseudocoresets.data.catalogue import DatasetEntry
from pseudocoresets.data.cifar import CIFAR10, CIFAR100
from pseudocoresets.data.cifar10_c import CIFAR10_C
from pseudocoresets.data.mnist import MNIST
from pseudocoresets.data.svhn import SVHN
from pseudocoresets.data.tiny_imagenet import DECODED, TINY_IMAGENET

RANDOM = np.random.default_rng(0)


def small(entry: DatasetEntry, train: int = 20, test: int = 10) -> DatasetEntry:
    """The same set, with fewer images expected."""
    return replace(entry, train_count=train, test_count=test)


def random_images(count: int, *shape: int) -> np.ndarray:
    return RANDOM.integers(0, 256, (count, *shape)).astype(np.uint8)


def idx(array: np.ndarray) -> bytes:
    return np.array([0x800 + array.ndim, *array.shape], ">u4").tobytes() + array.astype(np.uint8).tobytes()


def write_mnist(root: Path, compressed: bool = False) -> dict[str, np.ndarray]:
    folder = root / "MNIST" / "raw"
    folder.mkdir(parents=True)
    arrays = {}
    for stem, count in (("train", 20), ("t10k", 10)):
        arrays[f"{stem}-images-idx3-ubyte"] = random_images(count, 28, 28)
        arrays[f"{stem}-labels-idx1-ubyte"] = np.arange(count) % 10
    for name, array in arrays.items():
        content = idx(array)
        path = folder / (f"{name}.gz" if compressed else name)
        path.write_bytes(gzip.compress(content) if compressed else content)
    return arrays


@pytest.mark.parametrize("compressed", [False, True])
def test_mnist_reads_idx_files_as_they_are(tmp_path: Path, compressed: bool) -> None:
    arrays = write_mnist(tmp_path, compressed)
    assert MNIST.is_present(tmp_path)
    dataset = small(MNIST).load(tmp_path)
    np.testing.assert_array_equal(dataset.train.images[:, 0], arrays["train-images-idx3-ubyte"])
    np.testing.assert_array_equal(dataset.test.labels, arrays["t10k-labels-idx1-ubyte"])
    assert dataset.shape == (1, 28, 28)
    assert dataset.train.labels.dtype == torch.int64
    assert not dataset.flippable
    assert dataset.transform.kind == "normalise"


def test_the_official_count_is_expected(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    with pytest.raises(FileFormatError, match="20 images and 20 labels where mnist has 60000"):
        load_dataset("mnist", tmp_path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: content[:-1], "truncated or damaged"),
        (lambda content: content + b"x", "truncated or damaged"),
        (lambda content: b"PK" + content[2:], "not an IDX file"),
        (lambda content: content[:6], "truncated or damaged"),
        (lambda content: b"", "not an IDX file"),
        (lambda content: idx(random_images(20, 28, 0)), "truncated or damaged"),
        (lambda content: idx(random_images(20, 28, 27)), "shape"),
        (lambda content: idx(random_images(19, 28, 28)), "19 images and 20 labels"),
    ],
)
def test_damaged_idx_files_are_named(tmp_path: Path, damage: Callable[[bytes], bytes], message: str) -> None:
    write_mnist(tmp_path)
    path = tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(FileFormatError, match=message) as caught:
        small(MNIST).load(tmp_path)
    assert str(path) in str(caught.value)


def test_labels_out_of_range_are_refused(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    (tmp_path / "MNIST" / "raw" / "train-labels-idx1-ubyte").write_bytes(idx(np.arange(20)))
    with pytest.raises(FileFormatError, match="labels from 0 to 19 where mnist has 10 classes"):
        small(MNIST).load(tmp_path)


def test_labels_of_two_dimensions_are_refused(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    (tmp_path / "MNIST" / "raw" / "train-labels-idx1-ubyte").write_bytes(idx(np.zeros((20, 2))))
    with pytest.raises(FileFormatError, match=r"labels of shape \(20, 2\)"):
        small(MNIST).load(tmp_path)


def test_a_compressed_file_is_not_unpacked_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pseudocoresets.data.idx.LARGEST_FILE", 1000)
    write_mnist(tmp_path, compressed=True)
    with pytest.raises(FileFormatError, match="there can be 1 to 1,000"):
        small(MNIST).load(tmp_path)


def test_damaged_gzip_is_named(tmp_path: Path) -> None:
    write_mnist(tmp_path, compressed=True)
    path = tmp_path / "MNIST" / "raw" / "t10k-labels-idx1-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(FileFormatError, match="t10k-labels"):
        small(MNIST).load(tmp_path)


def write_cifar(root: Path, entry: DatasetEntry, protocol: int, as_bytes: bool) -> tuple[np.ndarray, np.ndarray]:
    """Batches of 4 images as Python 2 (keys of bytes) or Python 3 would write them; all images and labels, in order."""
    images, labels = [], []
    for index, name in enumerate(entry.files):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        rows, batch_labels = random_images(4, 3072), [(index + step) % 10 for step in range(4)]
        label_key = "fine_labels" if entry.name == "cifar100" else "labels"
        content = {"data": rows, label_key: batch_labels, "coarse_labels": [0] * 4, "filenames": ["a"] * 4}
        if as_bytes:
            content = {key.encode(): value for key, value in content.items()}
        path.write_bytes(pickle.dumps(content, protocol=protocol))
        images.append(rows)
        labels += batch_labels
    return np.concatenate(images).reshape(-1, 3, 32, 32), np.array(labels)


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("as_bytes", [True, False])
@pytest.mark.parametrize("entry", [CIFAR10, CIFAR100], ids=lambda entry: entry.name)
def test_cifar_reads_pickles_as_they_are(tmp_path: Path, entry: DatasetEntry, protocol: int, as_bytes: bool) -> None:
    images, labels = write_cifar(tmp_path, entry, protocol, as_bytes)
    train_count = len(images) - 4
    dataset = small(entry, train_count, 4).load(tmp_path)
    np.testing.assert_array_equal(torch.cat([dataset.train.images, dataset.test.images]), images)
    np.testing.assert_array_equal(torch.cat([dataset.train.labels, dataset.test.labels]), labels)
    assert len(dataset.classes) == (100 if entry is CIFAR100 else 10)


def test_cifar_official_python2_batch(tmp_path: Path) -> None:
    """The opcodes of an official batch, as Python 2 wrote them: byte strings, a Python 2 module name, one memo."""
    pixels = random_images(2, 3072)
    program = (
        b"\x80\x02}q\x01(U\x0bbatch_labelq\x02U\x15training batch 1 of 5q\x03U\x06labelsq\x04]q\x05(K\x06K\x09e"
        b"U\x04dataq\x06cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08K\x00\x85U\x01b\x87Rq\x09"
        b"(K\x01K\x02M\x00\x0c\x86cnumpy\ndtype\nq\x0aU\x02u1K\x00K\x01\x87Rq\x0b(K\x03U\x01|NNNJ\xff\xff\xff\xff"
        b"J\xff\xff\xff\xffK\x00tb\x89T" + (6144).to_bytes(4, "little") + pixels.tobytes() + b"tbu."
    )
    for name in ("cifar-100-python/train", "cifar-100-python/test"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(program)
    dataset = small(CIFAR100, 2, 2).load(tmp_path)
    np.testing.assert_array_equal(dataset.train.images, pixels.reshape(2, 3, 32, 32))
    assert dataset.train.labels.tolist() == [6, 9]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"data": random_images(4, 3071), "labels": [0] * 4}, "rows of 3072 bytes"),
        ({"data": random_images(4, 3072).astype(np.int32), "labels": [0] * 4}, "rows of 3072 bytes"),
        ({"data": random_images(4, 3072), "labels": [0] * 3}, "one label for each of its 4"),
        ({"data": random_images(4, 3072), "labels": [0.5] * 4}, "one label for each of its 4"),
        ({"data": random_images(4, 3072), "labels": [10] * 4}, "labels from 0 to 10"),
        ({"data": random_images(9, 3072), "labels": [0] * 9}, "more than the 20 images"),
        ([1, 2], "not a CIFAR batch"),
    ],
)
def test_wrong_cifar_batches_are_named(tmp_path: Path, content: object, message: str) -> None:
    write_cifar(tmp_path, CIFAR10, 2, True)
    (tmp_path / CIFAR10.files[4]).write_bytes(pickle.dumps(content))
    with pytest.raises(FileFormatError, match=message):
        small(CIFAR10, 20, 4).load(tmp_path)


def test_cifar_whitens_by_default_lazily_and_can_be_told_not_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted = []
    monkeypatch.setattr("pseudocoresets.data.zca_cache.fit_zca", lambda images, **_: fitted.append(images) or "zca")
    monkeypatch.setattr("pseudocoresets.data.zca_cache.SMALLEST_KEPT", 10**9)
    write_cifar(tmp_path, CIFAR10, 2, True)
    dataset = small(CIFAR10, 20, 4).load(tmp_path)
    assert fitted == []
    assert dataset.transform == "zca"
    assert len(fitted) == 1
    assert small(CIFAR10, 20, 4).load(tmp_path, whiten=False).transform.kind == "normalise"


def write_svhn(root: Path, labels: np.ndarray | None = None) -> dict[str, np.ndarray]:
    images = {}
    for split, count in (("train", 20), ("test", 10)):
        images[split] = random_images(count, 32, 32, 3)
        digits = np.arange(count) % 10 + 1 if labels is None else labels
        content = {"X": images[split].transpose(1, 2, 3, 0), "y": digits.astype(np.uint8)[:, None]}
        savemat(root / f"{split}_32x32.mat", content)
    return images


def test_svhn_reads_matlab_files_and_calls_ten_zero(tmp_path: Path) -> None:
    images = write_svhn(tmp_path)
    dataset = small(SVHN).load(tmp_path)
    np.testing.assert_array_equal(dataset.train.images, images["train"].transpose(0, 3, 1, 2))
    assert dataset.test.labels.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]


def test_wrong_svhn_files_are_named(tmp_path: Path) -> None:
    write_svhn(tmp_path)
    (tmp_path / "test_32x32.mat").write_bytes(b"MATLAB 5.0 MAT-file" + bytes(50))
    with pytest.raises(FileFormatError, match=r"test_32x32\.mat"):
        small(SVHN).load(tmp_path)
    savemat(tmp_path / "test_32x32.mat", {"X": np.zeros((3, 3)), "y": np.zeros(3)})
    with pytest.raises(FileFormatError, match="not as uint8"):
        small(SVHN).load(tmp_path)
    savemat(tmp_path / "test_32x32.mat", {"X": np.zeros((3, 3, 3, 3), np.uint8), "y": np.array(["a", "b", "c"])})
    with pytest.raises(FileFormatError, match="y is no array of real numbers"):
        small(SVHN).load(tmp_path)
    savemat(tmp_path / "test_32x32.mat", {"X": np.zeros((3, 3, 3, 3), np.uint8), "y": np.array([1.0, 0.5, 2.0])})
    with pytest.raises(FileFormatError, match="not as whole numbers"):
        small(SVHN).load(tmp_path)


def write_cifar10_c(root: Path, count: int = 4) -> np.ndarray:
    folder = root / "CIFAR-10-C"
    folder.mkdir()
    images = random_images(5 * count, 32, 32, 3)
    np.save(folder / "fog.npy", images)
    np.save(folder / "labels.npy", np.tile(np.arange(count), 5))
    return images


def test_cifar10_c_reads_one_severity(tmp_path: Path) -> None:
    images = write_cifar10_c(tmp_path)
    split = load_cifar10_c(tmp_path, "fog", 2, count=4)
    np.testing.assert_array_equal(split.images, images[4:8].transpose(0, 3, 1, 2))
    assert split.labels.tolist() == [0, 1, 2, 3]


def test_cifar10_c_refuses_what_it_has_not(tmp_path: Path) -> None:
    write_cifar10_c(tmp_path)
    with pytest.raises(InputError, match="no corruption 'smog'"):
        load_cifar10_c(tmp_path, "smog", 2)
    with pytest.raises(InputError, match="from 1 to 5"):
        load_cifar10_c(tmp_path, "fog", 6)
    with pytest.raises(DataUnavailableError, match=r"snow\.npy"):
        load_cifar10_c(tmp_path, "snow", 1)
    with pytest.raises(FileFormatError, match=r"\(20, 32, 32, 3\)"):
        load_cifar10_c(tmp_path, "fog", 1)
    (tmp_path / "CIFAR-10-C" / "snow.npy").write_bytes(pickle.dumps({}))
    with pytest.raises(FileFormatError, match="not a readable"):
        load_cifar10_c(tmp_path, "snow", 1)
    with (tmp_path / "CIFAR-10-C" / "snow.npy").open("wb") as file:
        np.savez(file, np.zeros(3))
    with pytest.raises(FileFormatError, match="archive of arrays"):
        load_cifar10_c(tmp_path, "snow", 1)
    with pytest.raises(InputError, match="95 test sets"):
        CIFAR10_C.load(tmp_path)
    for name in ("cifar10-c?corruption=smog&severity=1", "cifar10-c?severity=1", "mnist?size=3"):
        with pytest.raises(InputError):
            load_dataset(name, tmp_path)


def write_tiny_imagenet(root: Path, sorted_validation: bool) -> None:
    folder = root / "tiny-imagenet-200"
    synsets = ["n02", "n01", "n03"]
    for shade, synset in enumerate(synsets):
        (folder / "train" / synset / "images").mkdir(parents=True)
        for index in range(2):
            image = Image.new("L" if index else "RGB", (64, 64), 80 * shade if index else (80 * shade,) * 3)
            image.save(folder / "train" / synset / "images" / f"{synset}_{index}.JPEG", quality=100)
    lines = []
    for shade, synset in enumerate(synsets):
        inner = folder / "val" / (f"{synset}/images" if sorted_validation else "images")
        inner.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (64, 64), (80 * shade,) * 3).save(inner / f"val_{shade}.JPEG", quality=100)
        lines.append(f"val_{shade}.JPEG\t{synset}\t0\t0\t62\t62")
    if not sorted_validation:
        (folder / "val" / "val_annotations.txt").write_text("\n".join(lines) + "\n")
    (folder / "wnids.txt").write_text("\n".join(synsets))
    (folder / "words.txt").write_text("n01\tgoldfish, Carassius\nn02\tbullfrog\nn03\tboa\nn04\tother\n")


@pytest.mark.parametrize("sorted_validation", [False, True])
def test_tiny_imagenet_reads_its_folder_and_keeps_the_decoded_images(
    tmp_path: Path, sorted_validation: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tiny_imagenet(tmp_path, sorted_validation)
    entry = replace(small(TINY_IMAGENET, 6, 3), classes=("a", "b", "c"))
    dataset = entry.load(tmp_path)
    assert dataset.classes == ("goldfish", "bullfrog", "boa")
    assert dataset.train.labels.tolist() == [0, 0, 1, 1, 2, 2]
    shade_of_label = torch.tensor([80, 0, 160])
    for split in (dataset.train, dataset.test):
        assert torch.equal(split.images.float().mean((1, 2, 3)).round().long(), shade_of_label[split.labels])
    assert (tmp_path / "tiny-imagenet-200" / DECODED).is_file()
    monkeypatch.setattr("pseudocoresets.data.images.decode_images", None)  # a second decoding would fail
    again = entry.load(tmp_path)
    assert torch.equal(again.train.images, dataset.train.images)
    assert torch.equal(again.test.labels, dataset.test.labels)


def test_tiny_imagenet_checks_its_folder(tmp_path: Path) -> None:
    write_tiny_imagenet(tmp_path, False)
    with pytest.raises(FileFormatError, match="names 3 classes where tiny-imagenet has 200"):
        load_dataset("tiny-imagenet", tmp_path)
    entry = replace(small(TINY_IMAGENET, 7, 3), classes=("a", "b", "c"))
    with pytest.raises(FileFormatError, match="6 images and 6 labels where tiny-imagenet has 7"):
        entry.load(tmp_path)


def test_tiny_imagenet_keeps_only_images_that_are_all_there(tmp_path: Path) -> None:
    """Once the missing file is back, the folder is read again."""
    write_tiny_imagenet(tmp_path, False)
    entry = replace(small(TINY_IMAGENET, 6, 3), classes=("a", "b", "c"))
    annotations = tmp_path / "tiny-imagenet-200" / "val" / "val_annotations.txt"
    lines = annotations.read_text()
    annotations.write_text(lines.splitlines()[0])
    with pytest.raises(FileFormatError, match="1 images and 1 labels where tiny-imagenet has 3"):
        entry.load(tmp_path)
    annotations.write_text(lines)
    assert len(entry.load(tmp_path).test) == 3


def test_lists_of_tiny_imagenet_are_text(tmp_path: Path) -> None:
    write_tiny_imagenet(tmp_path, False)
    (tmp_path / "tiny-imagenet-200" / "wnids.txt").write_bytes(b"n01\xff")
    with pytest.raises(FileFormatError, match="is not text in UTF-8"):
        TINY_IMAGENET.load(tmp_path)


def test_the_digits_have_not_changed() -> None:
    """The split is fixed: a run on digits means the same data everywhere."""
    digits = load_dataset("digits")
    assert (len(digits.train), len(digits.test), digits.shape) == (1300, 497, (1, 8, 8))
    content = b"".join(tensor.numpy().tobytes() for tensor in (digits.train.images, digits.train.labels))
    assert hashlib.blake2b(content, digest_size=8).hexdigest() == "95a563dffd2e1532"


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataUnavailableError, match=r"data_batch_1.*bpc data fetch cifar10"):
        load_dataset("cifar10", tmp_path, download=False)
    with pytest.raises(InputError, match="Did you mean 'mnist'"):
        load_dataset("minst", tmp_path)
    with pytest.raises(InputError, match="Only the images of a folder"):
        load_dataset("digits", tmp_path, size=3)


def test_the_catalogue_is_complete() -> None:
    assert list(DATASETS) == [
        "digits", "mnist", "fashion-mnist", "svhn", "cifar10", "cifar100", "tiny-imagenet", "cifar10-c",
    ]  # fmt: skip
    for entry in DATASETS.values():
        assert all(len(source.md5) == 32 and source.size > 0 for source in entry.sources)
        assert all(any(name.startswith(source.gives) for name in entry.files) for source in entry.sources)
        assert len(set(entry.classes)) == len(entry.classes)
