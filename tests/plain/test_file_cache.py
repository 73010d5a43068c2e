"""Files of URLs are identified before they are fetched, fetched once and completely, and cached
within a budget; any error is one line.
"""

from __future__ import annotations

import hashlib
import logging
import mmap
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import fsspec
import pytest
from file_server import FileServer, file_server, safetensors
from hypothesis import given, settings
from hypothesis import strategies as st

from katz_graph.core.errors import Cancelled, InputError, KatzError, RunError
from katz_graph.core.recipe import FileIdentity
from katz_graph.files.locks import never
from katz_graph.files.urls import FetchRule
from katz_graph.models.fetching.fetch import Patience, identify
from katz_graph.models.fetching.fetcher import FETCHER, Fetcher
from katz_graph.models.fetching.file_cache import FileCache
from katz_graph.models.fetching.hops import NotPermitted, check_hop

FILE, OTHER = safetensors(fill=1), safetensors(fill=2)
LARGE_FILE = safetensors(50_000)  # takes a throttled server some time
ANSWER_TIMEOUT_S = 10.0  # seconds, enough for other threads and processes
# fetches sys.argv[1] into sys.argv[2] and prints the path; with a third argument, in a process
FETCH = """
import sys
from pathlib import Path
from katz_graph.models.fetching.fetcher import FETCHER
from katz_graph.models.fetching.file_cache import FileCache
from katz_graph.models.fetching.hops import NotPermitted, check_hop
cache = FileCache(Path(sys.argv[2]), float("inf"), fetcher=FETCHER if sys.argv[3:] else None)
print(cache.local_file(cache.identity(sys.argv[1])))
"""


@pytest.fixture
def server() -> Iterator[FileServer]:
    with file_server() as server:
        yield server


@pytest.fixture(params=[None, FETCHER], ids=["here", "process"])
def cache(request: pytest.FixtureRequest, tmp_path: Path) -> FileCache:
    return FileCache(tmp_path / "fetched", float("inf"), fresh=0.0, fetcher=request.param)


def get(cache: FileCache, url: str, cancelled: Callable[[], bool] = never) -> Path:
    return cache.local_file(cache.identity(url), cancelled)


def weights(cache: FileCache) -> list[str]:
    """Returns the names of complete and partial files in the cache."""
    names = sorted(path.name for path in cache.folder.iterdir()) if cache.folder.exists() else []
    return [name for name in names if ".safetensors" in name]


def eventually(holds: Callable[[], object]) -> None:
    end = time.monotonic() + ANSWER_TIMEOUT_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.005)


class Fetching(threading.Thread):
    """Fetches a file in a thread; stores its path or its error."""

    def __init__(self, cache: FileCache, file: FileIdentity) -> None:
        super().__init__()
        self.stop = threading.Event()
        self.path: Path | None = None
        self.error: KatzError | None = None
        self._cache, self._file = cache, file
        self.start()

    def run(self) -> None:
        try:
            self.path = self._cache.local_file(self._file, self.stop.is_set)
        except KatzError as error:
            self.error = error


# before a file is fetched


@pytest.mark.parametrize("manners", [{}, {"ranges": False}, {"length": False}, {"etag": None}])
def test_a_file_is_known_by_its_header_alone(
    server: FileServer, cache: FileCache, manners: dict[str, object]
) -> None:
    content = safetensors(16_000_000)
    url = server.put("large.safetensors", content, **manners)
    file = cache.identity(url)
    length = int.from_bytes(content[:8], "little")
    assert file.size == len(content)
    assert file.header == hashlib.sha256(content[8 : 8 + length]).hexdigest()
    assert file.version == ("" if "etag" in manners else '"1"')
    # without ranges: bytes that buffers receive before the stream closes
    assert server.sent() < (len(content) / 2 if "ranges" in manners else 2**20)
    assert weights(cache) == []


@pytest.mark.parametrize("ranges", [True, False])
def test_a_long_header(server: FileServer, cache: FileCache, ranges: bool) -> None:
    content = safetensors(16_000_000, name="w" * 1_500_000)
    file = cache.identity(server.put("large.safetensors", content, ranges=ranges))
    length = int.from_bytes(content[:8], "little")
    assert file.header == hashlib.sha256(content[8 : 8 + length]).hexdigest()
    assert not ranges or server.sent() == 8 + length


