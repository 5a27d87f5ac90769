"""Units of work in other processes: nothing is lost with a process, nothing is done twice, and what is found stays."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from multiprocessing import Pipe
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest
import torch
from small import TINY, Invoke
from units import attempts, squared, thread_pools

import pseudocoresets as pc
from pseudocoresets._io.files import write_json
from pseudocoresets.core.errors import InputError, WorkerLostError
from pseudocoresets.core.mapping import in_this_process
from pseudocoresets.data import Dataset
from pseudocoresets.sources.experts import Experts
from pseudocoresets.workflows import parallel
from pseudocoresets.workflows.cells import RESULT
from pseudocoresets.workflows.evaluate import chain_groups, sample_plan
from pseudocoresets.workflows.parallel import VISIBLE, cores, devices_named, on_devices, see_only
from pseudocoresets.workflows.place import workplace
from pseudocoresets.workflows.plan import make_plan

MANY_EXPERTS = replace(TINY, expert_count=6)
COMPARE = (*["compare", "--network", "convnet:width=4", "--seeds", "2", "--preset", "tiny.json", "--json"], "--methods")


def test_a_killed_process_costs_its_unit_a_second_try_and_the_others_nothing(tmp_path: Path) -> None:
    asked: list[int] = []

    def numbers() -> Iterator[int]:
        for number in range(6):
            asked.append(number)
            yield number

    with on_devices(["cpu", "cpu"]) as mapper:
        found = mapper(partial(squared, log=tmp_path, killed_once=1), numbers())
        assert next(found) == 0
        assert len(asked) < 6, "items are asked for when somebody is free"
        assert list(found) == [1, 4, 9, 16, 25]
        assert [attempts(tmp_path, number) for number in range(6)] == [1, 2, 1, 1, 1, 1]
        with pytest.raises(InputError, match="not negative"):
            list(mapper(partial(squared, log=tmp_path), [7, -1, 8]))


@pytest.mark.parametrize("asked", [False, True])
def test_a_process_that_nobody_waits_for_ends_without_a_word(asked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command may go, as with a full disk, before or while a unit is computed."""
    monkeypatch.setattr(parallel, "see_only", lambda device: None)
    monkeypatch.setattr(parallel.signal, "signal", lambda *_: None)
    ours, theirs = Pipe()
    if asked:
        ours.send((True, abs))
        ours.send((False, -1))
    ours.close()
    parallel._serve(theirs, "cpu", torch.get_num_threads())


