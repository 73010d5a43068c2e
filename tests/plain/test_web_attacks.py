"""A server on a real socket survives raw bytes, names, pages of other sites and endless bodies, and
reveals nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import itertools
import json
import logging
import random
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import pytest
from web_server import GRAPH, ScriptedRunner
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from katz_graph.web.app import build
from katz_graph.web.http import connections
from katz_graph.web.http.connections import HttpServer, listen
from katz_graph.web.http.places import HEALTH_PLACES, Places
from katz_graph.web.jobs.store import JobStore
from katz_graph.web.options import Limits, ServeOptions
from katz_graph.web.serve import assemble

TOKEN = "0123456789abcdef-of-the-tests"
SECRET = "what nobody may read"
HOSTILE = 1_000  # names over raw sockets; test_web_paths.py has more
BROKEN = 500  # requests with some bytes changed
BODY_LIMIT = 2**20
CONNECTIONS = 20
STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
CLOSE = "Connection: close"
NAMES = (
    *(
        "..",
        "%2e%2e",
        "%252e%252e",
        "..%2f",
        "..%5c",
        "/",
        "//",
        "%2f",
        "%00",
        "%0d%0a",
        "%c0%ae",
        "etc/passwd",
        "secret.txt",
        "out",
    ),
    *(
        "C:",
        "~root",
        "%ff",
        "%u002e",
        ";",
        "x" * 300,
        "%F0%9F%90%88",
        "%E2%80%AE",
        "file:%2f%2f",
        "proc/self/environ",
        "+",
        "&",
        "=",
        "%",
    ),
)
STARTS = (
    *(
        "/",
        "/view?filename=",
        "/view?type=input&filename=a&subfolder=",
        "/userdata/",
        "/api/userdata/",
        "/userdata?dir=",
    ),
    *(
        "/v2/userdata?path=",
        "/extensions/",
        "/view_metadata/loras?filename=",
        "/experiment/models/preview/loras/0/",
        "/models/",
        "/history/",
    ),
)
DOUBTFUL = (
    "Content-Length: 4\r\nContent-Length: 400",
    "Content-Length: 4\r\nTransfer-Encoding: chunked",
    "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
    "Transfer-Encoding: xchunked",
    "Content-Length: -4",
    "Content-Length: +4",
    "Host: evil.example",
    " folded: yes",
)


@dataclass(frozen=True, slots=True)
class Attacked:
    """Describes a server on `port` with its data below `folder`."""

    port: int
    folder: Path

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def send(self, data: bytes, half: bool = False) -> bytes:
        """Returns the response to bytes on a new connection. `half`: closes the sending side, which
        ends an endless request.
        """
        answer = b""
        with (
            socket.create_connection(("127.0.0.1", self.port), timeout=10) as connection,
            contextlib.suppress(ConnectionError),
        ):
            connection.sendall(data)
            if half:
                with contextlib.suppress(OSError):  # already disconnected
                    connection.shutdown(socket.SHUT_WR)
            while piece := connection.recv(2**16):
                answer += piece
        return answer

    def ask(
        self, target: str, *headers: str, method: str = "GET", token: bool = True, body: bytes = b""
    ) -> tuple[int, bytes]:
        """Returns status and whole response of a request with a raw target."""
        lines = [
            f"{method} {target} HTTP/1.1",
            f"Host: {self.host}",
            *headers,
            CLOSE,
            f"Content-Length: {len(body)}",
        ]
        lines += [f"Authorization: Bearer {TOKEN}"] if token else []
        answer = self.send("\r\n".join([*lines, "", ""]).encode() + body)
        match = STATUS.match(answer)
        assert match, (target, answer)
        return int(match[1]), answer

    def post(self, target: str, body: bytes, *headers: str) -> int:
        return self.ask(target, *headers, method="POST", body=body)[0]


async def _serve(folder: Path, started: Future[int], end: Future[None]) -> None:
    limits = Limits(body_bytes=BODY_LIMIT)
    options = ServeOptions(
        data=folder / "data",
        input=folder / "input",
        output=folder / "output",
        token=TOKEN,
        limits=limits,
    )
    store = JobStore.open(options.data)
    state = assemble(options, store, ScriptedRunner)  # type: ignore[arg-type]
    listening = listen("127.0.0.1", 0)
    await state.jobs.start()
    server = HttpServer(build(state), CONNECTIONS)
    serving = asyncio.create_task(server._serve([listening]))
    started.set_result(listening.getsockname()[1])
    await asyncio.wrap_future(end)
    server.end()
    await serving
    await state.jobs.close()
    await store.close()
    listening.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    folder = tmp_path_factory.mktemp("attacked")
    (folder / "secret.txt").write_text(SECRET)
    (folder / "output").mkdir()
    (folder / "output/out").symlink_to(folder)
    started: Future[int] = Future()
    end: Future[None] = Future()
    thread = threading.Thread(target=lambda: asyncio.run(_serve(folder, started, end)))
    thread.start()
    try:
        yield Attacked(started.result(30), folder)
    finally:
        end.set_result(None)
        thread.join(30)
    assert not thread.is_alive()


@pytest.fixture(autouse=True)
def nothing_unexpected_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert not [one for one in caplog.records if one.levelno >= logging.ERROR]
    assert TOKEN not in caplog.text


def test_a_refused_websocket_is_answered_and_logs_nothing(
    server: Attacked, caplog: pytest.LogCaptureFixture
) -> None:
    asked = (
        f"GET /ws HTTP/1.1\r\nHost: {server.host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n"
    )
    for _ in range(5):  # a request may be logged after its response
        assert server.send(asked.encode()).startswith(b"HTTP/1.1 401")
    assert not caplog.records


def test_names(server: Attacked) -> None:
    generator = random.Random(11)
    statuses: Counter[int] = Counter()
    for start in itertools.islice(itertools.cycle(STARTS), HOSTILE):
        target = start + "".join(generator.choices(NAMES, k=generator.randint(1, 5)))
        status, answer = server.ask(target)
        statuses[status] += 1
        assert status < 500, (target, answer)
        assert (
            SECRET.encode() not in answer
            and b"root:x:" not in answer
            and str(server.folder).encode() not in answer
        )
    assert statuses[404] and statuses[400]
    assert server.ask("/view?filename=out/secret.txt")[0] == 403


def test_broken_bytes(server: Attacked) -> None:
    generator = random.Random(12)
    whole = f"POST /queue HTTP/1.1\r\nHost: {server.host}\r\nContent-Length: 2\r\nAuthorization: Bearer {TOKEN}\r\n\r\n{{}}".encode()
    for _ in range(BROKEN):
        data = bytearray(whole)
        for _ in range(generator.randint(1, 8)):
            place = generator.randrange(len(data))
            data[place : place + generator.randint(0, 2)] = generator.randbytes(
                generator.randint(0, 3)
            )
        assert not server.send(bytes(data), half=True).startswith(b"HTTP/1.1 5"), data
    for noise in (
        b"",
        b"\0" * 1000,
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\0\x01",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /" + b"x" * 10**6,
    ):
        assert not server.send(noise, half=True).startswith(b"HTTP/1.1 5")


@pytest.mark.parametrize("headers", DOUBTFUL)
def test_one_request_is_not_taken_for_two(server: Attacked, headers: str) -> None:
    known = f"Host: {server.host}\r\nAuthorization: Bearer {TOKEN}\r\n"
    inner = f"GET /queue HTTP/1.1\r\n{known}\r\n"
    answer = server.send(
        f"POST /queue HTTP/1.1\r\n{known}{headers}\r\n\r\n0\r\n\r\n{inner}".encode(), half=True
    )
    assert b"queue_running" not in answer
    assert not answer.startswith((b"HTTP/1.1 5", b"HTTP/1.1 2")), answer


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/queue",
        "/object_info",
        "/livez",
        "/metrics",
        "/openapi.json",
        "/nowhere",
        "/view?filename=a",
    ],
)
def test_other_names_and_pages_of_other_sites(server: Attacked, path: str) -> None:
    evil = f"HTTP/1.1\r\nHost: evil.example\r\nAuthorization: Bearer {TOKEN}\r\n{CLOSE}\r\n\r\n"
    assert server.send(f"GET {path} {evil}".encode()).startswith(b"HTTP/1.1 403 ")
    assert server.send(f"GET http://{server.host}{path} {evil}".encode())[9:12] in (
        b"400",
        b"403",
        b"404",
    )
    for origin in (
        "null",
        "http://evil.example",
        f"https://{server.host}",
        f"http://{server.host}.evil.example",
    ):
        assert server.ask(path, f"Origin: {origin}")[0] == 403
    for site in ("cross-site", "same-site"):
        assert server.ask(path, f"Sec-Fetch-Site: {site}")[0] == 403


def test_forms_of_pages_queue_nothing(server: Attacked) -> None:
    page = f"Origin: http://{server.host}"
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        assert server.post("/queue", b'{"clear": true}', page, f"Content-Type: {kind}") == 415
        # as a script sends it
        assert server.post("/queue", b'{"clear": true}', f"Content-Type: {kind}") == 200
    assert server.post("/queue", b"{}", page, "Content-Type: application/json") == 200


def test_nothing_without_the_token(server: Attacked) -> None:
    described = json.loads(server.ask("/openapi.json")[1].partition(b"\r\n\r\n")[2])["paths"]
    assert len(described) > 30
    for path, operations in described.items():
        for method in operations:
            status, answer = server.ask(
                re.sub(r"\{\w+\}", "x", path), method=method.upper(), token=False
            )
            assert status == (200 if path in ("/livez", "/readyz") else 401), (method, path)
            assert TOKEN.encode() not in answer


def test_websockets_of_strangers(server: Attacked) -> None:
    async def status(origin: str | None, token: str) -> int:
        try:
            async with connect(
                f"ws://{server.host}/ws?clientId=a&token={token}", origin=origin
            ) as opened:  # type: ignore[arg-type]
                assert json.loads(await opened.recv())["type"] == "status"
                return 101
        except InvalidStatus as refused:
            return refused.response.status_code

    own = f"http://{server.host}"
    tried = {
        (None, TOKEN): 101,
        (own, TOKEN): 101,
        (None, "wrong"): 401,
        (None, ""): 401,
        ("null", TOKEN): 403,
        ("http://evil.example", TOKEN): 403,
    }
    for (origin, token), expected in tried.items():
        assert asyncio.run(status(origin, token)) == expected, origin


def test_bodies_without_end_and_without_sense(server: Attacked) -> None:
    assert server.post("/prompt", b"[" * 500_000) == 400
    assert server.post("/prompt", b'{"prompt":' + b'{"a":' * 100_000) == 400
    assert (
        server.post(
            "/prompt", b'{"prompt":{"1":{"class_type":"X","inputs":{"a":' + b"9" * 10_000 + b"}}}}"
        )
        == 400
    )
    assert server.post("/prompt", b"x" * (BODY_LIMIT + 1)) == 413
    head = f"POST /prompt HTTP/1.1\r\nHost: {server.host}\r\nAuthorization: Bearer {TOKEN}\r\n"
    assert server.send(f"{head}{CLOSE}\r\nContent-Length: {10**15}\r\n\r\n{{".encode()).startswith(
        b"HTTP/1.1 413 "
    )
    piece = b"10000\r\n" + b"x" * 2**16 + b"\r\n"
    assert server.send(
        f"{head}{CLOSE}\r\nTransfer-Encoding: chunked\r\n\r\n".encode() + piece * 17
    ).startswith(b"HTTP/1.1 413 ")


def test_requests_that_never_become_whole(
    server: Attacked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "ASKING", 0.5)
    known = f"Host: {server.host}\r\nAuthorization: Bearer {TOKEN}\r\n"
    whole = f"GET /queue HTTP/1.1\r\n{known}\r\n".encode()
    refused = f"POST /queue HTTP/1.1\r\n{known}Content-Length: {10**9}\r\n\r\n".encode()
    for beginning in (b"", b"GET /queue HT", whole + b"GET /queue HT", refused):
        with socket.create_connection(("127.0.0.1", server.port), timeout=5) as slow:
            slow.sendall(beginning)
            began, answer = time.monotonic(), b""
            slow.settimeout(0.1)
            while time.monotonic() - began < 5:
                try:
                    piece = slow.recv(2**16)
                except TimeoutError:
                    with contextlib.suppress(OSError):
                        slow.sendall(b"x")
                    continue
                except ConnectionError:
                    break
                if not piece:
                    break
                answer += piece
            assert time.monotonic() - began < 3, beginning
            assert answer.startswith(b"HTTP/1.1 ") == (beginning not in (b"", b"GET /queue HT"))


def test_an_idle_connection_outlives_usual_clients(server: Attacked) -> None:
    """uvicorn closes after 5 s, often while a request arrives."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    with contextlib.closing(connection):
        for pause in (5.5, 0.0):
            connection.request("GET", "/livez")
            assert connection.getresponse().read()
            socket_before = connection.sock
            time.sleep(pause)
        assert connection.sock is socket_before is not None


