"""Sharing a coreset: the folder, its card, and loading it again from a folder or an address."""

from __future__ import annotations

import functools
import hashlib
import http.server
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small import Invoke

import pseudocoresets as pc
from pseudocoresets.core.errors import DataUnavailableError, InputError
from pseudocoresets.dp import Guarantee, Release
from pseudocoresets.workflows.share import NOT_COVERED, REAL, SYNTHETIC, share


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *words: object) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_address[1]}"
        running.shutdown()
        thread.join()


def test_a_shared_folder_says_all_and_loads_again(
    bpc: Invoke, coreset_file: Path, coreset: pc.Coreset, tmp_path: Path
) -> None:
    result = bpc("share", coreset_file, "--out", "digits", "--json")
    assert result.exit_code == 0, result.stderr
    facts = json.loads(result.stdout)
    file = tmp_path / "digits" / "coreset.safetensors"
    assert facts["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert (tmp_path / "digits" / "SHA256SUMS").read_text() == f"{facts['sha256']}  coreset.safetensors\n"
    card = (tmp_path / "digits" / "README.md").read_text()
    for words in (
        "10 weighted images that stand in for 1,300 of digits",
        "By the method `cd`",
        SYNTHETIC,
        facts["licence"],
    ):
        assert words in card
    assert card.startswith("---\nlicense: ") and (tmp_path / "digits" / "coreset.png").is_file()
    assert torch.equal(pc.Coreset.load(tmp_path / "digits").images, coreset.images)
    again = bpc("share", coreset_file, "--out", "digits")
    assert again.exit_code == 2 and "not empty" in again.stderr


def test_the_card_of_a_private_coreset_has_its_guarantee(coreset: pc.Coreset, tmp_path: Path) -> None:
    promised = Guarantee(1.0, 1e-5, "a test", 1300, (Release("class sums", 3.0),))
    replace(coreset, guarantee=promised).save(tmp_path / "coreset.safetensors")
    own, control = ({"accuracy": {"mean": mean, "std": 0.01}} for mean in (0.5, 0.77))
    figures = {**own, "protocol": "cold", "control": control, "gain": {"accuracy": -0.27}}
    (tmp_path / "metrics.json").write_text(json.dumps(figures))
    (tmp_path / "privacy").mkdir()
    (tmp_path / "privacy" / "audit.json").write_text(json.dumps({"findings": ["All points can be traced."]}))
    share(tmp_path, tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    assert str(promised) in card and SYNTHETIC not in card
    assert "50.0" in card and "77.0" not in card and "traced" not in card and NOT_COVERED in card
    assert json.loads((tmp_path / "out" / "metrics.json").read_text()) == {**own, "protocol": "cold"}


def test_the_card_of_a_run_has_its_figures_and_real_data_are_called_real(coreset: pc.Coreset, tmp_path: Path) -> None:
    replace(coreset, method="random", source="folder:/home/me/secret/pets").save(tmp_path / "coreset.safetensors")
    block = {name: {"mean": 0.5, "std": 0.1} for name in ("accuracy", "nll", "ece", "brier")}
    (tmp_path / "metrics.json").write_text(json.dumps({**block, "protocol": "cold", "control": {}}))
    (tmp_path / "privacy").mkdir()
    (tmp_path / "privacy" / "audit.json").write_text(json.dumps({"findings": ["All points can be traced."]}))
    share(tmp_path, tmp_path / "out", licence="CC0")
    card = (tmp_path / "out" / "README.md").read_text()
    assert REAL in card and "CC0." in card
    assert "`bpc privacy audit` found:\n\n- All points can be traced.\n" in card
    assert "| metric | this coreset | random real images |" in card
    assert "| accuracy % | 50.0 ± 10.0 | not recorded |" in card
    assert "Coreset of pets" in card and "secret" not in card


def test_the_card_s_figures_say_that_labels_were_learned(coreset: pc.Coreset, tmp_path: Path) -> None:
    soft = torch.nn.functional.one_hot(coreset.labels, 10).float()
    replace(coreset, y=soft).save(tmp_path / "coreset.safetensors")
    (tmp_path / "metrics.json").write_text("{}")
    share(tmp_path, tmp_path / "out", licence="CC0")
    assert "| metric | this coreset (labels learned) |" in (tmp_path / "out" / "README.md").read_text()


def test_an_address_needs_the_right_hash(coreset_file: Path, coreset: pc.Coreset, tmp_path: Path, server: str) -> None:
    (tmp_path / "c.safetensors").write_bytes(coreset_file.read_bytes())
    digest = hashlib.sha256(coreset_file.read_bytes()).hexdigest()
    address = f"{server}/c.safetensors"
    with pytest.raises(InputError, match="sha256=HASH"):
        pc.Coreset.load(address)
    with pytest.raises(DataUnavailableError, match="is not used"):
        pc.Coreset.load(f"{address}#sha256={64 * '0'}")
    assert torch.equal(pc.Coreset.load(f"{address}#sha256={digest}").images, coreset.images)
    (tmp_path / "c.safetensors").unlink()
    assert len(pc.Coreset.load(f"{address}#sha256={digest}")) == 10, "the second time it comes from the cache"
    with pytest.raises(DataUnavailableError, match="could not be fetched"):
        pc.Coreset.load(f"{server}/nowhere#sha256={64 * '1'}")


def _killed(*values: object) -> str:
    raise KeyboardInterrupt


def test_a_folder_that_a_killed_process_began_is_finished(
    coreset_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    share(coreset_file, tmp_path / "whole")
    with monkeypatch.context() as killed:
        killed.setattr("pseudocoresets.workflows.share.card", _killed)
        with pytest.raises(KeyboardInterrupt):
            share(coreset_file, tmp_path / "begun")
    share(coreset_file, tmp_path / "begun")
    contents = [{path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("whole", "begun")]
    assert contents[0] == contents[1]
    with pytest.raises(InputError, match="not empty"):
        share(coreset_file, tmp_path / "begun")


def test_a_licence_is_written_as_it_can_be_printed(coreset_file: Path, tmp_path: Path) -> None:
    share(coreset_file, tmp_path / "out", "mine\udcff\n# No")
    assert "mine\\udcff\\n# No." in (tmp_path / "out" / "README.md").read_text().splitlines()
