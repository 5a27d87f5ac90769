"""Files that somebody damaged or forged are refused in one sentence, or read as what they are; nothing else happens."""

from __future__ import annotations

import pytest
from hostile_cases import try_cases
from hostile_readers import readers

CASES = 10_000


def test_wrong_files_of_every_kind_end_in_an_answer_or_one_sentence(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "what the readers set is set back after the test")
    folder = tmp_path_factory.mktemp("hostile")
    found = readers(folder)
    shares = sum(reader.share for reader in found)
    tried = {reader.name: try_cases(reader, folder, CASES * reader.share // shares) for reader in found}
    assert sum(each.cases for each in tried.values()) >= CASES - 10 * len(found)
    refusing = [name for name, each in tried.items() if each.read < each.cases]
    made_anew = {"whitening", "cell", "shadow", "part", "decoded", "failure.txt"}
    assert set(tried) - set(refusing) == made_anew, "only caches are made anew in silence"