def test_file_contents_are_known_without_the_file(server: FileServer, cache: FileCache) -> None:
    file = cache.identity(server.put("a.safetensors", FILE))
    asked = len(server.requests)
    assert cache.entries(file)["weight"]["shape"] == [1_000]
    assert len(server.requests) == asked
    elsewhere = replace(cache, folder=cache.folder / "of another machine")
    assert elsewhere.entries(file) == cache.entries(file)
    assert weights(cache) == weights(elsewhere) == []


def test_a_server_is_not_asked_again_at_once(server: FileServer, cache: FileCache) -> None:
    url = server.put("a.safetensors", FILE)
    first = replace(cache, fresh=60.0).identity(url)
    assert replace(cache, fresh=60.0).identity(url) == first
    assert len(server.requests) == 1
    assert cache.identity(url) == first
    assert len(server.requests) == 2


def test_a_file_without_its_server_stays_unchanged(
    cache: FileCache, caplog: pytest.LogCaptureFixture
) -> None:
    with file_server() as server:
        url, other = (server.put(name, FILE) for name in ("a.safetensors", "b.safetensors"))
        place = get(cache, url)
        cache.identity(other)
    assert get(cache, url) == place
    reason, used = caplog.messages
    assert reason.startswith(f"{url}: could not be fetched: ")
    assert used == f"{url}: using the cached file"
    with pytest.raises(RunError, match="could not be fetched"):  # never fetched
        cache.identity(other)


# fetched once


def test_a_file_is_fetched_once(server: FileServer, cache: FileCache) -> None:
    server.moved["moved.safetensors"] = server.put("canny_shuffle.safetensors", FILE)
    for path in ("canny_shuffle.safetensors", "moved.safetensors", "moved.safetensors?token=key"):
        file = cache.identity(server.url(path))
        assert not cache.holds(file)
        place = cache.local_file(file)
        assert place.read_bytes() == FILE
        asked = len(server.requests)
        assert cache.local_file(file) == place
        assert len(server.requests) == asked
    # a name's ending has a meaning, and equal names of different places are different files
    assert get(cache, server.url("canny_shuffle.safetensors")).stem.endswith("canny_shuffle")
    assert len(weights(cache)) == 3


def test_any_protocol_that_fsspec_has(tmp_path: Path) -> None:
    cache = FileCache(tmp_path, float("inf"))
    fsspec.filesystem("memory").pipe("/models/depth.safetensors", FILE)
    assert get(cache, "memory://models/depth.safetensors").read_bytes() == FILE
    for url in ("memory://models/none.safetensors", "carrier-pigeon://a/b.safetensors"):
        with pytest.raises(RunError, match=f"^{url}: could not be fetched; the log says why$"):
            cache.identity(url)


