"""Downloads against a real local HTTP server that misbehaves on request."""

from __future__ import annotations

import gzip
import hashlib
import io
import multiprocessing
import re
import tarfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from pseudocoresets.core.errors import DataUnavailableError, InputError
from pseudocoresets.core.progress import Silent
from pseudocoresets.data.download import Patience, Source, fetch_sources

CONTENT = bytes(range(256)) * 4000
HASTY = Patience(timeout=0.5, attempts=3, backoff=0.01)


@dataclass
class Site:
    """Files by path, and what goes wrong with the next requests: one fault is used up by each request."""

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    resumes: bool = True
    delay: float = 0.0
    requests: list[str | None] = field(default_factory=list)
    """The Range header of every request."""

    def source(self, name: str, gives: str = "", unpack: str = "") -> Source:
        content = self.files[name]
        md5 = hashlib.md5(content).hexdigest()
        return Source((f"{self.address}/{name}",), md5, len(content), gives or name, unpack)  # type: ignore[arg-type]


def answer(site: Site, request: BaseHTTPRequestHandler) -> None:
    wanted = request.headers.get("Range")
    site.requests.append(wanted)
    fault = site.faults.pop(0) if site.faults else ""
    content = site.files.get(request.path.lstrip("/").partition("?")[0])
    if content is None or fault.isdecimal():
        request.send_error(int(fault or 404))
        return
    if fault == "slow":
        time.sleep(2 * HASTY.timeout)
    start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1]) if wanted and site.resumes else 0  # type: ignore[index]
    if start >= len(content):
        request.send_error(416)
        return
    request.send_response(206 if start else 200)
    request.send_header("Content-Length", str(len(content) - start))
    request.end_headers()
    end = start + (len(content) - start) // 2 if fault == "drop" else len(content)
    for position in range(start, end, 100_000):
        request.wfile.write(content[position : min(end, position + 100_000)])
        time.sleep(site.delay)


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site(files={"file.bin": CONTENT})

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with suppress(BrokenPipeError, ConnectionResetError):  # a client that gave up, as it should
                answer(site, self)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    site.address = f"http://127.0.0.1:{server.server_port}"
    yield site
    server.shutdown()
    server.server_close()
    thread.join()


def has(*names: str) -> Callable[[Path], bool]:
    return lambda root: all((root / name).exists() for name in names)


def fetch(source: Source, root: Path, patience: Patience = HASTY) -> None:
    fetch_sources("test-set", (source,), root, has(source.gives), Silent(), patience)


def leftovers(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir() if path.name != ".test-set.lock")


def test_a_file_arrives_whole(site: Site, tmp_path: Path) -> None:
    fetch(site.source("file.bin"), tmp_path)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    assert leftovers(tmp_path) == ["file.bin"]


def test_what_is_here_is_not_asked_for(site: Site, tmp_path: Path) -> None:
    (tmp_path / "file.bin").write_bytes(b"mine")
    fetch(site.source("file.bin"), tmp_path)
    assert site.requests == []
    assert (tmp_path / "file.bin").read_bytes() == b"mine"


def test_a_dropped_connection_is_resumed_where_it_broke(site: Site, tmp_path: Path) -> None:
    site.faults = ["drop"]
    fetch(site.source("file.bin"), tmp_path)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    assert site.requests == [None, f"bytes={len(CONTENT) // 2}-"]


def test_many_drops_are_fine_while_each_brings_something(site: Site, tmp_path: Path) -> None:
    site.faults = ["drop"] * 6
    fetch(site.source("file.bin"), tmp_path)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    assert len(site.requests) == 7


def test_an_interrupted_download_goes_on_in_the_next_call(site: Site, tmp_path: Path) -> None:
    (tmp_path / "file.bin.part").write_bytes(CONTENT[:1000])
    fetch(site.source("file.bin"), tmp_path)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    assert site.requests == ["bytes=1000-"]


def test_a_server_that_cannot_resume_sends_everything_again(site: Site, tmp_path: Path) -> None:
    site.resumes = False
    (tmp_path / "file.bin.part").write_bytes(CONTENT[:1000])
    fetch(site.source("file.bin"), tmp_path)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


