"""Readers of what commands keep beside their results: records, requests, points on the way, and promises of privacy."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import hostile
import torch
from hostile_cases import Reader, Write, texts, writing
from hypothesis import strategies as st

import pseudocoresets as pc
from pseudocoresets._io.files import read_json, read_tensors, write_json
from pseudocoresets._io.schema import ANY_OBJECT
from pseudocoresets._report.reproduction import TABLES, _details
from pseudocoresets._report.run_folder import read_run
from pseudocoresets.data.transforms import InputTransform
from pseudocoresets.dp import Budget, Guarantee, Release
from pseudocoresets.models.networks import build_network
from pseudocoresets.privacy.recipe import Recipe
from pseudocoresets.sources.experts import ExpertSettings, ExpertStore, load_experts
from pseudocoresets.sources.experts.store import PrivateTraining, TrainedOn
from pseudocoresets.workflows.cells import CHECKSUM, FAILURE, RESULT, _checksum
from pseudocoresets.workflows.outputs import require_same_request
from pseudocoresets.workflows.reproduce.cells import Made, ReproductionCell
from pseudocoresets.workflows.reproduce.scale import Scale
from pseudocoresets.workflows.reproduce.tables import failures, lines_of, markdown, read_records
from pseudocoresets.workflows.run import _kept_at
from pseudocoresets.workflows.share import share

HASH = 32 * "0"
GUARANTEE = Guarantee(1.0, 1e-5, "the accountant", 12, (Release("sums", 3.0, 0.1, 20, HASH),))


def record_readers(folder: Path) -> list[Reader]:
    coreset = _coreset()
    coreset.save(folder / "own.safetensors")
    return [
        *_private(folder, coreset),
        *_beside_a_run(folder, coreset),
        *_requests(),
        *_reproduction(folder),
    ]


def _coreset() -> pc.Coreset:
    transform = InputTransform(torch.zeros(1), torch.ones(1))
    images = torch.zeros(2, 1, 3, 3)
    configuration = {"settings": {"ipc": 1, "iterations": 3}, "method": {"steps": 3}}
    return pc.Coreset(
        images, torch.arange(2), torch.ones(2), 12, "mine", "cd", transform, ("a", "b"), configuration=configuration
    )


def _private(folder: Path, coreset: pc.Coreset) -> list[Reader]:
    """A coreset and a store with a guarantee of differential privacy."""
    replace(coreset, guarantee=GUARANTEE, method="dm").save(folder / "private.safetensors")
    network = build_network("mlp:depth=1,width=2", (1, 3, 3), 2)
    training = PrivateTraining(Budget(1.0), 1.0, GUARANTEE)
    chosen = (network, TrainedOn("mine", HASH), ExpertSettings(epochs=2, batch_size=4), training)
    store = ExpertStore.create_or_open(folder / "private store", *chosen)
    store.add(0, torch.zeros(3, network.size))
    description = json.loads((folder / "private store" / "store.json").read_text())

    def use_coreset(path: Path) -> None:
        found = pc.Coreset.load(path)
        str(found.guarantee), repr(found), Recipe.of(found)

    def use_store(path: Path) -> None:
        shutil.copyfile(folder / "private store" / "expert-0000.safetensors", path.with_name("expert-0000.safetensors"))
        store = ExpertStore.create_or_open(path.parent, *chosen)
        str(store.guarantee)
        load_experts(path.parent)

    return [
        Reader(
            "private coreset",
            hostile.tensor_files(read_tensors(folder / "private.safetensors")),
            use_coreset,
            "p.safetensors",
        ),
        Reader("private store.json", texts(description), use_store, "private/store.json"),
    ]


def _beside_a_run(folder: Path, coreset: pc.Coreset) -> list[Reader]:
    block = {"mean": 0.9, "std": 0.1, "values": [0.8, 1.0]}
    metrics = dict.fromkeys(("accuracy", "nll", "ece", "brier"), block) | {"protocol": "cold"}
    metrics["control"] = dict(metrics)

    def whole(path: Path) -> Path:
        """A run folder in which only the file ``path`` is wrong."""
        if path.name != "coreset.safetensors":
            shutil.copyfile(folder / "own.safetensors", path.parent / "coreset.safetensors")
        if path.name != RESULT:
            write_json(path.parent / RESULT, metrics)
        return path.parent

    def use_run(path: Path) -> None:
        run = read_run(whole(path))
        assert run.about is not None and all(each.dim() == 4 for each in run.examples.values())

    def use_card(path: Path) -> None:
        out = path.parent.with_name("shared folder")
        shutil.rmtree(out, ignore_errors=True)
        share(whole(path), out)
        pc.Coreset.load(out)

    points = {"x": coreset.x, "y": coreset.y, "weights": coreset.weights}
    examples = {"most_certain": torch.zeros(2, 1, 3, 3, dtype=torch.uint8)}
    about = {"command": "bpc run", "ended": "2026-01-01T00:00:00", "commit": None}
    return [
        Reader("examples", hostile.tensor_files((examples, {})), use_run, "run3/examples.safetensors"),
        Reader(
            "initial",
            hostile.tensor_files(read_tensors(folder / "own.safetensors")),
            use_run,
            "run4/initial.safetensors",
        ),
        Reader("about.json", texts(about), use_run, "run5/about.json"),
        Reader(
            "shared coreset",
            hostile.tensor_files(read_tensors(folder / "own.safetensors")),
            use_card,
            "run6/coreset.safetensors",
            1,
        ),
        Reader("shared metrics", texts(metrics), use_card, "run7/metrics.json", 1),
        Reader(
            "points on the way",
            hostile.tensor_files((points, {"iteration": 3})),
            lambda path: _kept_at(path, coreset),
            "along/3.safetensors",
        ),
        Reader(
            "recipe",
            hostile.documents(coreset.configuration).map(lambda document: writing(json.dumps(document).encode())),
            lambda path: _use_recipe(coreset, read_json(path, ANY_OBJECT)),
            "configuration.json",
        ),
    ]


def _use_recipe(coreset: pc.Coreset, configuration: dict[str, Any]) -> None:
    """A coreset's record of how it was made, as an audit reads it."""
    recipe = Recipe.of(replace(coreset, configuration=configuration))
    assert {recipe.needs_experts, recipe.is_private} <= {True, False}
    for step in recipe.steps:
        step.gradient()


