"""Settings of the wrong type are refused in one sentence, whoever gives them."""

from __future__ import annotations

from typing import Any

import pytest

from pseudocoresets.construction.settings import ConstructionSettings
from pseudocoresets.core.errors import InputError
from pseudocoresets.core.settings import build_settings


@pytest.mark.parametrize("value", [[], [1], (1,), {"a": 1}, b"1", {1}])
@pytest.mark.parametrize("name", ["ipc", "iterations", "learning_rate", "optimiser"])
def test_a_collection_is_no_number_and_no_text(name: str, value: Any) -> None:
    """As a file may hold it where a number was."""
    with pytest.raises(InputError, match=f"The option '{name}' of the construction is a"):
        build_settings(ConstructionSettings, {name: value}, "The construction")