@pytest.mark.parametrize("length", [500, len(CONTENT), len(CONTENT) + 5])
def test_a_wrong_beginning_is_thrown_away(site: Site, tmp_path: Path, length: int) -> None:
    (tmp_path / "file.bin.part").write_bytes(b"?" * length)
    fetch(site.source("file.bin"), tmp_path)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_a_slow_answer_is_given_up_and_asked_for_again(site: Site, tmp_path: Path) -> None:
    site.faults = ["slow"]
    fetch(site.source("file.bin"), tmp_path)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    assert len(site.requests) == 2


def test_a_busy_server_is_asked_again(site: Site, tmp_path: Path) -> None:
    site.faults = ["503", "429"]
    fetch(site.source("file.bin"), tmp_path)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_a_server_that_stays_silent_ends_in_one_sentence(site: Site, tmp_path: Path) -> None:
    site.faults = ["503"] * 10
    with pytest.raises(DataUnavailableError, match=r"503 .*3 times"):
        fetch(site.source("file.bin"), tmp_path)
    assert len(site.requests) == HASTY.attempts


def test_not_found_is_not_tried_again_and_says_where_to_put_the_file(site: Site, tmp_path: Path) -> None:
    source = site.source("file.bin")
    site.files.clear()
    with pytest.raises(DataUnavailableError, match="404") as caught:
        fetch(source, tmp_path)
    assert str(tmp_path / "file.bin") in str(caught.value)
    assert len(site.requests) == 1
    assert leftovers(tmp_path) == []


def test_a_wrong_hash_is_refused_and_nothing_is_kept(site: Site, tmp_path: Path) -> None:
    source = replace(site.source("file.bin"), md5="0" * 32)
    with pytest.raises(DataUnavailableError, match="wrong hash"):
        fetch(source, tmp_path)
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("change", [b"", b"and more"])
def test_a_file_of_another_size_is_refused(site: Site, tmp_path: Path, change: bytes) -> None:
    source = site.source("file.bin")
    site.files["file.bin"] = CONTENT[:-10] + change + change
    with pytest.raises(DataUnavailableError):
        fetch(source, tmp_path)
    assert "file.bin" not in leftovers(tmp_path)


def test_the_second_address_serves_when_the_first_does_not(site: Site, tmp_path: Path) -> None:
    source = site.source("file.bin")
    fetch(replace(source, addresses=(f"{site.address}/gone", *source.addresses)), tmp_path)
    assert has(source.gives)(tmp_path)


def test_no_network_ends_in_one_sentence(tmp_path: Path) -> None:
    source = Source(("http://127.0.0.1:9/file.bin",), "0" * 32, 10, "file.bin")
    with pytest.raises(DataUnavailableError, match=r"Connection refused.*by hand"):
        fetch(source, tmp_path)


