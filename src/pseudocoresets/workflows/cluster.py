"""Units of work on a Ray cluster: an actor for each GPU or, in a cluster without any, for each core.

The results of units are on storage that all machines share, so that neither a lost machine nor a lost head loses what
is finished. Machines that join while units are left get some.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from pseudocoresets.core.errors import InputError, WorkerLostError
from pseudocoresets.core.extras import installed_by
from pseudocoresets.core.mapping import Mapper
from pseudocoresets.core.text import first_line
from pseudocoresets.workflows.parallel import on_devices, spread

LOCAL = "auto"
DEFAULT_PORT = 6379
CONNECT_SECONDS = 5.0
HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""What a client says first, with its settings, which are none; the other side answers with its own."""
FRAME_HEADER, TYPE_OF_FRAME, SETTINGS = 9, 3, b"\x04"
POLL_SECONDS = 1.0
PATIENCE = 20.0
"""Seconds without the head after which it counts as lost; Ray itself ends the process after sixty."""


@contextmanager
def workforce(devices: Sequence[str], address: str | None = None) -> Iterator[Mapper]:
    """The devices of this machine or, with the address of a Ray cluster, those of the cluster."""
    if address is None:
        with on_devices(devices) as mapper:
            yield mapper
    else:
        with on_ray(address) as mapper:
            yield mapper


@contextmanager
def on_ray(address: str, patience: float = PATIENCE) -> Iterator[Mapper]:
    """A Ray cluster by the address of its head, HOST:PORT; ``auto`` starts one on this machine that ends with it.

    A head that does not answer for ``patience`` seconds is lost.
    """
    ray = _import_ray()
    known = ray.is_initialized()
    if not known:
        _connect(ray, address)
        _keep_quiet(ray)
    try:
        with spread(RayCrew(ray, ray.get_runtime_context().gcs_address, patience)) as mapper:
            yield mapper
    finally:
        if not known:
            ray.shutdown()


def _import_ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "1")
    with installed_by("ray", "A Ray cluster (--ray) needs Ray"):
        import ray
    return ray


def _connect(ray: Any, address: str) -> None:
    quiet = {"log_to_driver": False, "logging_level": logging.CRITICAL, "configure_logging": True}
    if address == LOCAL:
        ray.init(address="local", include_dashboard=False, **quiet)
        return
    host, _, port = address.rpartition(":") if ":" in address else (address, "", str(DEFAULT_PORT))
    if "/" in host or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise InputError(f"The address of a Ray cluster is HOST:PORT of its head, or auto; got '{address}'.")
    if not _speaks_as_ray(host, int(port)):
        raise InputError(
            f"No Ray head answers at '{address}'; start one with 'ray start --head --port {port}', or use --ray auto."
        )
    try:
        ray.init(address=f"{host}:{port}", **quiet)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise InputError(f"The Ray cluster at '{address}' cannot be used ({first_line(error)}).") from None


def _keep_quiet(ray: Any) -> None:
    """Ray prints the log of a machine that died to standard output, whatever ``log_to_driver`` says."""
    ray._private.worker._worker_logs_enabled = False


def _speaks_as_ray(host: str, port: int) -> bool:
    """Whether somebody there opens a connection of HTTP/2, as gRPC and so Ray does; with TLS, whether anybody does.

    Ray itself waits for minutes on a port where something else answers.
    """
    if os.environ.get("RAY_USE_TLS", "0") != "0":
        return _reachable(host, port)
    with suppress(OSError, UnicodeError), socket.create_connection((host, port), CONNECT_SECONDS) as connection:
        connection.sendall(HTTP2_PREFACE)
        return connection.recv(FRAME_HEADER)[TYPE_OF_FRAME:][:1] == SETTINGS
    return False


def _reachable(host: str, port: int) -> bool:
    with suppress(OSError, UnicodeError), socket.create_connection((host, port), CONNECT_SECONDS):
        return True
    return False