def test_a_local_file_is_itself(cache: FileCache, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(FILE)
    state = path.stat()
    file = FileIdentity(str(path), state.st_size, state.st_mtime_ns, "")
    assert cache.local_file(file) == path
    assert cache.entries(file)["weight"]["shape"] == [1_000]
    path.write_bytes(OTHER)
    for ask in (cache.local_file, cache.entries):
        with pytest.raises(InputError, match="changed since the workflow began"):
            ask(replace(file, modified_ns=1))


def test_of_several_threads_one_fetches(server: FileServer, cache: FileCache) -> None:
    file = cache.identity(server.put("a.safetensors", LARGE_FILE, pause=0.002))
    several = [Fetching(cache, file) for _ in range(5)]
    for each in several:
        each.join(ANSWER_TIMEOUT_S)
    assert {each.path for each in several} == {cache.place(file)}
    assert len(server.requests) == 2
    assert weights(cache) == [cache.place(file).name]


def test_of_two_processes_one_fetches(server: FileServer, cache: FileCache) -> None:
    url = server.put("a.safetensors", LARGE_FILE, pause=0.02)
    command = [sys.executable, "-c", FETCH, url, str(cache.folder)]
    command += ["process"] * (cache.fetcher is not None)
    several = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    answers = {each.communicate(timeout=60)[0].strip() for each in several}
    assert answers == {str(cache.place(cache.identity(url)))}
    assert server.sent() < 1.9 * len(LARGE_FILE)


def test_several_files_are_fetched_at_the_same_time(server: FileServer, cache: FileCache) -> None:
    files = [cache.identity(server.put(name, LARGE_FILE, pause=0.01)) for name in "ab"]
    both = [Fetching(cache, file) for file in files]
    eventually(lambda: len(server.requests) == 4 and all(each.sent for each in server.requests))
    assert weights(cache) == sorted(f"{cache.place(file).name}.part" for file in files)
    for each, file in zip(both, files, strict=True):
        each.join(ANSWER_TIMEOUT_S)
        assert each.path == cache.place(file)


@pytest.mark.defect(31)
@pytest.mark.parametrize("times", [1, 2], ids=["once", "twice"])
def test_next_process_resumes_a_lost_fetch_once(
    server: FileServer, tmp_path: Path, times: int
) -> None:
    fetcher = Fetcher()
    cache = FileCache(tmp_path, float("inf"), fetcher=fetcher)
    file = cache.identity(server.put("a.safetensors", LARGE_FILE, pause=0.01))
    only = Fetching(cache, file)
    for _ in range(times):
        known = server.sent()
        eventually(lambda known=known: server.sent() > known + len(LARGE_FILE) / 4)
        assert fetcher._process is not None
        fetcher._process.kill()
        fetcher._process.wait()
    only.join(ANSWER_TIMEOUT_S)
    if times == 1:
        assert only.error is None and only.path == cache.place(file)
    else:
        assert isinstance(only.error, RunError)
        assert "the process that fetches files was lost 2 times" in str(only.error)
    known = server.sent()
    assert cache.local_file(file).read_bytes() == LARGE_FILE
    assert server.sent() < known + len(LARGE_FILE)  # received bytes were reused


def test_the_process_ends_with_the_one_that_began_it(server: FileServer, tmp_path: Path) -> None:
    url = server.put("a.safetensors", LARGE_FILE, pause=0.1)
    with subprocess.Popen([sys.executable, "-c", FETCH, url, str(tmp_path), "process"]) as parent:
        eventually(lambda: children(parent.pid) and weights(FileCache(tmp_path, 0)))
        (child,) = children(parent.pid)
        parent.kill()
    eventually(lambda: not Path(f"/proc/{child}").exists())


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


# abandoned fetches


def test_cancelled_readers_do_not_stop_others(server: FileServer, cache: FileCache) -> None:
    file = cache.identity(server.put("a.safetensors", LARGE_FILE, pause=0.01))
    known = server.sent()
    first = Fetching(cache, file)
    eventually(lambda: weights(cache) and server.sent() > known + len(LARGE_FILE) / 3)
    second, third = Fetching(cache, file), Fetching(cache, file)
    third.stop.set()
    third.join(ANSWER_TIMEOUT_S)
    assert isinstance(third.error, Cancelled)
    assert first.is_alive() and second.is_alive()
    first.stop.set()
    first.join(ANSWER_TIMEOUT_S)
    assert isinstance(first.error, Cancelled)
    second.join(ANSWER_TIMEOUT_S)
    assert second.path is not None and second.path.read_bytes() == LARGE_FILE
    # the other reader continues with the received bytes
    assert server.sent() - known < 1.5 * len(LARGE_FILE)
    assert weights(cache) == [second.path.name]


def test_an_abandoned_fetch_stops(server: FileServer, cache: FileCache) -> None:
    file = cache.identity(server.put("a.safetensors", LARGE_FILE, pause=0.01))
    only = Fetching(cache, file)
    eventually(lambda: len(server.requests) == 2 and server.requests[1].sent)
    only.stop.set()
    only.join(ANSWER_TIMEOUT_S)
    sent = server.sent()
    time.sleep(0.1)
    assert server.sent() - sent <= 3 * 4096  # until the server notices
    assert isinstance(only.error, Cancelled)
    assert not cache.holds(file)


def test_a_fetch_without_a_version_restarts(server: FileServer, cache: FileCache) -> None:
    """Without a version, the rest might be of another file."""
    file = cache.identity(server.put("a.safetensors", LARGE_FILE, pause=0.01, etag=None))
    only = Fetching(cache, file)
    eventually(lambda: len(server.requests) == 2 and server.requests[1].sent)
    only.stop.set()
    only.join(ANSWER_TIMEOUT_S)
    eventually(lambda: weights(cache) == [])
    server.files["a.safetensors"].pause = 0.0
    assert cache.local_file(file).read_bytes() == LARGE_FILE
    assert [request.range for request in server.requests[1:]] == [None, None]


def test_a_silent_server_is_given_up(server: FileServer, cache: FileCache) -> None:
    cache = replace(cache, patience=Patience(silence=0.3))
    for sent in (0, 5_000):  # before the header, and after it
        server.put("a.safetensors", LARGE_FILE, sent=sent, hangs=True)
        begin = time.monotonic()
        with pytest.raises(RunError) as caught:
            get(cache, server.url("a.safetensors?token=secret"))
        assert time.monotonic() - begin < 3.0
        assert str(caught.value) == (
            f"{server.url('a.safetensors')}: could not be fetched; the log says why"
        )
    server.put("a.safetensors", LARGE_FILE)
    assert get(cache, server.url("a.safetensors?token=secret")).read_bytes() == LARGE_FILE
    assert server.requests[-1].range == "bytes=5000-"


@pytest.mark.parametrize("ranges", [True, False])
def test_a_killed_process_leaves_nothing_that_is_taken_for_whole(
    server: FileServer, cache: FileCache, ranges: bool
) -> None:
    url = server.put("a.safetensors", LARGE_FILE, pause=0.01, ranges=ranges)
    command = [sys.executable, "-c", FETCH, url, str(cache.folder)]
    with subprocess.Popen(command) as process:
        part = cache.folder / "none"
        eventually(
            lambda: len(server.requests) == 2 and server.requests[1].sent > len(LARGE_FILE) / 3
        )
        process.send_signal(signal.SIGKILL)
    (part,) = cache.folder.glob("*.part")
    came = part.stat().st_size
    assert 0 < came < len(LARGE_FILE)
    server.files["a.safetensors"].pause = 0.0
    file = cache.identity(url)
    assert not cache.holds(file)
    assert cache.local_file(file).read_bytes() == LARGE_FILE
    assert server.requests[-1].range == f"bytes={came}-"
    assert weights(cache) == [cache.place(file).name]


def test_old_leftovers_are_deleted(server: FileServer, cache: FileCache) -> None:
    cache.folder.mkdir(parents=True)
    old, young = (cache.folder / f"{name}-x.safetensors.part" for name in ("old", "young"))
    for path in (old, young):
        path.write_bytes(FILE[:100])
    os.utime(old, (0, 0))
    place = get(cache, server.put("a.safetensors", FILE))
    assert weights(cache) == sorted([place.name, young.name])


# errors


@pytest.mark.defect(29)
@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("missing", "file not found$"),
        ("broken", "the server answered 500 Internal Server Error$"),
        ("page", "a web page, not a model"),
        ("pickle", "a pickle, which can run code"),
        ("bomb", "not a safetensors file, or cut off: it declares a header of 50,000,000,"),
        ("headless", ""),
        ("cut", ""),
        ("longer", "has bytes that belong to no tensor"),
        ("shorter", "truncated"),
        ("said-to-be-longer", ""),
        ("said-to-be-shorter", ""),
        ("metadata", "private address 169.254.169.254"),
        ("other-port", "private address 127.0.0.1"),
        ("other-protocol", "begins with no URL|protocol"),
        ("loop", "more than 10 redirects"),
    ],
)
def test_incomplete_downloads_are_rejected(
    server: FileServer,
    cache: FileCache,
    caplog: pytest.LogCaptureFixture,
    path: str,
    reason: str,
) -> None:
    server.moved["metadata"] = "http://169.254.169.254/latest"
    server.moved["other-port"] = "http://127.0.0.1:1/a"
    server.moved["other-protocol"] = "ftp://example.org/a"
    server.moved["loop"] = "/loop"
    server.statuses["broken"] = 500
    server.put("page", b"<html>log in</html>")
    server.put("pickle", b"PK\x03\x04" + bytes(500))
    server.put("bomb", (50 * 10**9).to_bytes(8, "little") + bytes(10**6), reported=10**11)
    server.put("headless", FILE, sent=20)
    server.put("cut", FILE, sent=500, etag=None)
    server.put("longer", FILE + b"x")
    server.put("shorter", FILE[:-1])
    server.put("said-to-be-longer", FILE, reported=len(FILE) + 1)
    server.put("said-to-be-shorter", FILE, reported=len(FILE) - 1)
    with pytest.raises(RunError) as caught:
        get(cache, server.url(f"{path}?token=secret").replace("//", "//user:secret@"))
    assert str(caught.value) == f"{server.url(path)}: could not be fetched; the log says why"
    assert not any(part in caplog.text for part in ("secret",))
    if cache.fetcher is None:
        assert re.search(reason, caplog.messages[-1])
    assert weights(cache) == []