def test_a_websocket_lasts_longer_than_a_request_may_take(
    server: Attacked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "ASKING", 2.0)

    async def stay() -> None:
        async with connect(f"ws://{server.host}/ws?clientId=a&token={TOKEN}") as opened:
            await asyncio.sleep(2.5)
            await asyncio.wait_for(await opened.ping(), 10)

    asyncio.run(stay())


@pytest.mark.defect(26)
@pytest.mark.parametrize("beginning", [b"", b"GET /queue HT"])
def test_one_address_cannot_keep_the_others_out(server: Attacked, beginning: bytes) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(CONNECTIONS + 8):
            held = socket.create_connection(
                ("127.0.0.1", server.port), timeout=5, source_address=("127.0.0.2", 0)
            )
            stack.enter_context(held)
            with contextlib.suppress(OSError):
                held.sendall(beginning)
        for address in ("127.0.0.3", "127.0.0.2"):
            asked = f"GET /livez HTTP/1.1\r\nHost: {server.host}\r\n{CLOSE}\r\n\r\n"
            with socket.create_connection(
                ("127.0.0.1", server.port), timeout=5, source_address=(address, 0)
            ) as other:
                other.sendall(asked.encode())
                assert other.recv(2**16).startswith(b"HTTP/1.1 200 "), address


