"""``bpc data``: list, info and fetch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from pseudocoresets._cli.data import data
from pseudocoresets.core.errors import DataUnavailableError, InputError


def output_of(*arguments: str) -> str:
    result = CliRunner().invoke(data, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_list_shows_every_set_and_whether_it_is_here(tmp_path: Path) -> None:
    (tmp_path / "train_32x32.mat").touch()
    (tmp_path / "test_32x32.mat").touch()
    facts = {each["name"]: each for each in json.loads(output_of("list", "--data-dir", str(tmp_path), "--json"))}
    assert [name for name, each in facts.items() if each["here"]] == ["digits", "svhn"]
    assert facts["cifar10"]["shape"] == [3, 32, 32]
    assert (facts["cifar100"]["classes"], facts["cifar100"]["train"]) == (100, 50_000)
    assert facts["mnist"]["download_bytes"] == 11_594_722
    table = output_of("list", "--data-dir", str(tmp_path))
    for text in ("fashion-mnist", "3 x 64 x 64", "246.3 MB", "CC BY 4.0", "60,000"):
        assert text in table


def test_names_from_outside_are_shown_whole_and_change_no_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    names = ["[red]cat[bold]", "dog\x1b[31m", 150 * "x" + "end"]
    for name in names:
        for number in range(5):
            (tmp_path / "pets" / name).mkdir(parents=True, exist_ok=True)
            Image.new("L", (4, 4)).save(tmp_path / "pets" / name / f"{number}.png")
    shown = output_of("info", "folder:~/pets", "--data-dir", str(tmp_path))
    assert "[red]cat[bold]" in shown
    assert r"dog\x1b[31m" in shown and "\x1b" not in shown
    assert names[2] in shown


def test_info_adds_the_balance_and_a_picture(tmp_path: Path) -> None:
    picture = tmp_path / "digits.png"
    facts = json.loads(output_of("info", "digits", "--out", str(picture), "--json"))
    assert sum(each["train"] for each in facts["balance"]) == 1300
    assert sum(each["test"] for each in facts["balance"]) == 497
    assert facts["picture"] == str(picture)
    with Image.open(picture) as image:
        assert image.width > 10 * 8 and image.height > 10 * 8
    text = output_of("info", "digits", "--data-dir", str(tmp_path))
    assert "Class balance" in text and "1,300" in text
    assert (tmp_path / "digits.png").is_file()


def test_info_of_a_set_that_is_not_here_says_so(tmp_path: Path) -> None:
    text = output_of("info", "cifar10", "--data-dir", str(tmp_path))
    assert "bpc data fetch cifar10" in text and "170.5 MB" in text and "picture" not in text
    with pytest.raises(DataUnavailableError, match="data_batch_1"):
        output_of("info", "cifar10", "--data-dir", str(tmp_path), "--out", str(tmp_path / "c.png"))


def test_info_of_a_folder(tmp_path: Path) -> None:
    for name in ("ant", "bee"):
        (tmp_path / "own" / name).mkdir(parents=True)
        for index in range(5):
            Image.new("RGB", (8, 8), (index, 0, 0)).save(tmp_path / "own" / name / f"{index}.png")
    arguments = ("info", f"folder:{tmp_path / 'own'}?size=4", "--data-dir", str(tmp_path))
    facts = json.loads(output_of(*arguments, "--json"))
    assert facts["shape"] == [3, 4, 4]
    assert facts["balance"] == [{"class": name, "train": 4, "test": 1} for name in ("ant", "bee")]
    assert Path(facts["picture"]).is_file()
    assert "ant" in output_of(*arguments)


def test_fetch_keeps_what_is_here_and_refuses_what_it_cannot_fetch(tmp_path: Path) -> None:
    assert "already" in output_of("fetch", "digits", "--data-dir", str(tmp_path))
    assert json.loads(output_of("fetch", "digits", "--json"))["fetched"] is False
    with pytest.raises(InputError, match="needs no fetching"):
        output_of("fetch", "folder:here")
    with pytest.raises(InputError, match="no data set named"):
        output_of("fetch", "imagenet")