def test_no_server(cache: FileCache) -> None:
    with file_server() as server:
        port = server.port
    with pytest.raises(
        RunError, match=rf"^http://127.0.0.1:{port}/a.safetensors: could not be fetched; the log"
    ):
        cache.identity(f"http://user:secret@127.0.0.1:{port}/a.safetensors")


def test_an_interrupted_connection_is_resumed(server: FileServer, cache: FileCache) -> None:
    half = len(LARGE_FILE) // 2
    url = server.put("a.safetensors", LARGE_FILE, sent=half, pause=0.001)
    with pytest.raises(RunError):
        get(cache, url)
    (part,) = cache.folder.glob("*.part")
    came = part.stat().st_size
    server.put("a.safetensors", LARGE_FILE)
    assert get(cache, url).read_bytes() == LARGE_FILE
    assert 0 < came <= half
    assert server.requests[-1].range == f"bytes={came}-"


@pytest.mark.parametrize(
    ("content", "etag"),
    [
        (OTHER, '"2"'),  # same size and header, other version
        (safetensors(2_000), None),
        (safetensors(name="other1"), None),  # of the same size
    ],
)
@pytest.mark.parametrize("come", [0, 500])
def test_another_file_than_the_one_that_was_named(
    server: FileServer, cache: FileCache, content: bytes, etag: str | None, come: int
) -> None:
    cache = replace(cache, fresh=60.0)
    url = server.put("a.safetensors", FILE, etag='"1"' if etag else None)
    file = cache.identity(url)
    if come:  # left by an abandoned fetch
        place = cache.place(file)
        place.with_name(f"{place.name}.part").write_bytes(FILE[:come])
    server.put("a.safetensors", content, etag=etag)
    with pytest.raises(InputError, match=f"^{url}: changed since the workflow began to use it"):
        cache.local_file(file)
    assert weights(cache) == []
    assert get(cache, url).read_bytes() == content  # requested again


