"""``bpc data``: the data sets that can be used, what is in one, and fetching it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pseudocoresets._cli.options import AsJson, DataDir
from pseudocoresets._cli.output import print_json, print_table
from pseudocoresets.core.text import printable

if TYPE_CHECKING:
    from pseudocoresets.data import Dataset, DatasetEntry

SAMPLES_PER_CLASS = 10
CLASSES_SHOWN = 20

Name = Annotated[str, typer.Argument(help="A name of 'bpc data list', or folder:PATH.", show_default=False)]

data = typer.Typer(
    help="Data sets: which there are, what is in one, fetching one.", no_args_is_help=True, add_completion=False
)


@data.command("list")
def list_datasets(data_dir: DataDir = Path("data"), as_json: AsJson = False) -> None:
    """Every data set: shape, classes, counts, size of the download, licence, and whether it is here.

    Example: bpc data list --data-dir data
    """
    from pseudocoresets.data import DATASETS

    facts = [_facts(entry, data_dir) for entry in DATASETS.values()]
    if as_json:
        print_json(facts)
        return
    rows = [
        [
            each["name"],
            " x ".join(map(str, each["shape"])),
            str(each["classes"]),
            f"{each['train']:,}",
            f"{each['test']:,}",
            _megabytes(each["download_bytes"]),
            each["licence"],
            "yes" if each["here"] else "no",
        ]
        for each in facts
    ]
    columns = ("name", "shape", "classes", "train", "test", "download", "licence", "here")
    print_table("Data sets", columns, rows, "Images of your own: folder:PATH, one folder per class.")


@data.command("info")
def info(
    name: Name,
    data_dir: DataDir = Path("data"),
    out: Annotated[
        Path | None,
        typer.Option(help="Where to write the picture. Default: NAME.png in the data folder.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """What is known of a data set; if it is here, also its class balance and a picture of samples.

    Example: bpc data info digits --out digits.png
    """
    from pseudocoresets._io.files import require_writable
    from pseudocoresets.data import load_dataset

    if out is not None:
        require_writable(out)
    facts = _known(name, data_dir)
    if facts["here"] and name != "cifar10-c":
        dataset = load_dataset(name, data_dir, download=False)
        facts |= _measured(dataset)
        facts["picture"] = str(_save_samples(dataset, out or data_dir / f"{_file_stem(name)}.png"))
    elif out is not None:
        load_dataset(name, data_dir, download=False)  # says what is missing, or what to ask for
    if as_json:
        print_json(facts)
    else:
        _print_facts(facts)


@data.command("fetch")
def fetch(name: Name, data_dir: DataDir = Path("data"), as_json: AsJson = False) -> None:
    """Download a data set from its official address; what is already here is kept.

    Example: bpc data fetch mnist --data-dir data
    """
    from pseudocoresets._io.files import require_writable_folder
    from pseudocoresets.core.errors import InputError
    from pseudocoresets.core.progress import for_stream
    from pseudocoresets.data import find_entry

    if name.startswith("folder:"):
        raise InputError("A folder of your own needs no fetching; use it as it is.")
    entry = find_entry(name)
    require_writable_folder(data_dir)
    was_here = entry.is_present(data_dir)
    entry.fetch(data_dir, for_stream())
    if as_json:
        print_json({"name": name, "folder": str(data_dir), "fetched": not was_here})
    else:
        typer.echo(f"{name} {'was already' if was_here else 'is now'} in '{data_dir}'.")


def _known(name: str, data_dir: Path) -> dict[str, Any]:
    """What the catalogue says; a folder of the user's own is always here."""
    from pseudocoresets.data import find_entry

    if name.startswith("folder:"):
        return {"name": name, "here": True}
    return _facts(find_entry(name), data_dir)


def _facts(entry: DatasetEntry, data_dir: Path) -> dict[str, Any]:
    return {
        "name": entry.name,
        "shape": list(entry.shape),
        "classes": len(entry.classes),
        "train": entry.train_count,
        "test": entry.test_count,
        "download_bytes": entry.download_size,
        "licence": entry.licence,
        "here": entry.is_present(data_dir),
        "addresses": [source.addresses[0] for source in entry.sources],
    }


def _measured(dataset: Dataset) -> dict[str, Any]:
    counts = [part.labels.bincount(minlength=len(dataset.classes)).tolist() for part in (dataset.train, dataset.test)]
    return {
        "shape": list(dataset.shape),
        "classes": len(dataset.classes),
        "train": len(dataset.train),
        "test": len(dataset.test),
        "balance": [
            {"class": name, "train": train, "test": test}
            for name, train, test in zip(dataset.classes, *counts, strict=True)
        ],
    }


def _save_samples(dataset: Dataset, path: Path) -> Path:
    """The first training images of each class, one row per class; at most the first classes of many."""
    from pseudocoresets._io.pictures import save_class_rows

    classes = dataset.classes[:CLASSES_SHOWN]
    chosen = [
        index
        for label in range(len(classes))
        for index in (dataset.train.labels == label).nonzero().flatten()[:SAMPLES_PER_CLASS].tolist()
    ]
    save_class_rows(path, dataset.train.images[chosen].float() / 255, dataset.train.labels[chosen], classes)
    return path


def _print_facts(facts: dict[str, Any]) -> None:
    lines = [["shape", " x ".join(map(str, facts["shape"]))]]
    lines += [[key, f"{facts[key]:,}"] for key in ("classes", "train", "test")]
    if "licence" in facts:
        lines += [["licence", facts["licence"]], ["download", _megabytes(facts["download_bytes"])]]
        lines += [["address", address] for address in facts["addresses"]]
    lines.append(["here", "yes" if facts["here"] else f"no ('bpc data fetch {facts['name'].partition('?')[0]}')"])
    if "picture" in facts:
        lines.append(["picture", facts["picture"]])
    typer.echo(printable(facts["name"]))
    for key, value in lines:
        typer.echo(f"  {key:<9} {printable(value)}")
    if "balance" in facts:
        rows = [[each["class"], f"{each['train']:,}", f"{each['test']:,}"] for each in facts["balance"]]
        print_table("Class balance", ("class", "train", "test"), rows)


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size else "none"


def _file_stem(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name).strip("-")
