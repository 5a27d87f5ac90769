"""From what a run left behind to the page: each section is one function of the run."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pseudocoresets._io.files import write_text
from pseudocoresets._io.pictures import data_address, data_uri, to_images
from pseudocoresets._report import charts
from pseudocoresets._report.classes import certain_section, class_section
from pseudocoresets._report.findings import findings
from pseudocoresets._report.privacy import audit_section
from pseudocoresets._report.results import average, result_groups, section
from pseudocoresets._report.run_folder import PRIVACY_FOLDER, Run, read_run
from pseudocoresets._report.templates import rendered
from pseudocoresets._report.wording import as_text, count_of, duration, flattened, is_number, number
from pseudocoresets.coreset import CORESET_FILE, Coreset
from pseudocoresets.evaluation.report import method_title
from pseudocoresets.inference.settings import PROTOCOLS

REPORT_FILE = "report.html"
FEW_PER_CLASS = 2
"""Up to so many images per class, several classes stand side by side."""
PIXEL_BUDGET = 2_000_000
"""Pixels shown of one set of images; beyond it, the page shows the first few of each class."""

LEAK = (
    "This protocol leaks the full data into the answer through the experts' parameters, where the chains "
    "start. Its figures say something about the coreset only beside those of the control, which starts from "
    "the same experts."
)
ALONG_TITLE = "Test accuracy of one chain along the construction"
SNIPPET = f"""\
from pseudocoresets.coreset import Coreset
from torch.utils.data import DataLoader
coreset = Coreset.load("{CORESET_FILE}")
loader = DataLoader(coreset.dataset(), batch_size=64, shuffle=True)
inputs = coreset.transform(images)
"""
POSTERIOR = {
    "temperature": "Temperature",
    "prior_scale": "Prior deviation",
    "weights_sum": "Sum of the weights",
    "data_size": "Size of the full data",
    "sampler": "Sampler",
    "step_size": "Step size",
    "steps": "Steps",
    "chains": "Chains",
    "burn_in": "Share of steps before the first sample",
    "samples": "Samples per chain",
    "augment": "Augmented",
    "mixed_kinds": "Each image its own kind of augmentation",
    "augmentation": "Augmentation",
    "schedule": "Schedule of the step size",
    "point_learning_rate": "Learning rate of 'point'",
    "learned_steps": "By the steps that were learned",
    "start_epoch": "Epoch of the expert at the start",
    "start_noise": "Noise on the start",
    "seed": "Seed",
}
OF_PROTOCOL = {"point": ("point_learning_rate", "learned_steps"), "expert": ("start_epoch", "start_noise")}
"""Settings that mean something under one protocol alone."""
STAGES = {"construct": "construction", "along": "accuracy along it"}
DIAGNOSTICS = {
    "r_hat_max": "R-hat, largest",
    "r_hat_median": "R-hat, median",
    "ess_min": "Effective sample size, smallest",
    "ess_median": "Effective sample size, median",
}


def write_report(
    run_folder: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    data_dir: str | os.PathLike[str] | None = None,
) -> Path:
    """Write the page of a run, by default as ``report.html`` in its folder, and return its path.

    Where its images are whitened and the whitening is not in the cache, it is fitted again to the data in ``data_dir``.
    """
    path = Path(run_folder) / REPORT_FILE if out is None else Path(out)
    write_text(path, render(read_run(run_folder, data_dir)))
    return path


def render(run: Run) -> str:
    """The page as text. It makes no outside request: styles, pictures and charts are inside."""
    return rendered(
        "page.html",
        title=f"Pseudo-coreset of {run.coreset.source}",
        summary=_summary(run),
        findings=findings(run),
        about=_about(run),
        numbers=_numbers(run),
        classes=class_section(run),
        certain=certain_section(run),
        facts=_facts(run),
        results=result_groups(run.metrics),
        protocol=_protocol(run.metrics),
        pictures=_pictures(run),
        curves=_curves(run),
        reliability=_reliability(run.metrics),
        diagnostics=_diagnostics(run.metrics),
        posterior=_posterior(run),
        privacy=audit_section(run.folder / PRIVACY_FOLDER),
        configuration=flattened(run.configuration or {}),
        timings=_timings(run.metrics),
        snippet=SNIPPET,
    )


def _summary(run: Run) -> str:
    coreset, metrics = run.coreset, run.metrics
    method = as_text(metrics.get("method", coreset.method))
    labels = " with learned labels" if coreset.labels_learned else ""
    sentence = (
        f"{count_of(len(coreset), 'image')}{labels} by the method '{method}' "
        f"{'stands' if len(coreset) == 1 else 'stand'} in for {coreset.data_size:,} real ones "
        f"of {coreset.source}"
    )
    own, control = average(metrics, "accuracy"), average(section(metrics, "control"), "accuracy")
    if own is None:
        return sentence + "."
    way = "starts from an expert" if metrics.get("protocol") == "expert" else "learns from them alone"
    sentence += f": a {_network(run)} that {way} classifies {100 * own:.1f} % of the test data correctly"
    if control is None:
        return sentence + "."
    return f"{sentence}, against {100 * control:.1f} % from as many random real images."


def _network(run: Run) -> str:
    recorded = run.coreset.network
    return as_text(run.metrics.get("network") or (recorded.name if recorded else "network"))


def _facts(run: Run) -> list[tuple[str, str]]:
    coreset = run.coreset
    channels, height, width = coreset.images.shape[1:]
    images = f"{len(coreset)} of {width} × {height} × {channels}, {number(coreset.images_per_class)} per class"
    size = (run.folder / CORESET_FILE).stat().st_size
    method = as_text(run.metrics.get("method", coreset.method))
    return [
        ("Data set", f"{coreset.source}, {count_of(len(coreset.classes), 'class', 'classes')}"),
        ("Method", method_title(method, coreset.labels_learned, coreset.formation)),
        ("Images", images),
        ("Network", _network(run)),
        ("File", f"{CORESET_FILE}, {size / 1000:,.1f} kB"),
        ("Seed", str(coreset.seed)),
    ]


def _protocol(metrics: Mapping[str, Any]) -> dict[str, str]:
    name = as_text(metrics.get("protocol", "not recorded"))
    return {"name": name, "meaning": PROTOCOLS.get(name, ""), "leak": LEAK if name == "expert" else ""}


def _pictures(run: Run) -> dict[str, Any]:
    coreset, initial = run.coreset, run.initial
    size = coreset.images[0].numel() // coreset.images.shape[1] if len(coreset) else 1
    shown = max(1, PIXEL_BUDGET // (size * len(coreset.classes)))
    learned, before = _class_pictures(coreset, shown), _class_pictures(initial, shown) if initial else None
    rows = [
        {"name": name, "learned": learned[index], "initial": before[index] if before else []}
        for index, name in enumerate(coreset.classes)
    ]
    pixels = coreset.to_pixels()
    clipped = float(((pixels < 0) | (pixels > 1)).float().mean()) if len(coreset) else 0.0
    most = max(coreset.hard_labels.bincount().tolist(), default=0)
    return {
        "rows": rows,
        "has_initial": before is not None,
        "few": most <= FEW_PER_CLASS,
        "clipped": f"{100 * clipped:.1f} %" if clipped else "",
        "cut": f"the first {shown} of up to {most} images of each class" if most > shown else "",
    }


def _class_pictures(coreset: Coreset, shown: int) -> list[list[dict[str, str]]]:
    """For each class its first images, each with its class and weight in words."""
    pixels, labels = coreset.to_pixels(), coreset.hard_labels
    return [
        [
            {"source": data_uri(image), "title": f"Class {name}, weight {weight:,.4g}"}
            for image, weight in zip(
                to_images(pixels[labels == index][:shown]), coreset.weights[labels == index].tolist(), strict=False
            )
        ]
        for index, name in enumerate(coreset.classes)
    ]


def _about(run: Run) -> dict[str, str]:
    """The command and the date, as they were recorded."""
    return {name: as_text(run.about[name]) for name in ("command", "finished") if name in run.about}


def _numbers(run: Run) -> str:
    """The address of a table of every number of the metrics: one line each, its place in the document and its value."""
    lines = io.StringIO()
    writer = csv.writer(lines)
    writer.writerow(["quantity", "value"])
    writer.writerows(_leaves(run.metrics))
    return data_address(lines.getvalue().encode(), "text/csv")


def _leaves(content: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(content, Mapping | list):
        pairs = content.items() if isinstance(content, Mapping) else enumerate(content)
        for key, value in pairs:
            yield from _leaves(value, f"{place}.{key}" if place else str(key))
    elif is_number(content):
        yield place, content


def _curves(run: Run) -> list[dict[str, Any]]:
    energies = [
        charts.log_series("positive phase", "first", run.log, "positive"),
        charts.log_series("negative phase", "second", run.log, "negative"),
    ]
    loss = [charts.log_series("loss", "third", run.log, "loss")]
    drawings = [
        ("Energy of both phases", "energy", energies),
        ("Loss", "loss", loss),
    ]
    along = run.metrics.get("along")
    records = [each for each in along if isinstance(each, Mapping)] if isinstance(along, list) else []
    known = [each for each in records if "iteration" in each]
    drawings.insert(0, (ALONG_TITLE, "accuracy", [charts.log_series("accuracy", "first", known, "accuracy")]))
    return [_curve(title, axis, [line for line in lines if line]) for title, axis, lines in drawings if any(lines)]


def _curve(title: str, axis: str, lines: list[charts.Series]) -> dict[str, Any]:
    ends = "; ".join(f"{line.name} from {number(line.points[0][1])} to {number(line.points[-1][1])}" for line in lines)
    return {"title": title, "chart": charts.curves(title, ends, lines, axis), "ends": ends}


def _reliability(metrics: Mapping[str, Any]) -> dict[str, Any] | None:
    blocks = [
        ("control", "second", section(section(metrics, "control"), "reliability")),
        ("coreset", "first", section(metrics, "reliability")),
        ("calibrated coreset", "third", section(section(metrics, "calibrated"), "reliability")),
    ]
    lines = [charts.reliability_series(name, style, block) for name, style, block in blocks if block]
    lines = [line for line in lines if line.points]
    if not lines:
        return None
    title = "Reliability diagram"
    about = "Accuracy against confidence in bins, for " + " and ".join(line.name for line in lines)
    return {"chart": charts.reliability_diagram(title, about, lines)}


def _diagnostics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    own, control = section(metrics, "diagnostics"), section(section(metrics, "control"), "diagnostics")
    rows = [
        (name, number(control.get(key)), number(own.get(key)))
        for key, name in DIAGNOSTICS.items()
        if key in own or key in control
    ]
    warnings = [("coreset", own.get("warning")), ("control", control.get("warning"))]
    return {"rows": rows, "warnings": [(name, as_text(text)) for name, text in warnings if text]}


def _posterior(run: Run) -> list[tuple[str, str]]:
    recorded = dict(section(run.metrics, "posterior"))
    recorded.setdefault("weights_sum", float(run.coreset.weights.sum()))
    recorded.setdefault("data_size", run.coreset.data_size)
    for protocol, names in OF_PROTOCOL.items():
        for name in names if run.metrics.get("protocol") != protocol else ():
            recorded.pop(name, None)
    named = [(name, as_text(recorded.pop(key))) for key, name in POSTERIOR.items() if key in recorded]
    return named + flattened(recorded)


def _timings(metrics: Mapping[str, Any]) -> list[tuple[str, str]]:
    timings = section(metrics, "timings")
    rows = [(STAGES.get(name, name.replace("_", " ")), duration(seconds)) for name, seconds in timings.items()]
    total = metrics.get("seconds")
    return rows if total is None else [*rows, ("total", duration(total))]
