"""Content has one fingerprint, and whatever changes a result changes it."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pseudocoresets.core.errors import InputError
from pseudocoresets.core.fingerprint import fingerprint

SCALE = 1.0


def uses_a_global(theta: float) -> float:
    return theta * SCALE


def calls_another(theta: float) -> float:
    return uses_a_global(theta) + 1


@dataclass
class Scaled:
    factor: float

    def __call__(self, theta: float) -> float:
        return self.factor * theta


def define(source: str) -> Callable[..., Any]:
    """A user's function ``f``, compiled from text."""
    namespace: dict[str, Any] = {"__name__": "users_module"}
    exec(source, namespace)
    function: Callable[..., Any] = namespace["f"]
    return function


def test_the_same_definition_has_the_same_fingerprint() -> None:
    source = "S = 2\ndef f(x, k=1):\n    def inner(y): return y + S\n    return inner(x) * k"
    assert fingerprint(define(source)) == fingerprint(define(source))


NESTED = "def f(x):\n    def g(y): return y + {}\n    return g(x)"
CLOSURE = "def m(k):\n    def f(x): return x * k\n    return f\nf = m({})"
BOUND = "class A:\n    k = {}\n    def g(self, x): return x * self.k\nf = A().g"
DIFFERENT = {
    "constant": ("def f(x): return x + 1", "def f(x): return x + 2"),
    "default": ("def f(x, k=1): return x * k", "def f(x, k=2): return x * k"),
    "keyword default": ("def f(x, *, k=1): return x * k", "def f(x, *, k=2): return x * k"),
    "global": ("S = 1\ndef f(x): return x * S", "S = 5\ndef f(x): return x * S"),
    "global in a lambda": ("S = 1\ndef f(x): return (lambda: x * S)()", "S = 5\ndef f(x): return (lambda: x * S)()"),
    "nested": (NESTED.format(1), NESTED.format(2)),
    "called": ("def g(x): return x\ndef f(x): return g(x)", "def g(x): return -x\ndef f(x): return g(x)"),
    "attribute": ("import math\ndef f(x): return math.exp(x)", "import math\ndef f(x): return math.log(x)"),
    "closure": (CLOSURE.format(1), CLOSURE.format(2)),
    "bound": (BOUND.format(1), BOUND.format(2)),
}


@pytest.mark.parametrize(("one", "other"), DIFFERENT.values(), ids=DIFFERENT)
def test_functions_that_differ_are_told_apart(one: str, other: str) -> None:
    assert fingerprint(define(one)) != fingerprint(define(other))


def test_a_global_that_changes_is_seen_through_another_function(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint(calls_another)
    monkeypatch.setattr(sys.modules[__name__], "SCALE", 5.0)
    assert fingerprint(calls_another) != before


def test_bound_objects_and_partials_count_by_their_content() -> None:
    assert fingerprint(Scaled(1.0)) != fingerprint(Scaled(2.0))
    assert fingerprint(Scaled(1.0).__call__) != fingerprint(Scaled(2.0).__call__)
    assert fingerprint(functools.partial(pow, 2)) != fingerprint(functools.partial(pow, 3))
    assert fingerprint(Scaled(1.0)) == fingerprint(Scaled(1.0))


def test_tensors_count_by_type_shape_and_bytes() -> None:
    x = torch.arange(6.0)
    assert fingerprint(x) == fingerprint(x.clone())
    changed = [x.view(2, 3), x.double(), x.flip(0), x.bfloat16(), torch.arange(6)]
    assert len({fingerprint(each) for each in [x, *changed]}) == 6
    assert fingerprint(np.arange(3)) != fingerprint(np.arange(3.0))


def test_values_that_hold_themselves_end() -> None:
    loop: list[Any] = [1]
    loop.append(loop)
    assert fingerprint(loop) != fingerprint([1, [1]])


def test_the_hash_is_the_same_in_another_process() -> None:
    values = "({'b': 1, 'a': {3, 1, 2}}, 'x', 2.5)"
    command = f"from pseudocoresets.core.fingerprint import fingerprint; print(fingerprint({values}))"
    answers = [
        subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, env={"PYTHONHASHSEED": seed})
        for seed in ("1", "2")
    ]
    assert {answer.stdout.strip() for answer in answers} == {fingerprint(eval(values))}


def test_what_has_no_content_is_refused() -> None:
    with pytest.raises(InputError, match="no content"):
        fingerprint(object())


nested = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=8,
)


@given(nested, nested)
def test_containers_agree_exactly_when_they_are_written_the_same(one: Any, other: Any) -> None:
    """``repr`` tells 1, True and 1.0 apart, and so do fingerprints; the order of a mapping does not count."""

    def written(value: Any) -> str:
        if isinstance(value, dict):
            return "{" + ",".join(f"{k!r}:{written(v)}" for k, v in sorted(value.items())) + "}"
        return f"[{','.join(map(written, value))}]" if isinstance(value, list) else repr(value)

    assert (fingerprint(one) == fingerprint(other)) == (written(one) == written(other))