def test_a_checksum(server: FileServer, cache: FileCache) -> None:
    url = server.put("a.safetensors", FILE)
    right, wrong = (hashlib.sha256(content).hexdigest() for content in (FILE, OTHER))
    get(cache, url)  # without a checksum, so the content was not compared
    with pytest.raises(InputError, match=f"^{url}: its SHA-256 is not {wrong}"):
        get(cache, f"{url}#sha256={wrong}")
    assert get(cache, f"{url}#sha256={right.upper()}").read_bytes() == FILE
    asked = server.requests[-1].path
    assert asked == "a.safetensors"


@pytest.mark.parametrize("damage", [lambda whole: whole[:-1], lambda whole: safetensors(name="w")])
def test_a_damaged_file_is_fetched_again(
    server: FileServer,
    cache: FileCache,
    caplog: pytest.LogCaptureFixture,
    damage: Callable[[bytes], bytes],
) -> None:
    file = cache.identity(server.put("a.safetensors", FILE))
    place = cache.local_file(file)
    place.write_bytes(damage(FILE))
    assert cache.local_file(file).read_bytes() == FILE
    (line,) = caplog.messages
    assert line.startswith(f"{file.path}: the cached file is damaged (")


def test_a_full_disk(server: FileServer, cache: FileCache) -> None:
    file = cache.identity(server.put("a.safetensors", FILE))
    narrow = cache if cache.fetcher is None else replace(cache, fetcher=Fetcher())
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, limits[1]))
    try:
        with pytest.raises(RunError) as caught:
            narrow.local_file(file)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert str(caught.value) == (
        f"{file.path}: could not be fetched to {cache.folder}: File too large"
    )
    assert weights(cache) == []
    assert cache.local_file(file).read_bytes() == FILE


def test_no_secret_is_stored_or_reported(
    server: FileServer, cache: FileCache, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "katz_graph")
    server.put("a.safetensors", FILE)
    url = server.url("a.safetensors?token=secret").replace("//", "//user:secret@")
    place = get(cache, url)
    place.write_bytes(FILE[:-1])
    get(cache, url)
    assert caplog.messages
    stored = [
        text for path in cache.folder.iterdir() for text in (path.name, str(path.read_bytes()))
    ]
    assert not [text for text in (*stored, *caplog.messages) if "secret" in text]


