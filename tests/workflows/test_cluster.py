"""A Ray cluster of two nodes, of which one dies in the middle, then the head: nothing that was finished is lost."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from small import Invoke
from units import attempts, squared

from pseudocoresets.core.errors import InputError, WorkerLostError
from pseudocoresets.data.large import LargeRows, _part_sum, load_large_data
from pseudocoresets.sources.large import large_fit
from pseudocoresets.workflows import cluster as cluster_module
from pseudocoresets.workflows.cluster import on_ray, workforce
from tables import slow_moments, small_parts, write_parts

pytest.importorskip("ray", reason="the extra 'ray' is not installed")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head and a node with one core each, whose workers find what tests import."""
    from ray.cluster_utils import Cluster

    small = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        patch.setenv("RAY_worker_niceness", "0")
        found = Cluster(initialize_head=True, head_node_args={**small, "include_dashboard": False})
        found.add_node(**small)
    yield found
    found.shutdown()


def test_a_node_that_dies_in_the_middle_costs_nothing_but_time(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What Ray has to say of it stays out of standard output, where a command prints its JSON."""
    small_parts(monkeypatch)
    folder = str(write_parts(tmp_path / "table"))
    here = load_large_data(folder, target="y")
    with on_ray(cluster.address) as mapper:
        there = load_large_data(folder, target="y", mapper=mapper, store=tmp_path / "store")
        assert isinstance(here.rows, LargeRows) and isinstance(there.rows, LargeRows)
        assert there.rows.fingerprint == here.rows.fingerprint
        work = partial(_part_sum, there.rows.reader, slow_moments, tmp_path / "store")
        terms = mapper(work, range(len(there.rows.reader.table.parts)))
        first = next(terms)
        cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
        found = [first, *terms]
        expected = [_part_sum(here.rows.reader, slow_moments, None, index) for index in range(6)]
        for (mine, _), (theirs, _) in zip(expected, found, strict=True):
            assert all(torch.equal(*pair) for pair in zip(mine, theirs, strict=True))
        distributed, alone = (large_fit(data.model, data.rows).gaussian for data in (there, here))
        assert torch.equal(distributed.mean, alone.mean)
        assert torch.equal(distributed.covariance, alone.covariance)
        log = tmp_path / "log"
        log.mkdir()
        assert list(mapper(partial(squared, log=log, killed_once=1), range(3))) == [0, 1, 4]
        assert [attempts(log, number) for number in range(3)] == [1, 2, 1]
        with pytest.raises(InputError, match="not negative"):
            list(mapper(partial(squared, log=log), [-1]))
        assert capsys.readouterr().out == ""


def test_a_lost_head_ends_in_a_sentence_and_what_was_finished_stays(cluster: Any, tmp_path: Path) -> None:
    done: list[int] = []
    with on_ray(cluster.address, patience=1.0) as mapper:
        results = mapper(partial(squared, log=tmp_path, seconds=0.5), range(100))
        done.append(next(results))
        cluster.head_node.kill_gcs_server()
        with pytest.raises(WorkerLostError, match=r"The head of the Ray cluster at .* was lost; what was finished is"):
            done += results
    assert done == [number * number for number in range(len(done))]
    assert all(attempts(tmp_path, number) for number in range(len(done)))


def test_a_lost_process_of_ray_on_this_machine_ends_in_a_sentence(tmp_path: Path) -> None:
    """The head goes on and tells it; a driver whose raylet is gone would wait for ever."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        patch.setenv("RAY_health_check_period_ms", "500")
        patch.setenv("RAY_health_check_failure_threshold", "2")
        found = Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False},
        )
        try:
            with on_ray(found.address) as mapper:
                results = mapper(partial(squared, log=tmp_path, seconds=0.5), range(100))
                assert next(results) == 0
                found.head_node.kill_raylet()
                with pytest.raises(WorkerLostError, match=r"Ray's process on this machine was lost; what was finished"):
                    list(results)
        finally:
            found.shutdown()


@pytest.fixture(params=["silent", "another protocol"])
def other_server(request: pytest.FixtureRequest) -> Iterator[int]:
    """A port where something listens that is not Ray."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    if request.param != "silent":
                        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                    kept.append(connection)

        kept: list[socket.socket] = []
        threading.Thread(target=answer, daemon=True).start()
        yield listener.getsockname()[1]
        for connection in kept:
            connection.close()


def test_a_port_where_something_else_answers_gets_the_sentence_too(
    other_server: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_module, "CONNECT_SECONDS", 0.5)
    with pytest.raises(InputError, match="No Ray head answers at"), workforce(["cpu"], f"127.0.0.1:{other_server}"):
        pass


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def test_an_address_where_nobody_is_gets_one_sentence(bpc: Invoke, free_port: int) -> None:
    for command in ("compare", "reproduce main --smoke", "posterior --target y --data table"):
        result = bpc(*command.split(" "), "--ray", f"127.0.0.1:{free_port}")
        assert result.exit_code == 2
        assert result.stderr.splitlines()[-1].startswith(f"Error: No Ray head answers at '127.0.0.1:{free_port}'")
        assert "Traceback" not in result.output
    for address in ("ray://head:10001", "head:port", ":6379"):
        with pytest.raises(InputError, match=r"is HOST:PORT of its head, or auto"), workforce(["cpu"], address):
            pass


def test_without_ray_the_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"pip install 'pseudocoresets\[ray\]'"), workforce(["cpu"], "auto"):
        pass