@pytest.mark.defect(26)
def test_health_is_answered_while_every_place_is_busy(server: Attacked) -> None:
    head = (
        f"POST /prompt HTTP/1.1\r\nHost: {server.host}\r\nAuthorization: Bearer {TOKEN}\r\n"
        "Content-Length: 100\r\n\r\n"
    )
    with contextlib.ExitStack() as stack:
        for _ in range(CONNECTIONS):
            held = socket.create_connection(("127.0.0.1", server.port), timeout=5)
            stack.enter_context(held).sendall(head.encode())
        time.sleep(0.1)  # until the server reads all of them
        assert server.ask("/livez", token=False)[0] == 200
        assert server.ask("/queue")[0] == 503


@dataclass(slots=True)
class Peer:
    """A fake connection for `Places`."""

    host: str
    known: bool = False
    busy: bool = False
    since: float = 0.0
    only_health: bool = False
    left: bool = False

    @property
    def transport(self) -> Peer:
        return self

    def get_extra_info(self, name: str) -> tuple[str, int]:
        return self.host, 1

    def is_closing(self) -> bool:
        return self.left

    def abort(self) -> None:
        self.left = True


def stays(there: list[Peer], new: Peer, connections: int = 4) -> list[Peer]:
    Places(connections).make_room(new, [*there, new])
    return [one for one in (*there, new) if not one.left]