@pytest.mark.defect(29)
@pytest.mark.parametrize(
    ("words", "fetched"),
    [
        (["HERE/models/"], False),
        (["HERE/"], True),
        (["HERE/models/", "HERE/moved/"], True),
        (["any"], False),  # this machine, which is not named
        (["any", "HERE/"], True),
    ],
)
def test_the_rule_applies_to_redirects(
    server: FileServer, cache: FileCache, words: list[str], fetched: bool
) -> None:
    server.put("moved/a.safetensors", FILE)
    server.moved["models/a.safetensors"] = "/moved/a.safetensors"
    here = f"http://127.0.0.1:{server.port}"
    rule = FetchRule.parse([word.replace("HERE", here) for word in words])
    url = server.url("models/a.safetensors")
    if fetched:
        assert cache.local_file(cache.identity(url, rule=rule)).read_bytes() == FILE
    else:
        with pytest.raises(RunError, match=r"could not be fetched; the log says why$"):
            cache.identity(url, rule=rule)
        assert "moved/a.safetensors" not in [request.path for request in server.requests]


@pytest.mark.defect(29)
@pytest.mark.parametrize(("named", "fetched"), [("models/", False), ("", True)])
def test_the_rule_applies_to_redirects_inside_a_chain(
    server: FileServer, named: str, fetched: bool
) -> None:
    zipped = BytesIO()
    with ZipFile(zipped, "w") as archive:
        archive.writestr("a.safetensors", FILE)
    server.put("moved/a.zip", zipped.getvalue())
    server.moved["models/a.zip"] = "/moved/a.zip"
    url = f"zip://a.safetensors::{server.url('models/a.zip')}"
    rule = FetchRule.parse(["any", server.url(named)])
    if fetched:
        assert identify(url, rule=rule)[0].size == len(FILE)
    else:
        with pytest.raises(RunError, match=r"could not be fetched; the log says why$"):
            identify(url, rule=rule)
        assert {request.path for request in server.requests} == {"models/a.zip"}


@pytest.mark.defect(29)
def test_a_redirect_that_comes_later_is_held_to_the_rule_too(
    server: FileServer, cache: FileCache
) -> None:
    here = f"http://127.0.0.1:{server.port}"
    url = server.put("models/a.safetensors", FILE)
    file = cache.identity(url, rule=FetchRule.parse([f"{here}/models/"]))
    server.put("moved/a.safetensors", FILE)
    server.moved["models/a.safetensors"] = "/moved/a.safetensors"
    with pytest.raises(RunError, match=r"could not be fetched; the log says why$"):
        cache.local_file(file)


PRIVATE = (
    "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "0.0.0.0", "224.0.0.1",
    "100.64.0.1", "[::1]", "[fe80::1]", "[fd00::1]", "[::ffff:10.0.0.1]", "[64:ff9b::a00:1]",
    "[2002:a00:1::]", "[::127.0.0.1]", "[fec0::1]", "[64:ff9b:1::7f00:1]",
)  # fmt: skip


@pytest.mark.defect(29)
@pytest.mark.parametrize("host", PRIVATE)
def test_private_addresses_have_to_be_named(host: str) -> None:
    rule = FetchRule.parse(["any"])
    for url in (f"http://{host}/a", f"ftp://{host}/a", f"simplecache::http://{host}/a"):
        with pytest.raises(NotPermitted):
            check_hop(url, rule)
    check_hop(f"http://{host}/a", FetchRule.parse([f"http://{host}/"]))
    check_hop("https://93.184.216.34/a", rule)


@pytest.mark.defect(29)
@pytest.mark.parametrize("host", ["localhost", "2130706433", "0x7f.1"])
def test_names_of_private_addresses_have_to_be_named(server: FileServer, host: str) -> None:
    server.put("a.safetensors", FILE)
    url = f"http://{host}:{server.port}/a.safetensors"
    with pytest.raises(RunError, match="could not be fetched"):
        identify(url, rule=FetchRule.parse(["any"]))
    assert server.requests == []
    if host == "localhost":
        assert identify(url, rule=FetchRule.parse([url]))[0].size == len(FILE)


