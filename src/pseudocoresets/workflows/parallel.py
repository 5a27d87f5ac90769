"""Units of work on several devices of this machine: a process for each, which may end without taking others along.

A process sees its own device alone, as its ``auto``. One that is killed, as systems do when memory runs out, is
replaced and its unit given out again.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from typing import Any, Generic, NoReturn, Protocol, TypeVar

import torch

from pseudocoresets.core.devices import limit_threads, resolve_device
from pseudocoresets.core.errors import InputError, WorkerLostError
from pseudocoresets.core.mapping import Mapper, in_this_process, refuse_loss

TRIES = 3
"""Workers that a unit may lose before it counts as failed."""
VISIBLE = "CUDA_VISIBLE_DEVICES"
I = TypeVar("I")  # noqa: E741
R = TypeVar("R")


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def devices_named(text: str) -> list[str]:
    """Devices separated by commas, each as often as it has processes; ``auto`` is every GPU here, or else the CPU."""
    names = [word.strip() for word in text.split(",")]
    if names == ["auto"] and torch.cuda.device_count() > 1:
        return [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    return [str(resolve_device(name)) for name in names]


@contextmanager
def processes(jobs: int) -> Iterator[Mapper]:
    """This process or, for more than one job, so many others on the CPU."""
    if jobs < 1:
        raise InputError(f"Ask for at least one process (jobs); got {jobs}.")
    with on_devices(["cpu"] * jobs) as mapper:
        yield mapper


@contextmanager
def on_devices(devices: Sequence[str]) -> Iterator[Mapper]:
    """This process for one device, a process for each of several."""
    if len(devices) == 1:
        yield in_this_process
    else:
        with spread(LocalCrew(tuple(devices))) as mapper:
            yield mapper


def require_sendable(thing: object, what: str) -> None:
    """Refuse what another process cannot be given."""
    try:
        ForkingPickler.dumps(thing)
    except Exception as error:
        raise InputError(
            f"{what} cannot be sent to another process ({error}); use jobs=1, or define its functions in a module."
        ) from None


# --- giving out units ------------------------------------------------------------------------------


class Worker(Protocol):
    """Works on one unit at a time."""

    @property
    def started(self) -> bool:
        """Whether it works, or still waits for a place."""
        ...

    def learn(self, function: Callable[[Any], Any]) -> None:
        """What to do with all that it is given from now on."""
        ...

    def give(self, item: Any) -> None: ...

    def result(self) -> Any:
        """Of what it was given last; ``WorkerLostError`` says in a sentence what became of the worker."""
        ...

    def dismiss(self) -> None: ...


W = TypeVar("W", bound=Worker)


class Crew(Protocol[W]):
    """Where workers come from."""

    def room(self, working: Sequence[W]) -> bool:
        """Whether there can be one more beside these now."""
        ...

    def hire(self, working: Sequence[W]) -> W: ...

    def wait(self, working: Sequence[W]) -> list[W]:
        """Those of them that have a result or are lost, as soon as there are any."""
        ...


@dataclass(frozen=True)
class _Unit:
    index: int
    item: Any
    tries: int = 1


@contextmanager
def spread(crew: Crew[W]) -> Iterator[Mapper]:
    """A mapper that gives units to the workers of a crew, which are dismissed when the block ends."""
    everybody: list[W] = []

    def mapper(
        function: Callable[[I], R], items: Iterable[I], lost: Callable[[I, str], R] = refuse_loss
    ) -> Iterator[R]:
        return _Round(crew, everybody, function, items, lost).results()

    try:
        yield mapper
    finally:
        for worker in everybody:
            worker.dismiss()


class _Round(Generic[W]):
    """One function for some items; ``everybody`` are the workers that there are, from rounds before too."""

    def __init__(
        self,
        crew: Crew[W],
        everybody: list[W],
        function: Callable[[Any], Any],
        items: Iterable[Any],
        lost: Callable[[Any, str], Any],
    ) -> None:
        self._crew, self._everybody, self._function, self._lost = crew, everybody, function, lost
        self._units = (_Unit(*each) for each in enumerate(items))
        self._again: deque[_Unit] = deque()
        self._untaught, self._idle = list(everybody), list[W]()
        self._busy: dict[W, _Unit] = {}
        self._done: dict[int, Any] = {}

    def results(self) -> Iterator[Any]:
        wanted = 0
        try:
            while not (self._all_given_out() and not self._busy):
                for worker in self._crew.wait(list(self._busy)):
                    self._take(worker)
                while wanted in self._done:
                    yield self._done.pop(wanted)
                    wanted += 1
        finally:
            for worker in self._busy:
                self._let_go(worker)

    def _all_given_out(self) -> bool:
        """Give a unit to everybody who has none, first those that lost a worker; whether there was none left."""
        while self._idle or self._untaught or self._crew.room(self._everybody):
            unit = self._next_unit()
            if unit is None:
                return True
            worker = self._idle.pop() if self._idle else self._taught()
            self._busy[worker] = unit
            worker.give(unit.item)
        return False

    def _next_unit(self) -> _Unit | None:
        """If none is left and somebody is idle, that of a worker that still waits for a place."""
        unit = self._again.popleft() if self._again else next(self._units, None)
        waiting = next((worker for worker in self._busy if not worker.started), None) if self._idle else None
        if unit is None and waiting is not None:
            unit = self._busy.pop(waiting)
            self._let_go(waiting)
        return unit

    def _taught(self) -> W:
        if self._untaught:
            worker = self._untaught.pop()
        else:
            worker = self._crew.hire(self._everybody)
            self._everybody.append(worker)
        worker.learn(self._function)
        return worker

    def _take(self, worker: W) -> None:
        unit = self._busy.pop(worker)
        try:
            self._done[unit.index] = worker.result()
            self._idle.append(worker)
        except WorkerLostError as loss:
            self._let_go(worker)
            if unit.tries < TRIES:
                self._again.append(replace(unit, tries=unit.tries + 1))
            else:
                self._done[unit.index] = self._lost(unit.item, f"{loss} So it went {TRIES} times.")
        except BaseException:
            self._let_go(worker)
            raise

    def _let_go(self, worker: W) -> None:
        self._everybody.remove(worker)
        worker.dismiss()


# --- processes of this machine ---------------------------------------------------------------------


@dataclass(frozen=True)
class LocalCrew:
    """A process for each device."""

    devices: tuple[str, ...]

    def room(self, working: Sequence[LocalWorker]) -> bool:
        return len(working) < len(self.devices)

    def hire(self, working: Sequence[LocalWorker]) -> LocalWorker:
        free = list(self.devices)
        for worker in working:
            free.remove(worker.device)
        return LocalWorker(free[0], len(self.devices))

    def wait(self, working: Sequence[LocalWorker]) -> list[LocalWorker]:
        ready = wait([worker.connection for worker in working])
        return [worker for worker in working if worker.connection in ready]


class LocalWorker:
    """A process that is told functions and given items."""

    started = True

    def __init__(self, device: str, beside: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.device = device
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, device, max(1, cores() // beside)))
        self._process.start()
        theirs.close()

    def learn(self, function: Callable[[Any], Any]) -> None:
        self._send((True, function))

    def give(self, item: Any) -> None:
        self._send((False, item))

    def result(self) -> Any:
        try:
            found, error = self.connection.recv()
        except (EOFError, ConnectionError):
            self._process.join()
            raise WorkerLostError(f"The process on {self.device} {_end(self._process.exitcode)}.") from None
        if error is not None:
            raise error
        return found

    def dismiss(self) -> None:
        self.connection.close()
        self._process.terminate()
        self._process.join()

    def _send(self, message: tuple[bool, Any]) -> None:
        with suppress(ConnectionError):  # told by the result
            self.connection.send(message)


def _end(status: int | None) -> str:
    if status == -signal.SIGKILL:
        return "was killed, as systems do when memory runs out (ask for fewer devices or smaller units)"
    if status is not None and status < 0:
        return f"was ended by the signal {signal.Signals(-status).name}"
    return f"ended with status {status}"


def _serve(connection: Connection, device: str, threads: int) -> None:
    """The life of a worker: functions and items for them, until the connection is closed or the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    see_only(device)
    limit_threads(threads)
    with suppress(EOFError, ConnectionError):  # nobody waits for results any more
        work_off(connection)


def work_off(connection: Connection) -> NoReturn:
    """Do what is asked for, until nobody asks."""
    function: Callable[[Any], Any] | None = None
    while True:
        is_function, message = connection.recv()
        if is_function:
            function = message
        elif function is not None:
            connection.send(_attempted(function, message))


def _attempted(function: Callable[[Any], Any], item: Any) -> tuple[Any, Exception | None]:
    try:
        return function(item), None
    except Exception as error:
        return None, sendable(error)


def sendable(error: Exception) -> Exception:
    """The error, or one that says the same, if it cannot be sent to another process."""
    try:
        ForkingPickler.loads(ForkingPickler.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def see_only(device: str) -> None:
    """Make ``device`` the one that this process finds by itself; before anything is computed."""
    kind, _, index = device.partition(":")
    visible = os.environ.get(VISIBLE)
    every = visible.split(",") if visible else [str(each) for each in range(int(index or 0) + 1)]
    os.environ[VISIBLE] = every[int(index or 0)] if kind == "cuda" else ""


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
