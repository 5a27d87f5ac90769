"""Readers of data: the files of each format, tables, and folders of images."""

from __future__ import annotations

import gzip
import io
import pickle
import struct
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import hostile
import numpy as np
import torch
from hostile_cases import Reader, damaged
from scipy.io import savemat

from pseudocoresets.core.progress import Silent
from pseudocoresets.data import large
from pseudocoresets.data.cifar import CIFAR10
from pseudocoresets.data.cifar import _read as read_batches
from pseudocoresets.data.cifar10_c import _open
from pseudocoresets.data.idx import read_idx
from pseudocoresets.data.loading import find_entry
from pseudocoresets.data.mnist import _split as read_mnist
from pseudocoresets.data.pickles import read_pickle
from pseudocoresets.data.svhn import SVHN
from pseudocoresets.data.svhn import _read as read_svhn
from pseudocoresets.data.tables import load_posterior_data
from pseudocoresets.data.tiny_imagenet import DECODED, FOLDER, TINY_IMAGENET
from pseudocoresets.workflows.reproduce.corrupted import _read as read_corrupted

ROWS = 40


def data_readers(folder: Path) -> list[Reader]:
    return [*_image_files(), *_tiny_imagenet(folder), *_tables(folder), *_parts(folder)]


def _image_files() -> list[Reader]:
    idx = struct.pack(">HBB3I", 0, 8, 3, 2, 3, 3) + bytes(range(18))
    labels = struct.pack(">HBBI", 0, 8, 1, 2) + bytes([0, 9])
    batch = pickle.dumps({b"data": np.arange(12, dtype=np.uint8).reshape(2, 6), b"labels": [0, 1]}, protocol=2)
    images = (2 * 3 * 3, 3, 2)
    svhn = {"X": np.arange(np.prod(images), dtype=np.uint8).reshape(3, 3, 3, -1)[..., :2], "y": np.array([[10], [1]])}
    small_cifar = replace(CIFAR10, shape=(3, 1, 2))
    small_svhn = replace(SVHN, shape=(3, 3, 3))
    small_mnist = replace(find_entry("mnist"), shape=(1, 3, 3))

    def use_labels(path: Path) -> None:
        beside = path.with_name("images-idx3-ubyte")
        beside.write_bytes(idx)
        read_mnist(small_mnist, beside, path, 2)

    found = [
        Reader("idx", damaged(idx), read_idx, "idx3-ubyte"),
        Reader("idx.gz", damaged(gzip.compress(idx, mtime=0)), read_idx, "idx3-ubyte.gz"),
        Reader("idx labels", damaged(labels), use_labels, "mnist/labels-idx1-ubyte"),
        Reader("pickle", damaged(batch), read_pickle, "data_batch_1"),
        Reader("cifar", damaged(batch), lambda path: read_batches(small_cifar, [path], 2), "data_batch_2"),
        Reader("npy", damaged(_npy()), lambda path: _open(path, (5, 2)), "fog.npy"),
        Reader("corrupted", damaged(_npy()), lambda path: read_corrupted(path, (5, 2)), "fog-1.npy"),
        Reader("folder", damaged(_png()), _read_folder, "images/a/1.png", 1),
    ]
    for packed in (False, True):
        content = io.BytesIO()
        savemat(content, svhn, do_compression=packed)
        name = "packed matlab" if packed else "matlab"
        found.append(
            Reader(name, damaged(content.getvalue()), lambda path: small_svhn.check(read_svhn(path), 2, path), "t.mat")
        )
    return found