# the budget


def test_least_recently_used_files_are_deleted_first(server: FileServer, cache: FileCache) -> None:
    files = [cache.identity(server.put(name, FILE)) for name in "abc"]
    cache = replace(cache, max_bytes=2 * len(FILE) + 2_000)  # and the files' metadata
    for file in (files[0], files[1], files[0], files[2]):
        cache.local_file(file)
    assert [cache.holds(file) for file in files] == [True, False, True]


def test_files_in_use_stay(server: FileServer, cache: FileCache) -> None:
    files = [cache.identity(server.put(name, FILE)) for name in "abc"]
    cache = replace(cache, max_bytes=0.0)
    with cache.using(files[0]) as path:
        with path.open("rb") as opened, mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as seen:
            cache.local_file(files[1])
            assert seen[:] == FILE
            assert path.read_bytes() == FILE
        opened = path.open("rb")
    with opened, mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as seen:
        cache.local_file(files[2])
        assert not cache.holds(files[0])
        assert seen[:] == FILE  # an open mapping stays valid


def test_nested_files_count(server: FileServer, cache: FileCache) -> None:
    """Earlier versions stored each file in a separate folder."""
    old = cache.folder / "0123456789abcdef" / "old.safetensors"
    old.parent.mkdir(parents=True)
    old.write_bytes(FILE)
    os.utime(old, (0, 0))
    get(replace(cache, max_bytes=len(FILE) + 2_000), server.put("a", FILE))
    assert not old.exists()


def test_a_refetched_file_has_the_same_identity(server: FileServer, cache: FileCache) -> None:
    file = cache.identity(server.put("a.safetensors", FILE))
    first = cache.local_file(file).stat()
    cache.place(file).unlink()
    again = cache.local_file(file).stat()
    assert (first.st_size, first.st_mtime_ns) == (again.st_size, again.st_mtime_ns)


SIZES = (0, 100, 1_000, 5_000)
NAMES = range(2 * len(SIZES))


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 30_000),
    st.lists(
        st.one_of(
            st.tuples(st.just("use"), st.sampled_from(NAMES)),
            st.tuples(st.just("get"), st.sampled_from(NAMES)),
            st.tuples(st.just("release"), st.sampled_from(NAMES)),
        ),
        max_size=25,
    ),
)
def test_a_budget_is_exceeded_only_by_models_in_use(
    most: int, steps: list[tuple[str, int]]
) -> None:
    memory = fsspec.filesystem("memory")
    urls = [f"memory://budget/{number}.safetensors" for number in NAMES]
    for number, url in enumerate(urls):
        memory.pipe(url, safetensors(SIZES[number % len(SIZES)], fill=number))
    with tempfile.TemporaryDirectory() as folder, ExitStack() as all_uses:
        cache = FileCache(Path(folder), most)
        uses: dict[int, ExitStack] = {}
        for what, number in steps:
            file = cache.identity(urls[number])
            if what == "release":
                uses.pop(number, ExitStack()).close()
                continue
            if what == "use" and number not in uses:
                uses[number] = all_uses.enter_context(ExitStack())
                path = uses[number].enter_context(cache.using(file))
            else:
                path = cache.local_file(file)
            assert path.read_bytes() == memory.cat(urls[number])
            in_use = sum(cache.identity(urls[each]).size for each in {*uses, number})
            lies = sum(path.stat().st_size for path in cache.folder.iterdir())
            assert lies <= most + in_use


@pytest.mark.defect(23)
@pytest.mark.parametrize(
    "manners", [{"sent": 4, "hangs": True}, {"pause": 0.3}], ids=["hangs", "drips"]
)
def test_identifying_a_file_can_be_cancelled_and_has_a_deadline(
    server: FileServer, tmp_path: Path, manners: dict[str, Any]
) -> None:
    long_name = "weight" * 5_000  # a header that arrives in many pieces
    url = server.put("a.safetensors", safetensors(name=long_name), **manners)
    cache = FileCache(tmp_path, float("inf"), Patience(header=0.2))
    began = time.monotonic()
    with pytest.raises(RunError, match=r"a.safetensors: could not be fetched"):
        cache.identity(url)
    with pytest.raises(Cancelled):
        cache.identity(url, lambda: True)
    assert time.monotonic() - began < 2