def test_processes_share_the_cores_in_numpy_too() -> None:
    """Its BLAS would have a thread for each core in each of them, and they wait for one another."""
    with on_devices(["cpu", "cpu"]) as mapper:
        for pools in mapper(thread_pools, range(2)):
            assert pools and max(pools) <= max(1, cores() // 2)


def test_a_loss_that_nobody_takes_on_is_an_error() -> None:
    class Lost:
        started = True

        def learn(self, function: Any) -> None: ...
        def give(self, item: Any) -> None: ...
        def dismiss(self) -> None: ...
        def result(self) -> Any:
            raise WorkerLostError("It is gone.")

    class Unlucky:
        def room(self, working: Any) -> bool:
            return not working

        def hire(self, working: Any) -> Lost:
            return Lost()

        def wait(self, working: Any) -> Any:
            return working

    with parallel.spread(Unlucky()) as mapper, pytest.raises(WorkerLostError, match=r"It is gone\. So it went 3 times"):
        list(mapper(abs, [1]))
    with parallel.spread(Unlucky()) as mapper:
        assert list(mapper(abs, [1, 2], lambda item, why: item)) == [1, 2]
    assert "killed, as systems do when memory runs out" in parallel._end(-9)
    assert (parallel._end(-11), parallel._end(1)) == ("was ended by the signal SIGSEGV", "ended with status 1")


def test_a_worker_that_never_gets_a_place_keeps_nobody_waiting() -> None:
    """A crew with room for two, of whom the second one waits for ever, as where another job holds a cluster's cores."""

    class Sitting:
        def __init__(self, number: int) -> None:
            self.started, self.item = number == 0, None

        def learn(self, function: Any) -> None:
            self.function = function

        def give(self, item: Any) -> None:
            self.item = item

        def result(self) -> Any:
            return self.function(self.item)

        def dismiss(self) -> None: ...

    class Crowded:
        def room(self, working: Any) -> bool:
            return len(working) < 2

        def hire(self, working: Any) -> Sitting:
            return Sitting(len(working))

        def wait(self, working: Any) -> Any:
            return [worker for worker in working if worker.started]

    with parallel.spread(Crowded()) as mapper:
        assert list(mapper(abs, [-1, -2, -3])) == [1, 2, 3]


def test_devices_are_named_by_commas_and_one_needs_no_other_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert devices_named("cpu, cpu") == ["cpu", "cpu"]
    with on_devices(["cpu"]) as mapper:
        assert mapper is in_this_process
    with pytest.raises(InputError, match="auto, cpu or cuda"):
        devices_named("cpu,gpu7")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert devices_named("auto") == ["cuda:0", "cuda:1", "cuda:2"]
    with pytest.raises(InputError, match="counted from 0"):
        devices_named("cuda:3")


@pytest.mark.parametrize(
    ("before", "device", "after"),
    [(None, "cuda:2", "2"), ("5,7", "cuda:1", "7"), ("5,7", "cpu", ""), (None, "cuda", "0")],
)
def test_a_process_sees_its_own_device_alone(
    monkeypatch: pytest.MonkeyPatch, before: str | None, device: str, after: str
) -> None:
    monkeypatch.delenv(VISIBLE, raising=False)
    if before is not None:
        monkeypatch.setenv(VISIBLE, before)
    see_only(device)
    assert os.environ[VISIBLE] == after


def test_several_devices_find_what_one_does(bpc: Invoke, tmp_path: Path) -> None:
    write_json(tmp_path / "tiny.json", MANY_EXPERTS.as_json())
    words = [*COMPARE, "cd,random"]
    one, two = (bpc(*words, "--devices", devices, "--out", devices[:4]) for devices in ("cpu", "cpu,cpu"))
    assert two.exit_code == 0, two.output
    assert "coresets: done in" in two.stderr
    scores = [{row["method"]: row["metrics"] for row in json.loads(found.stdout)["rows"]} for found in (one, two)]
    assert scores[0] == scores[1]
    experts = [sorted((tmp_path / name / "experts").glob("expert-*")) for name in ("cpu", "cpu,")]
    assert len(experts[0]) == len(experts[1]) == MANY_EXPERTS.expert_count
    assert all(first.read_bytes() == second.read_bytes() for first, second in zip(*experts, strict=True))
    again = bpc(*words, "--devices", "cpu", "--out", "cpu,")
    assert json.loads(again.stdout) == json.loads(two.stdout)


def test_experts_are_shared_out_and_are_the_same(bpc: Invoke, tmp_path: Path) -> None:
    """In groups that do not depend on who trains them; those that are there already stay."""
    few = ("experts", "--network", "convnet:width=4", "--epochs", 1, "--population", 2, "--json")
    for folder, *more in (["alone"], ["shared", "--devices", "cpu,cpu"]):
        assert json.loads(bpc(*few, "--count", 5, "--out", folder, *more).stdout)["experts"] == 5
    alone, shared = (sorted((tmp_path / folder).glob("expert-*")) for folder in ("alone", "shared"))
    assert [each.read_bytes() for each in shared] == [each.read_bytes() for each in alone]
    before = [each.stat().st_mtime_ns for each in shared]
    again = bpc(*few, "--count", 7, "--out", "shared", "--devices", "cpu,cpu")
    assert json.loads(again.stdout)["experts"] == 7
    assert [each.stat().st_mtime_ns for each in shared] == before


@pytest.mark.parametrize(("protocol", "groups"), [("cold", [2, 1]), ("expert", [3])])
def test_chains_of_one_posterior_are_shared_out(
    coreset: pc.Coreset, digits: Dataset, experts: Experts, protocol: str, groups: list[int]
) -> None:
    """Each group is a run of its own, and all that is sent elsewhere can be; chains from experts stay together."""
    sizes: list[int] = []

    def elsewhere(function: Any, items: Any, lost: Any = None) -> Iterator[Any]:
        for item in items:
            sent, settings = ForkingPickler.loads(ForkingPickler.dumps((function, item)))
            sizes.append(settings.chains)
            yield sent(settings)

    short = {"chains": 3, "steps": 4, "samples": 2}
    plan = make_plan(dataset="digits", method="random", network=str(coreset.network), protocol=protocol, sampling=short)
    samples = sample_plan(plan, coreset, digits, experts, replace(workplace("cpu"), mapper=elsewhere, workers=2))
    assert samples.parameters.shape[:2] == (3, 2)
    alone = [
        pc.sample_posterior(coreset, start=protocol, experts=experts, device="cpu", **asdict(each)).parameters
        for each in chain_groups(plan.sampling, len(groups))
    ]
    assert [len(each) for each in alone] == groups
    assert sizes == (groups if len(groups) > 1 else [])
    assert torch.equal(samples.parameters, torch.cat(alone))
    assert len(samples.parameters[:, -1].unique(dim=0)) == 3
    assert samples.predict(digits.test.images[:2]).shape[-1] == 10


def test_a_full_disk_ends_in_a_sentence_and_finished_units_stay(
    bpc: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_json(tmp_path / "tiny.json", MANY_EXPERTS.as_json())
    words = [*COMPARE, "random", "--out", "out"]
    real = Path.write_text

    def full(path: Path, *text: Any, **options: Any) -> int:
        if path.parent.match("random/seed1"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(path, *text, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        result = bpc(*words)
    assert result.exit_code == 2
    (sentence,) = [line for line in result.stderr.splitlines() if line.startswith("Error:")]
    assert "No space left on device" in sentence
    finished = tmp_path / "out" / "random" / "seed0" / RESULT
    before = finished.stat().st_mtime_ns
    assert not list((tmp_path / "out" / "random" / "seed1").glob("*.json*"))
    assert bpc(*words).exit_code == 0
    assert finished.stat().st_mtime_ns == before