def _requests() -> list[Reader]:
    """What a second run or comparison at the same place is held against."""
    wanted = {"dataset": "digits", "construction": {"ipc": 1, "learning_rate": 0.1}, "method_options": {"steps": 3}}

    def use(path: Path) -> None:
        require_same_request(path, read_json(path, ANY_OBJECT), wanted, {"construction": {"ipc": 1}, "before": ()})

    return [Reader(name, texts(wanted), use, f"request/{name}.json") for name in ("request", "comparison")]


def _reproduction(folder: Path) -> list[Reader]:
    cells = [
        ReproductionCell(Made("cifar10", 1, "best")),
        ReproductionCell(Made("cifar10", 1, "gm"), test="cost"),
        ReproductionCell(Made("cifar10", 10, "best"), test="attack"),
        ReproductionCell(Made("cifar10", 10, "best"), test="shift"),
    ]
    scores = {name: {"mean": 0.5, "std": 0.0, "values": [0.5]} for name in ("accuracy", "nll", "ece", "brier")}
    scores["ensemble"] = dict.fromkeys(("accuracy", "nll", "ece", "brier"), 0.5)
    documents = [
        {
            "cell": cell.as_json(),
            "plan": {"method": "gm", "method_options": {"matches": 10}},
            "construction": {
                "iterations": 3,
                "peak_memory": 0.5,
                "seconds_per_iteration": 0.1,
                "construct_seconds": 1.0,
            },
            "metrics": scores,
            "shift": {"fog": {"1": scores, "5": scores}},
            "attack": {"autoattack-style": {"8/255": {"accuracy": scores["accuracy"], "ensemble": 0.1}}},
            "seconds": 3.0,
        }
        for cell in cells
    ]
    scale = Scale()

    def use(path: Path) -> None:
        out = path.parents[3]
        records = read_records(out)
        for table in TABLES.values():
            markdown(table, lines_of(table, records, scale))
        for cell, document in records.items():
            _details(cell, document)

    def forged(document: Any) -> Write:
        signed = document | {CHECKSUM: _checksum(document)} if isinstance(document, dict) else document
        return writing(json.dumps(signed).encode())

    wrong = st.one_of([hostile.documents(each).map(forged) for each in documents])
    failure = st.binary(max_size=60).map(writing) | st.sampled_from([b"", b"\n", b"a\nb", b"\xff"]).map(writing)
    return [
        Reader("reproduced cell", wrong, use, f"out/cells/made/cell/{RESULT}", 3),
        Reader("failure.txt", failure, lambda path: failures(path.parents[3]), f"failed/cells/made/cell/{FAILURE}", 3),
    ]