@dataclass
class RayCrew:
    """Actors, as many as the cluster has room for."""

    ray: Any
    head: str
    patience: float
    _answered: float = field(default_factory=time.monotonic)
    _resources: dict[str, float] = field(default_factory=dict)
    _looked: float = -math.inf

    def room(self, working: Sequence[RayWorker]) -> bool:
        self._look()
        return len(working) < int(self._resources.get(self._kind, 0))

    def _look(self) -> None:
        """Now and then, ask the head what there is, if it answers."""
        now = time.monotonic()
        if now - self._looked < POLL_SECONDS:
            return
        self._looked = now
        host, _, port = self.head.rpartition(":")
        if _reachable(host, int(port)):
            self._require_own_node()
            self._resources, self._answered = self.ray.cluster_resources(), time.monotonic()
        elif time.monotonic() - self._answered > self.patience:
            raise WorkerLostError(
                f"The head of the Ray cluster at {self.head} was lost; what was finished is kept, and the same command "
                "goes on from there once there is a cluster again."
            )

    def _require_own_node(self) -> None:
        """Without Ray's process on this machine, nothing is given out and nothing comes back."""
        own = self.ray.get_runtime_context().get_node_id()
        if any(node["NodeID"] == own and not node["Alive"] for node in self.ray.nodes()):
            raise WorkerLostError(
                "Ray's process on this machine was lost; what was finished is kept, and the same command goes on from "
                "there once it is started again."
            )

    @property
    def _kind(self) -> str:
        return "GPU" if self._resources.get("GPU", 0) >= 1 else "CPU"

    def hire(self, working: Sequence[RayWorker]) -> RayWorker:
        needs = {"num_cpus": 1, "num_gpus": 1 if self._kind == "GPU" else 0}
        actor = self.ray.remote(_Actor).options(**needs, scheduling_strategy="SPREAD", max_restarts=0)
        return RayWorker(self.ray, actor.remote())

    def wait(self, working: Sequence[RayWorker]) -> list[RayWorker]:
        """None of them too, after a while, so that machines that joined are asked."""
        known, ready = {worker.running: worker for worker in working}, []
        if known:
            ready = self.ray.wait(list(known), timeout=POLL_SECONDS)[0]
        else:
            time.sleep(POLL_SECONDS)
        self._look()
        return [known[reference] for reference in ready]


class _Actor:
    """Holds a function, and with it what the function has read."""

    def learn(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    def run(self, item: Any) -> Any:
        return self._function(item)


class RayWorker:
    """An actor that works on one unit."""

    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray, self._actor = ray, actor
        self._learned: Any = None
        self.running: Any = None

    @property
    def started(self) -> bool:
        return bool(self._ray.wait([self._learned], timeout=0)[0])

    def learn(self, function: Callable[[Any], Any]) -> None:
        self._learned = self._actor.learn.remote(function)

    def give(self, item: Any) -> None:
        self.running = self._actor.run.remote(item)

    def result(self) -> Any:
        from ray import exceptions

        try:
            return self._ray.get([self._learned, self.running])[1]
        except exceptions.RayTaskError as error:
            if isinstance(error.cause, exceptions.RaySystemError):
                raise InputError(
                    f"A machine of the Ray cluster cannot take this on ({first_line(error.cause)}); install the same "
                    "version of pseudocoresets[ray] on all of them."
                ) from None
            raise error.cause if isinstance(error.cause, Exception) else error from None
        except exceptions.OutOfMemoryError:
            raise WorkerLostError(
                "A worker of the Ray cluster was ended because its machine ran out of memory."
            ) from None
        except exceptions.RayError as error:
            raise WorkerLostError(f"A worker of the Ray cluster was lost ({_reason(error)}).") from None

    def dismiss(self) -> None:
        with suppress(Exception):
            self._ray.kill(self._actor)


def _reason(error: Exception) -> str:
    """What Ray says in many lines, in a few words."""
    text = str(error)
    if "node" in text.lower() and ("died" in text or "dead" in text):
        return "its machine is gone"
    if "memory" in text.lower():
        return "it ran out of memory"
    return type(error).__name__
