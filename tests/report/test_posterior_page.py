"""The page of a study: complete, self-contained, and drawn from the coreset that is nearest."""

from __future__ import annotations

import re
from pathlib import Path

from pseudocoresets._report.posterior import nearest_row, pairs_figure, write_posterior_page
from pseudocoresets._report.wording import number
from pseudocoresets.data.tables import load_posterior_data
from pseudocoresets.workflows.study import run_study


def test_the_page_shows_the_study_and_asks_for_nothing(tmp_path: Path) -> None:
    data = load_posterior_data("synthetic", "linear", points=60, dimension=2)
    study = run_study(data, ["moments", "uniform"], [3, 6], draws=60, warmup=60, cache=tmp_path)
    page = write_posterior_page(study, tmp_path)
    text = page.read_text()
    assert text.count('src="data:image/png;base64,') == 2
    assert not re.search(r'(src|href)="(?!data:)', text)
    assert text.count("<tr>") == 1 + 4
    for row in study.rows:
        assert f"<td>{row.made_by}</td><td>{row.size}</td>" in text
        assert row.distances is not None
        assert f"<td>{number(row.distances.pareto_k)}</td>" in text
    assert "Noise floor: two independent runs" in text
    nearest = nearest_row(study)
    assert nearest is not None
    assert nearest.method == "moments"
    assert f"{nearest.size} points by moments" in text
    figure = pairs_figure(study, nearest)
    visible = [axes for axes in figure.axes if axes.get_visible()]
    assert len(visible) == 6
    assert [axes.get_xlabel() for axes in figure.axes[6:]] == ["x0", "x1", "intercept"]