@pytest.mark.defect(26)
def test_clients_that_change_connections() -> None:
    strangers = [Peer("192.0.2.1", since=1), Peer("192.0.2.1", known=True), Peer("192.0.2.2")]
    assert len(stays(strangers, Peer("192.0.2.3"))) == 4
    oldest = Peer("192.0.2.1", since=0)
    assert oldest not in stays([*strangers, oldest], Peer("192.0.2.3"))
    crowd = [Peer("192.0.2.1", known=True, since=at) for at in (3, 2, 1)]
    assert crowd[2] not in stays(crowd, Peer("192.0.2.1"))
    network = [Peer(f"2001:db8::{at}") for at in range(3)]
    assert network[0] not in stays(network, Peer("2001:db8::9"))
    busy = [Peer("192.0.2.1", busy=True) for _ in range(4)]
    late = [Peer(f"198.51.100.{at}", busy=True, since=at) for at in range(HEALTH_PLACES + 1)]
    for count, one in enumerate(late):
        stays([*busy, *late[:count]], one)
    assert not any(one.left for one in busy) and all(one.only_health for one in late)
    assert [one.left for one in late] == [True] + [False] * HEALTH_PLACES


def test_codecs_that_python_has_and_forms_have_not(server: Attacked) -> None:
    body = (
        b'--x\r\nContent-Disposition: form-data; name="workflow"\r\n\r\n'
        + b"a-" * 200_000
        + b"\r\n--x--\r\n"
    )
    for codec in ("punycode", "idna", "unicode_escape", "undefined"):
        assert (
            server.post(
                "/prompt", body, f"Content-Type: multipart/form-data; boundary=x; charset={codec}"
            )
            == 415
        )


def test_it_works_afterwards_and_nothing_lies_outside(server: Attacked) -> None:
    assert server.post("/prompt", json.dumps({"prompt": GRAPH}).encode()) == 200
    assert {path.name for path in server.folder.iterdir()} <= {
        "secret.txt",
        "data",
        "input",
        "output",
    }
    assert (server.folder / "secret.txt").read_text() == SECRET
    assert sorted(path.name for path in (server.folder / "output").iterdir()) == ["out"]
