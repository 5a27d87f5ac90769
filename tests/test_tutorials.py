"""The tutorial notebooks run from top to bottom in a kernel, and show what they promise."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

TUTORIALS = Path(__file__).parent.parent / "docs" / "tutorials"


@pytest.fixture
def executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def execute(name: str) -> list[dict[str, str]]:
        """What the cells of a notebook show, by kind of output."""
        book = nbformat.read(TUTORIALS / name, 4)
        NotebookClient(book, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
        outputs = [output for cell in book.cells if cell.cell_type == "code" for output in cell.outputs]
        return [dict(output.get("data", {"text/plain": output.get("text", "")})) for output in outputs]

    return execute


def test_own_images(executed: Any) -> None:
    shown = executed("own-images.ipynb")
    html = [each.get("text/html", "") for each in shown]
    assert any("<progress" in each and "learning the coreset by cd" in each and "done in" in each for each in html)
    coreset = next(each for each in shown if each["text/plain"].startswith("Coreset("))
    assert '<img src="data:image/png;base64,' in coreset["text/html"]
    assert any(each["text/plain"].startswith("Experts(3 of 12 epochs") for each in shown)
    (report,) = (each for each in shown if each["text/plain"].startswith("EvaluationReport("))
    ours, control = map(float, re.findall(r"<td>([\d.]+) ± ", report["text/html"])[:2])
    assert ours > control, "the coreset is better than random real images"


def test_own_table(executed: Any) -> None:
    shown = executed("own-table.ipynb")
    printed = "".join(each.get("text/plain", "") for each in shown)
    learned, drawn = (float(number) for number in re.findall(r"rows: KL ([\d.]+)", printed))
    assert learned < 0.5 < drawn
    (coreset,) = (each for each in shown if each["text/plain"].startswith("Coreset("))
    assert "<th>weight</th>" in coreset["text/html"] and "and 12 more" in coreset["text/html"]