def _tiny_imagenet(folder: Path) -> list[Reader]:
    """Two classes of two images; everything but the file that is wrong is whole."""
    synsets = ["n01", "n02"]
    entry = replace(TINY_IMAGENET, shape=(3, 64, 64), classes=("class 0", "class 1"), train_count=2, test_count=2)
    texts = {
        "wnids.txt": b"n02\nn01\n",
        "words.txt": b"n01\tgoldfish, Carassius\nn02\tbull\n",
        "val/val_annotations.txt": b"val_0.JPEG\tn01\t0\t0\t9\t9\nval_1.JPEG\tn02\t0\t0\t9\t9\n",
    }
    whole: dict[str, bytes] = {
        f"{FOLDER}/train/n01/images/a.JPEG": _jpeg(),
        f"{FOLDER}/train/n02/images/b.JPEG": _jpeg(),
        f"{FOLDER}/val/images/val_0.JPEG": _jpeg(),
        f"{FOLDER}/val/images/val_1.JPEG": _jpeg(),
        **{f"{FOLDER}/{name}": content for name, content in texts.items()},
    }
    decoded = {f"{part}_images": torch.zeros(2, 3, 64, 64, dtype=torch.uint8) for part in ("train", "test")}
    decoded |= {f"{part}_labels": torch.tensor([0, 1]) for part in ("train", "test")}

    def use(root: Path, wrong: Path) -> None:
        for name, content in whole.items():
            path = root / name
            if path != wrong:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
        entry.load(root)
        if wrong.name != DECODED:
            (root / FOLDER / DECODED).unlink(missing_ok=True)

    found = []
    for number, (name, content) in enumerate(texts.items()):
        root = folder / f"tiny{number}"
        place = f"tiny{number}/{FOLDER}/{name}"
        found.append(Reader(Path(name).name, damaged(content), partial(use, root), place, 1))
    files = hostile.tensor_files((decoded, {"synsets": synsets}))
    found.append(Reader("decoded", files, partial(use, folder / "tiny9"), f"tiny9/{FOLDER}/{DECODED}", 1))
    return found


def _columns() -> dict[str, Any]:
    x = np.random.default_rng(0).standard_normal((ROWS, 2)).round(3)
    return {"a": x[:, 0], "b": x[:, 1], "y": np.arange(ROWS) % 2}


def _tables(folder: Path) -> list[Reader]:
    import pyarrow
    import pyarrow.parquet

    columns = _columns()
    lines = ["a,b,y", *(f"{a},{b},{y}" for a, b, y in zip(*columns.values(), strict=True))]
    table = ("\n".join(lines) + "\n").encode()
    content = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), content, row_group_size=ROWS // 2)
    parquet = content.getvalue()

    def read(path: Path) -> None:
        load_posterior_data(str(path), "logistic", target="y")

    def read_formula(path: Path) -> None:
        load_posterior_data(str(path), "logistic", formula="y ~ a + C(b > 0)")

    def read_parts(path: Path) -> None:
        data = large.load_large_data(str(path), "logistic", target="y")
        for x, _ in data.rows.batches():
            assert bool(x.isfinite().all())

    def stream(path: Path) -> None:
        for x, y in large.ParquetData(path, "y").batches():
            assert bool(x.isfinite().all() and y.isfinite().all())

    return [
        Reader("csv", damaged(table), read, "t.csv", 3),
        Reader("csv by a formula", damaged(table), read_formula, "f.csv", 1),
        Reader("parquet", damaged(parquet), read, "t.parquet", 3),
        Reader("parquet in parts", damaged(parquet), read_parts, "p.parquet", 3),
        Reader("parquet as a stream", damaged(parquet), stream, "s.parquet", 3),
    ]


def _parts(folder: Path) -> list[Reader]:
    """What passes over a large table keep; a wrong file is made anew."""
    import pyarrow
    import pyarrow.parquet

    source = folder / "whole.parquet"
    pyarrow.parquet.write_table(pyarrow.table(_columns()), source)
    table = large.LargeTable.open(source, "y")
    tensors, about = large._summarised(table, 0)

    def use(path: Path) -> None:
        def check(tensors: Any, document: Any) -> None:
            large._check_summary(table, 0, tensors, document)

        kept, document = large._kept(path.parent, path.stem, lambda: (tensors, about), check)
        assert set(kept) >= set(tensors) and set(document) >= set(about)

    return [Reader("part", hostile.tensor_files((dict(tensors), dict(about))), use, "parts/part.safetensors")]


def _npy() -> bytes:
    content = io.BytesIO()
    np.save(content, np.arange(10, dtype=np.uint8).reshape(5, 2))
    return content.getvalue()


def _image(kind: str, side: int) -> bytes:
    from PIL import Image

    content = io.BytesIO()
    Image.fromarray((np.arange(side * side) % 251).astype(np.uint8).reshape(side, side)).save(content, kind)
    return content.getvalue()


def _png() -> bytes:
    return _image("PNG", 4)


def _jpeg() -> bytes:
    return _image("JPEG", 64)


def _read_folder(path: Path) -> None:
    """The wrong image among three whole ones."""
    for name in ("a/2.png", "b/1.png", "b/2.png"):
        whole = path.parent.parent / name
        whole.parent.mkdir(exist_ok=True)
        whole.write_bytes(_png())
    from pseudocoresets.data.folder import load_folder

    load_folder(path.parent.parent, progress=Silent())
