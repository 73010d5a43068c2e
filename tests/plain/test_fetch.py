"""Files that URLs name: fetched once, whole or not at all, with one line for whatever goes wrong."""

from __future__ import annotations

import json
import resource
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fsspec
import pytest

from katz_graph.errors import InputError, KatzError, RunError
from katz_graph.files.folders import Folders
from katz_graph.models.loading.fetch import fetch


def safetensors(values: int = 1_000) -> bytes:
    header = json.dumps(
        {"weight": {"dtype": "F32", "shape": [values], "data_offsets": [0, 4 * values]}}
    ).encode()
    return len(header).to_bytes(8, "little") + header + bytes(4 * values)


FILE = safetensors()


class Server(ThreadingHTTPServer):
    """A server of one good file and several bad answers; counts what it was asked for."""

    asked = 0
    delay = 0.0
    daemon_threads = True


class Answers(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.asked += 1
        time.sleep(self.server.delay)
        path = self.path.partition("?")[0]
        if path == "/missing.safetensors":
            self.send_error(404)
        elif path == "/broken.safetensors":
            self.send_error(503)
        elif path == "/moved.safetensors":
            self.send_response(302)
            self.send_header("Location", "/canny.safetensors")
            self.send_header("Content-Length", "0")
            self.end_headers()
        else:
            body = b"<html>log in</html>" if path == "/page.safetensors" else FILE
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[:500] if path == "/cut.safetensors" else body)

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return Folders((tmp_path / "models",), downloads=tmp_path / "cache" / "fetched")


def get(folders: Folders, url: str) -> Path:
    place = folders.resolve("controlnet", url)
    fetch(url, place)
    return place


def address(server: Server, path: str) -> str:
    return f"http://127.0.0.1:{server.server_port}/{path}"


def left(folders: Folders) -> list[str]:
    """Files that a fetch left behind, locks aside."""
    assert folders.downloads is not None
    return sorted(
        path.name
        for path in folders.downloads.rglob("*")
        if path.is_file() and path.suffix != ".lock"
    )


@pytest.mark.parametrize(
    "path", ["canny.safetensors", "moved.safetensors", "api/download/123?token=secret"]
)
def test_fetched_once(server: Server, folders: Folders, path: str) -> None:
    place = get(folders, address(server, path))
    assert place.read_bytes() == FILE
    asked = server.asked
    assert get(folders, address(server, path)) == place
    assert server.asked == asked
    assert left(folders) == [place.name]


def test_equal_names_of_different_places_are_different_files(folders: Folders) -> None:
    first, second = (
        folders.resolve("controlnet", f"https://example.org/{user}/canny.safetensors")
        for user in "ab"
    )
    assert first != second
    assert first.name == second.name == "canny.safetensors"


def test_of_several_at_once_one_fetches(server: Server, folders: Folders) -> None:
    server.delay = 0.2
    url = address(server, "canny.safetensors")
    threads = [threading.Thread(target=get, args=(folders, url)) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert server.asked == 1
    assert left(folders) == ["canny.safetensors"]


@pytest.mark.parametrize(
    ("path", "kind", "words"),
    [
        ("missing.safetensors", InputError, "there is no such file"),
        (
            "broken.safetensors",
            RunError,
            "could not be fetched: the server answered 503 Service Unavailable$",
        ),
        ("page.safetensors", InputError, "a web page, not a model"),
        ("cut.safetensors", RunError, "could not be fetched: |the connection ended after 500"),
    ],
)
def test_what_does_not_come_whole_is_not_kept(
    server: Server, folders: Folders, path: str, kind: type[KatzError], words: str
) -> None:
    with pytest.raises(kind, match=words) as caught:
        get(folders, address(server, f"{path}?token=secret"))
    assert str(caught.value).startswith(address(server, path))
    assert not any(part in str(caught.value) for part in ("\n", "secret"))
    assert left(folders) == []


def test_no_server(server: Server, folders: Folders) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as unused:
        port = unused.server_port
    with pytest.raises(
        RunError,
        match=rf"^http://127.0.0.1:{port}/a.safetensors: could not be fetched.*(refused|connect)",
    ):
        get(folders, f"http://user:secret@127.0.0.1:{port}/a.safetensors")


def test_a_full_disk(server: Server, folders: Folders) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, limits[1]))
    try:
        with pytest.raises(RunError, match=r"could not be fetched to .*: File too large") as caught:
            get(folders, address(server, "canny.safetensors"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "\n" not in str(caught.value)
    assert left(folders) == []
    assert get(folders, address(server, "canny.safetensors")).read_bytes() == FILE


def test_what_a_killed_process_left_is_not_taken(server: Server, folders: Folders) -> None:
    url = address(server, "canny.safetensors")
    place = folders.resolve("controlnet", url)
    place.parent.mkdir(parents=True)
    place.with_name(f"{place.name}.part").write_bytes(FILE[:100])
    assert get(folders, url).read_bytes() == FILE
    assert left(folders) == ["canny.safetensors"]


def test_any_protocol_that_fsspec_has(folders: Folders) -> None:
    fsspec.filesystem("memory").pipe("/models/depth.safetensors", FILE)
    assert get(folders, "memory://models/depth.safetensors").read_bytes() == FILE
    with pytest.raises(
        InputError, match=r"^memory://models/none.safetensors: there is no such file"
    ):
        get(folders, "memory://models/none.safetensors")
    with pytest.raises(
        InputError,
        match=r"^carrier-pigeon://a/b.safetensors: cannot be fetched: Protocol not known",
    ):
        get(folders, "carrier-pigeon://a/b.safetensors")


def test_a_file_url_is_the_file_itself(folders: Folders, tmp_path: Path) -> None:
    assert (
        folders.resolve("controlnet", f"file://{tmp_path}/a%20b.safetensors")
        == tmp_path / "a b.safetensors"
    )


def test_pickles_are_refused_before_anything_is_fetched(server: Server, folders: Folders) -> None:
    with pytest.raises(InputError, match="is a pickle"):
        get(folders, address(server, "canny.pth?download=true"))
    assert server.asked == 0


def test_a_server_and_other_kinds_take_no_urls(tmp_path: Path, folders: Folders) -> None:
    closed = Folders((tmp_path,), paths=False, downloads=tmp_path)
    for where, kind, url in (
        (closed, "controlnet", "https://example.org/a.safetensors"),
        (closed, "controlnet", "file:///etc/passwd"),
        (folders, "input", "https://example.org/a.png"),
    ):
        with pytest.raises(InputError, match=f"{kind} cannot be named by a URL here"):
            where.resolve(kind, url)