def test_a_folder_that_cannot_be_made_is_named(site: Site, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(InputError, match="taken"):
        fetch(site.source("file.bin"), tmp_path / "taken")


def tar_of(members: dict[str, bytes]) -> bytes:
    memory = io.BytesIO()
    with tarfile.open(fileobj=memory, mode="w:gz") as tar:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return memory.getvalue()


def zip_of(members: dict[str, bytes]) -> bytes:
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w") as packed:
        for name, content in members.items():
            packed.writestr(name, content)
    return memory.getvalue()


@pytest.mark.parametrize(("kind", "pack"), [("tar", tar_of), ("zip", zip_of)])
def test_an_archive_becomes_its_folder(
    site: Site, tmp_path: Path, kind: str, pack: Callable[[dict[str, bytes]], bytes]
) -> None:
    site.files["set.archive"] = pack({"set/one": b"1", "set/inner/two": b"2"})
    fetch(site.source("set.archive", "set", kind), tmp_path)
    assert (tmp_path / "set" / "inner" / "two").read_bytes() == b"2"
    assert leftovers(tmp_path) == ["set"]


def test_gzip_becomes_the_raw_file(site: Site, tmp_path: Path) -> None:
    site.files["raw.gz"] = gzip.compress(CONTENT)
    fetch(site.source("raw.gz", "SET/raw/raw", "gzip"), tmp_path)
    assert (tmp_path / "SET" / "raw" / "raw").read_bytes() == CONTENT
    assert leftovers(tmp_path / "SET" / "raw") == ["raw"]


def test_an_archive_put_there_by_hand_is_used_and_kept(site: Site, tmp_path: Path) -> None:
    site.files["set.tar.gz"] = tar_of({"set/one": b"1"})
    (tmp_path / "set.tar.gz").write_bytes(site.files["set.tar.gz"])
    fetch(site.source("set.tar.gz", "set", "tar"), tmp_path)
    assert site.requests == []
    assert leftovers(tmp_path) == ["set", "set.tar.gz"]


@pytest.mark.parametrize(("kind", "pack"), [("tar", tar_of), ("zip", zip_of)])
def test_an_archive_cannot_write_outside_its_folder(
    site: Site, tmp_path: Path, kind: str, pack: Callable[[dict[str, bytes]], bytes]
) -> None:
    site.files["set.archive"] = pack({"../../escaped": b"!", "../escaped": b"!"})
    root = tmp_path / "deep" / "data"
    with pytest.raises(DataUnavailableError):
        fetch(site.source("set.archive", "set", kind), root)
    assert list(tmp_path.rglob("escaped")) == []


@pytest.mark.parametrize("kind", ["tar", "zip", "gzip"])
def test_an_archive_that_breaks_in_the_middle_leaves_no_folder(site: Site, tmp_path: Path, kind: str) -> None:
    whole = {"tar": tar_of, "zip": zip_of}.get(kind, lambda members: gzip.compress(members["set/one"]))(
        {"set/one": CONTENT, "set/two": CONTENT[::-1]}
    )
    site.files["set.archive"] = whole[: len(whole) // 2]
    with pytest.raises(DataUnavailableError, match="cannot be unpacked"):
        fetch(site.source("set.archive", "set", kind), tmp_path)
    assert leftovers(tmp_path) == ["set.archive"]


def _fetch_in_process(source: Source, root: Path) -> None:
    fetch(source, root, Patience(timeout=10, attempts=3, backoff=0.01))


def test_two_processes_at_once_fetch_once(site: Site, tmp_path: Path) -> None:
    site.files["set.tar.gz"] = tar_of({f"set/{index}": bytes([index]) * 50_000 for index in range(20)})
    site.delay = 0.05
    source = site.source("set.tar.gz", "set", "tar")
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_fetch_in_process, args=(source, tmp_path)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)
    assert [process.exitcode for process in processes] == [0, 0]
    assert len(site.requests) == 1
    assert all((tmp_path / "set" / str(index)).read_bytes() == bytes([index]) * 50_000 for index in range(20))


class Recorder:
    def __init__(self) -> None:
        self.total, self.done = 0, 0

    def start(self, task: str, total: int) -> None:
        self.total, self.done = total, 0

    def advance(self, amount: int = 1, note: str = "") -> None:
        self.done += amount

    def finish(self) -> None:
        pass


@pytest.mark.parametrize("resumes", [True, False])
def test_progress_ends_at_the_whole_also_after_a_resumption(site: Site, tmp_path: Path, resumes: bool) -> None:
    site.resumes = resumes
    site.faults = ["drop"]
    recorder = Recorder()
    source = site.source("file.bin")
    fetch_sources("test-set", (source,), tmp_path, has("file.bin"), recorder, HASTY)
    assert recorder.total == recorder.done == len(CONTENT) // 1000


def test_an_incomplete_folder_is_not_called_complete(site: Site, tmp_path: Path) -> None:
    (tmp_path / "file.bin").write_bytes(b"")
    with pytest.raises(DataUnavailableError, match="incomplete"):
        fetch_sources("test-set", (site.source("file.bin"),), tmp_path, has("other"), Silent(), HASTY)
