"""The page of a run: what it says, what it leaves out, and how it looks to a browser."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
import typer
from browser import find_chromium, visit
from hypothesis import example, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from pseudocoresets._cli.report import report
from pseudocoresets._io.files import write_tensors
from pseudocoresets._report import write_report
from pseudocoresets._report.charts import Series, curves, log_series, reliability_diagram, reliability_series, thinned
from pseudocoresets._report.page import SNIPPET
from pseudocoresets.core.errors import FileFormatError, InputError
from pseudocoresets.core.seeds import generator_for
from pseudocoresets.coreset import Coreset
from pseudocoresets.data import load_dataset
from pseudocoresets.privacy.roc import roc

ACCURACIES = [0.90, 0.91, 0.89, 0.92, 0.88]


def block(accuracy: float, nll: float) -> dict[str, Any]:
    confidence = [None] * 9 + [0.63, 0.70, 0.77, 0.83, 0.90, 0.97]
    return {
        "accuracy": {"mean": accuracy, "std": 0.0158, "values": [accuracy + d - 0.9 for d in ACCURACIES]},
        "nll": {"mean": nll, "std": 0.02, "values": [nll] * 5},
        "ece": {"mean": 0.05, "std": 0.01, "values": [0.05] * 5},
        "brier": {"mean": 0.2, "std": 0.01, "values": [0.2] * 5},
        "ensemble": {"accuracy": accuracy + 0.01, "nll": nll - 0.05, "ece": 0.04, "brier": 0.19},
        "reliability": {
            "edges": [i / 15 for i in range(16)],
            "confidence": confidence,
            "accuracy": [None if c is None else c * accuracy for c in confidence],
            "count": [0] * 9 + [10, 12, 20, 40, 90, 325],
        },
        "diagnostics": {
            "r_hat_max": 1.31,
            "r_hat_median": 1.02,
            "ess_min": 9.0,
            "ess_median": 41.5,
            "warning": None,
        },
    }


def metrics_of(protocol: str = "cold") -> dict[str, Any]:
    return {
        "protocol": protocol,
        "method": "cd",
        "dataset": "digits",
        "ipc": 2,
        "network": "convnet",
        **block(0.90, 0.32),
        "posterior": {"temperature": 0.00077, "prior_scale": 1.0, "weights_sum": 1300.0, "data_size": 1300}
        | {"sampler": "langevin", "step_size": 0.01, "steps": 1000, "chains": 5, "samples": 20}
        | {"augmentation": ["crop", "scale"]},
        "control": block(0.75, 0.75),
        "gain": {"accuracy": 0.15},
        "confusion": [[8 if row == column else int(row == 3) for column in range(10)] for row in range(10)],
        "most_certain": [{"index": i, "label": 4, "predicted": 4, "confidence": 0.99} for i in range(3)],
        "least_certain": [{"index": i, "label": 4, "predicted": 9, "confidence": 0.31} for i in range(3)],
        "along": [{"iteration": 100 * i, "accuracy": 0.75 + 0.03 * i} for i in range(6)],
        "seconds": 71.3,
        "timings": {"experts": 22.5, "construct": 30.1},
    }


def coreset_of(noise: float, classes: tuple[str, ...] | None = None) -> Coreset:
    data = load_dataset("digits")
    chosen = torch.cat([(data.train.labels == label).nonzero()[:2, 0] for label in range(10)])
    images = data.transform(data.train.images[chosen])
    images = images + noise * torch.randn(images.shape, generator=generator_for(0, "report test"))
    return Coreset(
        images,
        data.train.labels[chosen],
        torch.full((20,), 65.0),
        1300,
        "digits",
        "cd",
        data.transform,
        classes or data.classes,
        flippable=False,
    )


def write_run(folder: Path, protocol: str = "cold") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    coreset_of(0.3).save(folder / "coreset.safetensors")
    coreset_of(0.0).save(folder / "initial.safetensors")
    coreset_of(0.0).save(folder / "control.safetensors")
    (folder / "metrics.json").write_text(json.dumps(metrics_of(protocol)))
    configuration = {
        "dataset": "digits",
        "construct": {"expert_epochs": 2, "gamma": 50.0, "augment": True, "stop": None},
    }
    (folder / "config.json").write_text(json.dumps(configuration))
    records = [
        {"iteration": i, "loss": 0.2 / (1 + i), "positive": 2 / (1 + i / 9), "negative": 1.8 / (1 + i / 9)}
        for i in range(500)
    ]
    (folder / "log.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "about.json").write_text(json.dumps({"command": "bpc run --ipc 2", "finished": "2026-01-02 03:04"}))
    images = load_dataset("digits").test.images[:3]
    write_tensors(folder / "examples.safetensors", {"most": images, "least": images.clone()}, {})
    return folder


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run")


def change_metrics(folder: Path, **changes: Any) -> None:
    (folder / "metrics.json").write_text(json.dumps(metrics_of() | changes))


def text_of(page: Path) -> str:
    """The words of a page without its tags, in one line."""

    class Words(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.words: list[str] = []

        def handle_data(self, data: str) -> None:
            self.words.append(data)

    parser = Words()
    parser.feed(re.sub(r"<style>.*?</style>", "", page.read_text(encoding="utf-8"), flags=re.DOTALL))
    return " ".join(" ".join(parser.words).split())


def test_the_page_says_what_the_run_found(run_folder: Path) -> None:
    page = write_report(run_folder)
    text = text_of(page)
    assert page == run_folder / "report.html"
    assert "20 images by the method 'cd' stand in for 1,300 real ones of digits" in text
    assert "classifies 90.0 % of the test data correctly, against 75.0 % from as many random real images" in text
    for cell in ("75.0 ± 1.6 %", "90.0 ± 1.6 %", "+15.0 points", "91.0 %", "0.320 ± 0.020", "−0.430"):
        assert cell in text
    assert "over 5 runs" in text
    assert "Temperature 0.00077" in text
    assert "construct.expert_epochs 2" in text
    assert "Construction 30.1 s" in text and "Total 71.3 s" in text
    assert "No disagreement between chains was flagged" in text
    assert "leaks" not in text


def test_the_findings_come_first_and_in_words(run_folder: Path) -> None:
    page = write_report(run_folder)
    text = text_of(page)
    assert text.index("Findings") < text.index("Results") < text.index("Images")
    assert "worth 15.0 points of accuracy over random real ones" in text
    assert "least 3 (47.1 %)" in text, "8 of 17"
    assert "The most frequent mistake: 3 taken for 0, 1 time." in text
    assert "bpc run --ipc 2 ended 2026-01-02 03:04" in text
    assert "9, 31 %, wrong" in text


def test_hovering_tells_class_and_weight_and_every_number_can_be_saved(run_folder: Path) -> None:
    page = write_report(run_folder).read_text(encoding="utf-8")
    assert page.count('title="Class 3, weight 65"') == 4, "two images, before and after"
    (address,) = re.findall(r'href="data:text/csv;base64,([^"]+)"', page)
    lines = base64.b64decode(address).decode().splitlines()
    assert lines[0] == "quantity,value"
    assert {"accuracy.mean,0.9", "control.nll.mean,0.75", "confusion.3.0,1"} <= set(lines)


def test_many_classes_have_their_frequent_mistakes_instead_of_a_matrix(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert 'class="confusion"' in write_report(run_folder).read_text(encoding="utf-8")
    monkeypatch.setattr("pseudocoresets._report.classes.MATRIX_CLASSES", 9)
    page = write_report(run_folder)
    assert 'class="confusion"' not in page.read_text(encoding="utf-8")
    assert "The most frequent mistakes." in text_of(page)


@pytest.mark.parametrize(
    ("changes", "shown", "absent"),
    [
        (
            {"control": block(0.95, 0.1)},
            ("−5.0 points worse", "+0.220 worse", "are better by 5.0 points"),
            "points better",
        ),
        ({"control": block(0.90, 0.3204)}, ("0.0 points same", "0.000 same"), "−0.000"),
        ({"control": {"accuracy": {"mean": 0.7, "values": [0.7] * 25}}}, ("over 5 runs (control: 25)",), "over 25"),
        (
            {"diagnostics": {"r_hat_max": 1.31, "warning": "Run longer."}},
            ("The chains of the coreset disagree. Run longer.",),
            "No disagreement",
        ),
    ],
    ids=["worse", "the same to the last digit", "a control of more runs", "chains that disagree"],
)
def test_what_the_metrics_say_is_said(
    run_folder: Path, changes: dict[str, Any], shown: tuple[str, ...], absent: str
) -> None:
    change_metrics(run_folder, **changes)
    text = text_of(write_report(run_folder))
    assert all(words in text for words in shown)
    assert absent not in text


def test_a_point_estimate_is_not_called_a_sample(tmp_path: Path) -> None:
    text = text_of(write_report(write_run(tmp_path / "run", "point")))
    assert "nothing was sampled" in text and "leaks" not in text


def test_the_expert_protocol_carries_its_warning_beside_the_control(tmp_path: Path) -> None:
    page = write_report(write_run(tmp_path / "run", "expert")).read_text(encoding="utf-8")
    results = page[page.index('id="results"') : page.index('id="pictures"')]
    assert "leaks the full data into the answer through the experts' parameters" in results.replace("&#39;", "'")
    assert "75.0 ± 1.6 %" in results


@pytest.mark.parametrize(("protocol", "named"), [("cold", False), ("expert", True)])
def test_settings_have_words_and_are_those_of_the_protocol(run_folder: Path, protocol: str, named: bool) -> None:
    change_metrics(
        run_folder, protocol=protocol, posterior={"schedule": "cosine", "start_epoch": -1, "start_noise": 0.1}
    )
    text = text_of(write_report(run_folder))
    assert "Schedule of the step size cosine" in text
    assert ("Epoch of the expert at the start" in text, "Noise on the start" in text) == (named, named)
    assert "start_epoch" not in text


def test_an_audit_of_the_run_is_a_section_of_its_page(run_folder: Path) -> None:
    assert 'id="privacy"' not in write_report(run_folder).read_text()
    attack = {"attack": "loss threshold", **roc([0.1, 0.9, 0.5, 0.7], [False, True, False, True]).as_json()}
    names = ("this coreset", "random real images", "training on all data")
    audit = {"dataset": "digits", "method": "cd", "points": 20, "training_images": 1300, "neighbours": []} | {
        "findings": ["The <b>start</b> images can be seen."],
        "membership": [{"of": name, "accuracy": 0.5, "attacks": [attack]} for name in names],
        "recovery": [{"of": "this coreset", "unknown": "It started from noise."}],
    }
    (run_folder / "privacy").mkdir()
    (run_folder / "privacy" / "audit.json").write_text(json.dumps(audit))
    page = write_report(run_folder).read_text()
    assert 'id="privacy"' in page and "The &lt;b&gt;start&lt;/b&gt; images can be seen." in page
    assert "1.000 (1.000 to 1.000)" in page and 'aria-label="True against false positives' in page
    endless = [{**each, "attacks": [attack | {"curve": [[0, 10**400]]}]} for each in audit["membership"]]
    for wrong in ([1], endless):
        (run_folder / "privacy" / "audit.json").write_text(json.dumps(audit | {"membership": wrong}))
        with pytest.raises(FileFormatError, match="is not what an audit wrote; audit again, or remove it"):
            write_report(run_folder)


def test_the_least_run_folder_still_gives_a_page(run_folder: Path) -> None:
    for name in ("config.json", "initial.safetensors", "about.json", "examples.safetensors", "log.jsonl"):
        (run_folder / name).unlink()
    (run_folder / "metrics.json").write_text('{"accuracy": {"mean": 0.5}, "diagnostics": null}')
    text = text_of(write_report(run_folder))
    assert "classifies 50.0 % of the test data correctly." in text
    for note in (
        "no initial images",
        "the run kept no log",
        "No reliability figures",
        "no configuration",
    ):
        assert note in text


@pytest.mark.parametrize("last", ["", '{"iteration": 2, "lo'], ids=["whole", "cut off by a kill"])
def test_a_resumed_log_without_phases_shows_the_loss_alone(run_folder: Path, last: str) -> None:
    """Of an iteration that was repeated, the later record counts."""
    losses = [(0, 4.0), (1, 9.0), (1, 3.0)]
    lines = "".join(json.dumps({"iteration": at, "loss": loss}) + "\n" for at, loss in losses)
    (run_folder / "log.jsonl").write_text(lines + last)
    text = text_of(write_report(run_folder))
    assert "Loss from 4 to 3." in text
    assert "Energy of both phases" not in text


def test_text_from_outside_cannot_become_markup(run_folder: Path) -> None:
    hostile = "<script>alert(1)</script>\"'&"
    names = (hostile, *"123456789")
    coreset = replace(coreset_of(0.3, names), source=hostile, method=hostile)
    coreset.save(run_folder / "coreset.safetensors")
    coreset.save(run_folder / "initial.safetensors")
    change_metrics(run_folder, protocol=hostile, method=hostile, network=hostile, timings={hostile: 1.0})
    (run_folder / "config.json").write_text(json.dumps({hostile: hostile}))
    page = write_report(run_folder)
    assert "<script" not in page.read_text(encoding="utf-8")
    assert hostile in text_of(page)


def test_the_same_run_gives_the_same_bytes(run_folder: Path, tmp_path: Path) -> None:
    first, second = (write_report(run_folder, tmp_path / name) for name in ("a.html", "b/c.html"))
    assert first.read_bytes() == second.read_bytes()


def test_many_large_images_are_cut_to_a_budget(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pseudocoresets._report.page.PIXEL_BUDGET", 64 * 10)
    text = text_of(write_report(run_folder))
    assert "the first 1 of up to 2 images of each class" in text


def test_the_five_lines_work_as_printed(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(SNIPPET.splitlines()) == 5
    monkeypatch.chdir(run_folder)
    names: dict[str, Any] = {"images": load_dataset("digits").test.images}
    exec(SNIPPET, names)
    images, labels = next(iter(names["loader"]))
    assert images.shape == (20, 1, 8, 8) and labels.shape == (20,)
    assert names["inputs"].shape == (497, 1, 8, 8)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("metrics.json", "{", "not valid JSON"),
        ("metrics.json", "[1]", "list where a JSON object should be"),
        ("metrics.json", '{"control": 3}', "int as 'control' where a JSON object"),
        ("metrics.json", '{"reliability": {"count": [1]}}', "equally long lists"),
        ("config.json", "nonsense", "not valid JSON"),
        ("coreset.safetensors", "short", "not a complete safetensors file"),
        ("initial.safetensors", "short", "not a complete safetensors file"),
        ("log.jsonl", "{}\n", "Line 1 of"),
        ("log.jsonl", '{"iteration": 0}\n[]\n', "Line 2 of"),
    ],
)
def test_a_broken_file_is_named_in_one_sentence(run_folder: Path, file: str, content: str, message: str) -> None:
    (run_folder / file).write_text(content)
    with pytest.raises(FileFormatError, match=re.escape(message)):
        write_report(run_folder)
    assert not (run_folder / "report.html").exists()


def test_a_folder_that_is_no_finished_run_is_refused(run_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="There is no run folder"):
        write_report(tmp_path / "nowhere")
    for name in ("metrics.json", "coreset.safetensors"):
        (run_folder / name).rename(tmp_path / name)
        with pytest.raises(FileFormatError, match=f"lacks {name}"):
            write_report(run_folder)
        (tmp_path / name).rename(run_folder / name)


def test_the_command_prints_where_the_page_is(run_folder: Path, tmp_path: Path) -> None:
    application = typer.Typer()
    application.command()(report)
    plain = CliRunner().invoke(application, [str(run_folder)])
    assert plain.output == f"Wrote {run_folder / 'report.html'}\n"
    out = tmp_path / "elsewhere.html"
    machine = CliRunner().invoke(application, [str(run_folder), "--out", str(out), "--json"])
    assert json.loads(machine.output) == {"report": str(out)}
    assert out.read_bytes() == (run_folder / "report.html").read_bytes()


def places(chart: str) -> list[tuple[float, float]]:
    """Where the first curve of a chart lies, in the units of its view box."""
    path = re.search(r'class="curve".*?<path d="([^"]*)"', chart, re.DOTALL)
    assert path is not None
    numbers = [float(text) for text in re.findall(r"-?\d+(?:\.\d+)?(?:e-?\d+)?", path[1])]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


@settings(deadline=None, max_examples=25)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=5))
@example([1e308, -1e308])
@example([5e-324, 1e308])
@example([5e-324, 0.0])
@example([0.0])
def test_a_curve_of_any_finite_values_keeps_their_order_within_the_chart(values: list[float]) -> None:
    chart = curves("Loss", "", [Series("loss", "third", list(enumerate(map(float, values))))], "loss")
    ElementTree.fromstring(str(chart).replace("<svg", '<svg xmlns:xlink="x"', 1))
    assert "inf" not in chart and "nan" not in chart
    curve = places(chart)
    assert all(0 <= x <= 420 and 0 <= y <= 270 for x, y in curve)
    if values[0] > values[-1]:
        assert curve[0][1] <= curve[-1][1]
    elif values[0] < values[-1]:
        assert curve[0][1] >= curve[-1][1]


def test_bins_of_a_reliability_diagram_that_make_no_sense_are_left_out() -> None:
    nonsense = [None, "0.5", 10**400, -1.0, 1e308, float("nan")]
    columns = {"confidence": [0.4, *nonsense, 0.8], "accuracy": [0.5, *nonsense, 0.7], "count": [3, *nonsense, 0]}
    series = reliability_series("coreset", "first", columns)
    assert series.points == [(0.4, 0.5)]
    assert reliability_diagram("Reliability", "", [series]).count('class="curve"') == 2


@pytest.mark.parametrize("value", ["1e308", "-1e308", "5e-324", "1e999", "NaN", "1" * 400, "null", '"x"', "[1]"])
def test_extreme_values_in_files_still_give_a_page(run_folder: Path, value: str) -> None:
    line = f'{{"iteration": %d, "loss": {value}, "positive": 1.0}}\n'
    (run_folder / "log.jsonl").write_text("".join(line % iteration for iteration in range(450)))
    (run_folder / "metrics.json").write_text(
        f'{{"accuracy": {{"mean": {value}, "std": {value}, "values": {value}}}, "seconds": {value}}}'
    )
    (run_folder / "config.json").write_text(f'{{"setting": {value}}}')
    assert "Energy of both phases" in text_of(write_report(run_folder))


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=700))
def test_thinning_keeps_few_points_and_the_range(values: list[float]) -> None:
    points = thinned([(float(x), y) for x, y in enumerate(values)], most=50)
    assert len(points) <= 50
    slack = 1e-9 * max(map(abs, values))
    assert all(min(values) - slack <= y <= max(values) + slack for _, y in points)
    if len(values) <= 50:
        assert [y for _, y in points] == values


def test_values_that_are_not_finite_are_left_out_of_a_curve() -> None:
    log = [{"iteration": i, "loss": value} for i, value in enumerate([1.0, float("nan"), None, 2.0, float("inf")])]
    series = log_series("loss", "third", log, "loss")
    assert series is not None and list(series.points) == [(0.0, 1.0), (3.0, 2.0)]
    assert log_series("loss", "third", log[:2], "loss") is None


LOOK = """(() => {
  const box = e => { const r = e.getBoundingClientRect(); return [r.width, r.height]; };
  return {
    images: [...document.images].map(i => [i.complete, i.naturalWidth, i.naturalHeight, i.alt, ...box(i)]),
    charts: [...document.querySelectorAll('svg')].map(s => [s.getAttribute('aria-label'), ...box(s)]),
    lines: [...document.querySelectorAll('svg .curve')].map(l => box(l)),
    inks: [...document.querySelectorAll('svg .curve path, svg text')].map(e => getComputedStyle(e))
      .map(s => s.stroke == 'none' ? s.fill : s.stroke),
    results: [...document.querySelectorAll('table.results tbody tr')].map(r => r.innerText),
    cells: [...document.querySelectorAll('th')].every(h => h.scope),
    overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    ground: getComputedStyle(document.body).backgroundColor,
    ink: getComputedStyle(document.body).color,
  };
})()"""


def luminance(colour: str) -> float:
    """Relative luminance as the accessibility guidelines define it."""
    channels = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(share * value for share, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(first: str, second: str) -> float:
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.skipif(find_chromium() is None, reason="Chromium is not installed (Debian: apt-get install chromium)")
@pytest.mark.parametrize(("width", "dark"), [(1440, False), (390, True)])
def test_a_browser_shows_table_pictures_and_plots(run_folder: Path, tmp_path: Path, width: int, dark: bool) -> None:
    page = write_report(run_folder)
    seen = visit(page, tmp_path / "profile", LOOK, width, dark)
    look = seen.answer
    assert seen.problems == []
    outside = [url for url in seen.requests if not url.startswith("data:") and url != page.as_uri()]
    assert page.as_uri() in seen.requests and outside == []
    assert len(look["images"]) == 2 * 20 + 2 * 3
    for complete, natural_width, natural_height, alt, *size in look["images"]:
        assert complete and natural_width > 0 and natural_height > 0
        assert alt.startswith("Class ") or "taken for" in alt
        assert min(size) >= 60
    assert [chart[0].split(".")[0] for chart in look["charts"]] == [
        "Test accuracy of one chain along the construction",
        "Energy of both phases",
        "Loss",
        "Reliability diagram",
    ]
    assert all(min(size) > 150 for _, *size in look["charts"])
    assert len(look["lines"]) == 7 and all(max(size) > 50 for size in look["lines"])
    assert all(contrast(ink, look["ground"]) > 3 for ink in look["inks"])
    assert any("Accuracy" in row and "75.0 ± 1.6 %" in row and "+15.0" in row for row in look["results"])
    assert look["cells"]
    assert look["overflow"] <= 0
    assert (luminance(look["ground"]) < 0.1) == dark
    assert contrast(look["ink"], look["ground"]) > 7
    assert seen.screenshot.startswith(b"\x89PNG")


@pytest.mark.skipif(find_chromium() is None, reason="Chromium is not installed (Debian: apt-get install chromium)")
def test_the_look_into_the_browser_notices_what_it_is_for(tmp_path: Path) -> None:
    """Without this, the test above could pass because nothing is ever noticed."""
    page = tmp_path / "broken.html"
    page.write_text('<img src="missing.png"><img src="http://127.0.0.1:9/outside.png">')
    seen = visit(page, tmp_path / "profile", "[...document.images].map(i => i.naturalWidth)")
    assert seen.answer == [0, 0]
    assert "http://127.0.0.1:9/outside.png" in seen.requests
    assert len([problem for problem in seen.problems if problem.startswith("failed to load")]) == 2
