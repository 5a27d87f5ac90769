"""Every reader of files, with whole files to damage: what a reader makes of a wrong one is an answer or one sentence.

``tests/io/test_hostile_files.py`` tries a few of each, ``benchmarks/fuzz_readers.py`` as many as asked for.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from unittest.mock import patch

import hostile
import torch
from hostile_cases import Reader, texts, writing
from hostile_data import data_readers
from hostile_records import record_readers

import pseudocoresets as pc
from pseudocoresets._io.files import read_tensors, write_json, write_tensors
from pseudocoresets._report import charts
from pseudocoresets._report.page import _summary, _timings
from pseudocoresets._report.privacy import audit_section
from pseudocoresets._report.results import result_groups
from pseudocoresets._report.run_folder import read_run
from pseudocoresets._report.wording import flattened
from pseudocoresets.construction.checkpoint import CheckpointKeeper
from pseudocoresets.construction.learner import Learner
from pseudocoresets.construction.settings import ConstructionSettings
from pseudocoresets.core.parameterisation import Parameterisation
from pseudocoresets.core.points import Points
from pseudocoresets.data.restoring import without_matrices
from pseudocoresets.data.transforms import InputTransform, WhiteningOrigin, fit_zca
from pseudocoresets.data.zca_cache import kept_zca
from pseudocoresets.evaluation.function_space import FORMAT, Predictions
from pseudocoresets.methods import ContrastiveDivergence
from pseudocoresets.models.networks import NetworkSpec, build_network, from_spec
from pseudocoresets.privacy.shadows import _kept as kept_answer
from pseudocoresets.sources.experts import ExpertSettings, ExpertStore, load_experts
from pseudocoresets.sources.experts.store import TrainedOn
from pseudocoresets.sources.reference import _load as load_reference
from pseudocoresets.workflows.audit import audit_findings
from pseudocoresets.workflows.cells import once

HASH = 32 * "0"


def readers(folder: Path) -> list[Reader]:
    """Every reader; whole files are made in ``folder``."""
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    return [
        *_coresets(folder),
        _checkpoint(folder),
        *_stores(folder),
        *_runs(folder),
        *_audits(),
        *_caches(folder),
        Reader("preset", texts(_PRESET), lambda path: pc.preset(path), "preset.json"),
        *data_readers(folder),
        *record_readers(folder),
    ]


def _coresets(folder: Path) -> list[Reader]:
    generator = torch.Generator().manual_seed(0)
    raw = torch.randint(0, 256, (12, 1, 3, 3), generator=generator, dtype=torch.uint8)
    whitening = fit_zca(raw)
    plain = InputTransform(whitening.mean, whitening.std)
    spec = NetworkSpec("mlp", (1, 3, 3), 3, {"depth": 1, "width": 4})
    configuration = {"settings": {"weights": "full", "ipc": 1}, "method": {"steps": 3}}
    shared = {"data_size": 12, "source": "mine", "method": "cd", "classes": ("a", "b", "c"), "network": spec}
    images, weights = torch.randn(3, 1, 3, 3, generator=generator), torch.full((3,), 4.0)
    soft = torch.eye(3)
    wholes = {
        "coreset": pc.Coreset(images, torch.arange(3), weights, transform=plain, configuration=configuration, **shared),
        "whitened coreset": pc.Coreset(images, soft, weights, transform=whitening, **shared),
        "compact coreset": pc.Coreset(
            images, torch.arange(3), weights, transform=without_matrices(whitening, "mine"), **shared
        ),
        "coreset of rows": pc.Coreset(
            torch.randn(4, 2, dtype=torch.float64, generator=generator),
            torch.zeros(4, dtype=torch.float64),
            torch.ones(4, dtype=torch.float64),
            40,
            "table",
            "giga",
            indices=torch.tensor([3, 1, 7, 39]),
        ),
    }
    found = []
    for name, coreset in wholes.items():
        coreset.save(folder / "whole.safetensors")
        wrong = hostile.tensor_files(read_tensors(folder / "whole.safetensors"))
        found.append(Reader(name, wrong, _use_coreset, "c.safetensors", 20))
    return found


def _use_coreset(path: Path) -> None:
    """Read it, and use all that was read."""
    coreset = pc.Coreset.load(path)
    assert len(repr(coreset)) < 10_000
    assert coreset.data_size > 0 and bool((coreset.weights >= 0).all()) and coreset.images_per_class > 0
    if coreset.holds_images:
        assert coreset.hard_labels.max() < len(coreset.classes)
        if coreset.is_whole:
            coreset.to_pixels()
    if coreset.network is not None:
        from_spec(coreset.network)
    coreset.configuration.get("settings", {}).get("weights", "full")
    coreset.save(path.with_name("again.safetensors"))
    pc.Coreset.load(path.with_name("again.safetensors"))


def _checkpoint(folder: Path) -> Reader:
    chosen = ConstructionSettings(iterations=20, optimiser="adam", averaging=0.5, annealing=0.5)
    start = Points(torch.zeros(3, 2), torch.arange(3), torch.ones(3))

    def learner() -> Learner:
        return Learner(Parameterisation(start), ContrastiveDivergence(), chosen, torch.device("cpu"))

    own = learner()
    tensors = {
        "records": torch.zeros(10, 2, dtype=torch.float64),
        **{f"leaves/{name}": tensor for name, tensor in own.state().leaves.items()},
        **{f"averages/{name}": tensor for name, tensor in own.state().averages.items()},
        **{f"optimiser/x/{name}": torch.zeros(3, 2) for name in ("exp_avg", "exp_avg_sq")},
        "optimiser/x/step": torch.tensor(10.0),
        "method/chains": torch.zeros(4, 5),
    }
    tensors |= {f"before annealing.{name}": tensor.clone() for name, tensor in tensors.items()}
    document = {"run": HASH, "iteration": 10, "iterations": 20, "records": ["loss", "positive"]}

    def restore(path: Path) -> None:
        mine = learner()
        CheckpointKeeper(path, 5.0, HASH).restore(mine, chosen)
        mine.history()
        mine.learned_points()

    write_tensors(folder / "whole.checkpoint", tensors, document)
    restore(folder / "whole.checkpoint")
    return Reader("checkpoint", hostile.tensor_files((tensors, document)), restore, "c.checkpoint", 20)


def _stores(folder: Path) -> list[Reader]:
    network = build_network("mlp:depth=1,width=2", (1, 3, 3), 3)
    store = ExpertStore.create_or_open(
        folder / "store", network, TrainedOn("mine", HASH), ExpertSettings(epochs=2, batch_size=4)
    )
    store.add(0, torch.zeros(3, network.size))
    description = (folder / "store" / "store.json").read_text()
    expert = (folder / "store" / "expert-0000.safetensors").read_bytes()

    def use(path: Path) -> None:
        beside = path.with_name("expert-0000.safetensors" if path.name == "store.json" else "store.json")
        if path.name == "store.json":
            beside.write_bytes(expert)
        else:
            beside.write_text(description)
        experts = load_experts(path.parent)
        experts.snapshot(0, -1)
        network.unflatten(experts.snapshot(0, 0))

    files = hostile.tensor_files(read_tensors(folder / "store" / "expert-0000.safetensors"))
    return [
        Reader("store.json", texts(json.loads(description)), use, "store/store.json"),
        Reader("expert", files, use, "store/expert-0000.safetensors"),
    ]


def _runs(folder: Path) -> list[Reader]:
    block = {"mean": 0.9, "std": 0.1, "values": [0.8, 1.0]}
    metrics = dict.fromkeys(("accuracy", "nll", "ece", "brier"), block) | {
        "ensemble": {"accuracy": 0.9, "nll": 0.3, "ece": 0.1, "brier": 0.1},
        "reliability": {"edges": [0, 1], "confidence": [0.5], "accuracy": [0.5], "count": [3]},
        "posterior": {"sampler": "langevin", "chains": 5},
        "diagnostics": {"r_hat_max": 1.0, "warning": None},
        "timings": {"experts": 1.0},
        "calibrated": {"power": 1.2, "images": 50, "ensemble": {"accuracy": 0.9, "nll": 0.3, "ece": 0.1, "brier": 0.1}},
        "seconds": 2.0,
        "method": "cd",
        "protocol": "cold",
    }
    metrics["control"] = dict(metrics)

    def use(path: Path) -> None:
        (path.parent / "coreset.safetensors").write_bytes((folder / "whole image.safetensors").read_bytes())
        if path.name != "metrics.json":
            write_json(path.parent / "metrics.json", metrics)
        run = read_run(path.parent)
        _summary(run), result_groups(run.metrics), _timings(run.metrics), flattened(run.configuration or {})

    tensors, document = read_tensors(_image_coreset(folder))
    write_tensors(folder / "whole image.safetensors", tensors, document)
    record = {"iteration": 3, "loss": 0.5, "positive": 1.0}
    lines = hostile.texts(record).map(lambda content: writing(content.replace(b"\n", b" ") + b"\n"))
    return [
        Reader("metrics.json", texts(metrics), use, "run/metrics.json"),
        Reader("config.json", texts({"settings": {"a": [1, {"b": None}]}}), use, "run1/config.json"),
        Reader("log.jsonl", lines, use, "run2/log.jsonl"),
    ]


def _audits() -> list[Reader]:
    share = {"value": 0.5, "low": 0.4, "high": 0.6}
    attack = {"attack": "loss threshold", "auc": share, "tpr_at": [share, share], "curve": [[0.0, 0.0], [1.0, 1.0]]}
    near = {"median_distance": 1.0, "median_distance_held_out": 1.0, "rank_test_p": 0.5}
    near |= {"nearest_is_training": share, "nearest_is_training_expected": 0.5}
    names = ("this coreset", "random real images", "training on all data")
    audit = {
        "dataset": "mine",
        "method": "cd",
        "points": 2,
        "training_images": 10,
        "findings": ["Nothing."],
        "membership": [{"of": name, "accuracy": 0.9, "attacks": [attack]} for name in names],
        "neighbours": [{"of": names[0], "space": "pixels", **near}],
        "recovery": [{"of": names[0], "unknown": "nothing is known"}],
    }

    def use_audit(path: Path) -> None:
        audit_findings(path.parent)
        with patch.object(charts, "roc_curves", lambda *values: ""):  # drawing takes a third of a second
            audit_section(path.parent)

    def use_shadow(path: Path) -> None:
        found = kept_answer(path, HASH)
        assert found is None or (found.ndim == 1 and bool(found.isfinite().all()))

    predictions = ({"probabilities": torch.full((4, 2), 0.5)}, {"format": FORMAT, "version": 1, "inputs": HASH})
    predictions[1]["about"] = {"sampler": "langevin"}
    shadow = ({"answer": torch.zeros(3, dtype=torch.float64)}, {"identity": HASH, "shadow": 0, "way": "coreset"})
    return [
        Reader("audit.json", texts(audit), use_audit, "privacy/audit.json"),
        Reader("shadow", hostile.tensor_files(shadow), use_shadow, "s.safetensors"),
        Reader("predictions", hostile.tensor_files(predictions), Predictions.load, "p.safetensors"),
    ]


def _image_coreset(folder: Path) -> Path:
    transform = InputTransform(torch.zeros(1), torch.ones(1))
    images = torch.zeros(2, 1, 3, 3)
    coreset = pc.Coreset(images, torch.arange(2), torch.ones(2), 10, "mine", "cd", transform, ("a", "b"))
    coreset.save(folder / "image.safetensors")
    return folder / "image.safetensors"


def _caches(folder: Path) -> list[Reader]:
    origin = WhiteningOrigin(HASH)
    whitening = fit_zca(torch.arange(18, dtype=torch.uint8).view(2, 1, 3, 3))
    summary = {"exact": False, "r_hat": 1.0, "ess": 9.0, "seconds": 1.0, "seconds_per_draw": 0.1, "divergences": 0}
    summary["modes"] = 1
    draws = torch.randn(2, 3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    eye = torch.eye(2, dtype=torch.float64)
    reference = {"parameters": draws, "mean": eye[0].clone(), "covariance": eye}

    def use_reference(path: Path) -> None:
        run = load_reference(path)
        run.summary(), run.draws.mean(), run.gaussian.factor

    def use_whitening(path: Path) -> None:
        found = kept_zca(origin)
        assert found is None or found.to_pixels(torch.zeros(1, 1, 3, 3)).isfinite().all()

    def use_cell(path: Path) -> None:
        assert once(path.parent, {"a": 1}, lambda: {"x": 1})["x"] == 1

    once(folder / "cell", {"a": 1}, lambda: {"x": 1})
    cell = json.loads((folder / "cell" / "metrics.json").read_text())
    return [
        Reader("reference", hostile.tensor_files((reference, summary)), use_reference, "r.safetensors"),
        Reader(
            "whitening",
            hostile.tensor_files((whitening.tensors(), {"format": 1, "epsilon": 0.1})),
            use_whitening,
            f"cache/pseudocoresets/zca-{HASH}.safetensors",
        ),
        Reader("cell", texts(cell), use_cell, "cell/metrics.json"),
    ]


_PRESET = {
    "when": {"dataset": ["digits"], "ipc": [1, None]},
    "expert_count": 3,
    "construction": {"iterations": 10, "learning_rate": {"per_ipc": 2}},
    "methods": {"cd": {"steps": 3}},
    "before": {"bptt": [{"method": "wasserstein", "options": {}, "learning": {}}]},
    "default_method": "cd",
}
