"""The gate checks server names, pages of other sites, tokens and bodies, and sets headers for
browsers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient, WebSocketDenialResponse
from starlette.websockets import WebSocket

from katz_graph.core.errors import InputError
from katz_graph.web.http import body_limits
from katz_graph.web.http.content_policy import page_policy
from katz_graph.web.http.responses import Refusal, refuse
from katz_graph.web.http.security import Security
from katz_graph.web.options import Limits, ServeOptions

ADDRESS = "http://127.0.0.1:8188"
OWN = {"Origin": ADDRESS}
TOKEN = "a secret of many letters"


async def read(request: Request) -> Response:
    return PlainTextResponse(f"{len(await request.body())} bytes")


async def ignore(request: Request) -> Response:
    return PlainTextResponse("not read")


async def refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)
    return refuse(request, error.status, str(error), error.kind)


async def greet(websocket: WebSocket) -> None:
    await websocket.accept()
    await websocket.send_text("hello")
    await websocket.close()


def guarded(address: str = ADDRESS, **options: Any) -> TestClient:
    paths = (
        "/",
        "/queue",
        "/prompt",
        "/api/prompt",
        "/upload/image",
        "/settings/x",
        "/livez",
        "/api/readyz",
        "/metrics",
        "/view",
    )
    routes = [Route(path, read, methods=["GET", "POST", "DELETE"]) for path in paths]
    app = Starlette(
        routes=[*routes, Route("/ignore", ignore, methods=["POST"]), WebSocketRoute("/ws", greet)],
        exception_handlers={Refusal: refused},
    )
    return TestClient(
        Security(app, ServeOptions(**options)), base_url=address, follow_redirects=False
    )


def greeting(client: TestClient, path: str = "/ws", **headers: str) -> str:
    """Returns a websocket's greeting, or the status of its refusal."""
    try:
        with client.websocket_connect(
            path, headers={"host": "127.0.0.1:8188", **headers}
        ) as socket:
            return str(socket.receive_text())
    except WebSocketDenialResponse as refused:
        return str(refused.status_code)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8188", 200),
        ("localhost:8188", 200),
        ("LOCALHOST", 200),
        ("localhost.:8188", 200),
        ("[::1]:8188", 200),
        ("127.0.0.9", 200),
        ("evil.example", 403),
        ("evil.example:8188", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1@evil.example", 403),
        ("0.0.0.0:8188", 403),
        ("192.168.1.7:8188", 403),
        ("2130706433", 403),
        ("127.1", 403),
        ("[::ffff:10.0.0.1]", 403),
        ("[::1", 403),
        ("localhost:99999", 403),
        ("localhost:8188:1", 403),
        ("localhost,evil.example", 403),
        ("local host", 403),
        ("löcalhost", 403),
        ("", 403),
    ],
)
def test_a_page_with_a_rebound_name_gets_nothing(host: str, status: int) -> None:
    client = guarded()
    header = host.encode("latin-1").decode("latin-1")
    assert client.get("/queue", headers=[(b"host", header.encode("latin-1"))]).status_code == status  # type: ignore[arg-type]


def test_hosts_of_a_server_that_others_reach() -> None:
    def status(host: str, **options: Any) -> int:
        client = guarded(host="0.0.0.0", token=TOKEN, **options)
        return client.get(
            "/queue", headers={"Host": host, "Authorization": f"Bearer {TOKEN}"}
        ).status_code

    # only a page served from an address can use the address as its host name
    assert status("192.168.1.7:8188") == 200
    assert status("[2001:db8::1]:8188") == 200
    assert status("evil.example") == 403
    assert status("pictures.example", allowed_hosts=("Pictures.Example",)) == 200


@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "http://evil.example",
        "http://127.0.0.1",
        "http://127.0.0.1:3000",
        "https://127.0.0.1:8188",
        "http://localhost:8188",
        "http://127.0.0.1:8188.evil.example",
        "http://evil.example@127.0.0.1:8188",
        "http://127.0.0.1:8188@evil.example",
        "file://",
        "chrome-extension://abcdefgh",
        "127.0.0.1:8188",
        "",
    ],
)
def test_pages_of_other_origins_are_refused_on_routes_and_websockets(origin: str) -> None:
    client = guarded()
    for method, path in [
        ("GET", "/queue"),
        ("POST", "/prompt"),
        ("GET", "/livez"),
        ("GET", "/"),
        ("OPTIONS", "/prompt"),
        ("GET", "/none"),
    ]:
        answer = client.request(method, path, headers={"Origin": origin})
        assert answer.status_code == 403, (method, path)
        assert "access-control-allow-origin" not in answer.headers
    assert greeting(client, origin=origin) == "403"


def test_own_pages_and_scripts_are_served() -> None:
    client = guarded()
    for headers in (
        {},
        OWN,
        {**OWN, "Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "none"},
        {"Origin": ADDRESS.upper()},
    ):
        assert client.get("/queue", headers=headers).status_code == 200
    assert greeting(client) == "hello"
    assert greeting(client, origin=ADDRESS) == "hello"
    assert greeting(client, host="evil.example", origin="http://evil.example") == "403"


@pytest.mark.parametrize("site", ["cross-site", "same-site", "", "nonsense", "none, cross-site"])
def test_requests_that_a_browser_calls_foreign_are_refused(site: str) -> None:
    client = guarded()
    assert client.get("/view", headers={"Sec-Fetch-Site": site}).status_code == 403
    assert client.get("/view", headers={**OWN, "Sec-Fetch-Site": site}).status_code == 403
    assert greeting(client, **{"sec-fetch-site": site}) == "403"


def test_headers_that_come_twice_are_refused() -> None:
    client = guarded()
    own, evil = (b"origin", ADDRESS.encode()), (b"origin", b"http://evil.example")
    for headers in ([own, evil], [evil, own], [own, own]):
        assert client.get("/queue", headers=headers).status_code == 403  # type: ignore[arg-type]
    hosts = [(b"host", b"127.0.0.1:8188"), (b"host", b"evil.example")]
    assert client.get("/queue", headers=hosts).status_code == 403  # type: ignore[arg-type]


def test_default_ports_need_not_be_named() -> None:
    assert (
        guarded("http://localhost")
        .get("/queue", headers={"Origin": "http://localhost"})
        .status_code
        == 200
    )
    assert (
        guarded("http://localhost")
        .get("/queue", headers={"Host": "localhost:80", "Origin": "http://localhost"})
        .status_code
        == 200
    )
    assert (
        guarded("https://localhost")
        .get("/queue", headers={"Origin": "https://localhost"})
        .status_code
        == 200
    )
    assert (
        guarded("https://localhost")
        .get("/queue", headers={"Origin": "http://localhost"})
        .status_code
        == 403
    )


def test_origins_that_the_operator_allows() -> None:
    client = guarded(allowed_origins=("https://studio.example/",))
    guest = {"Origin": "https://studio.example", "Sec-Fetch-Site": "cross-site"}
    answer = client.post("/prompt", headers=guest, json={})
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (
        200,
        "https://studio.example",
    )
    asked = client.options("/prompt", headers={**guest, "Access-Control-Request-Method": "POST"})
    assert (asked.status_code, "Content-Type" in asked.headers["access-control-allow-headers"]) == (
        200,
        True,
    )
    assert "access-control-allow-credentials" not in asked.headers
    assert greeting(client, origin="https://studio.example") == "hello"
    assert client.post("/prompt", headers={"Origin": "http://studio.example"}).status_code == 403
    assert client.post("/prompt", headers=guest, content=b"{}").status_code == 415
    assert client.get("/queue", headers={**guest, "Host": "evil.example"}).status_code == 403


@pytest.mark.parametrize(
    "option",
    [
        {"allowed_origins": ("studio.example",)},
        {"allowed_origins": ("null",)},
        {"allowed_hosts": ("a b",)},
    ],
)
def test_invalid_permissions_are_reported_at_the_start(option: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="--allowed-"):
        guarded(**option)


def test_an_allowed_host_may_be_written_with_a_port() -> None:
    assert (
        guarded(allowed_hosts=("pictures.example:8188",))
        .get("/queue", headers={"Host": "pictures.example"})
        .status_code
        == 200
    )


BODIES = {
    "application/json": 200,
    "application/json; charset=utf-8": 200,
    "multipart/form-data; boundary=x": 200,
    "multipart/form-data; boundary=x; charset=UTF-8": 200,
    "text/plain;charset=UTF-8": 415,
    "application/x-www-form-urlencoded": 415,
    "application/octet-stream": 415,
    "application/jsonp": 415,
    "": 415,
}


@pytest.mark.parametrize(("kind", "status"), BODIES.items())
def test_a_form_of_a_page_cannot_queue_anything(kind: str, status: int) -> None:
    client = guarded()
    for headers in (OWN, {"Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "none"}):
        sent = {**headers, "Content-Type": kind} if kind else headers
        for path in ("/prompt", "/queue"):
            assert client.post(path, content=b"{}", headers=sent).status_code == status
        assert client.post("/queue", content=iter([b"{}"]), headers=sent).status_code == status
    # as a script sends it
    assert (
        client.post(
            "/prompt", content=b"{}", headers={"Content-Type": kind} if kind else {}
        ).status_code
        == 200
    )


def test_bodies_besides_json_that_pages_may_send() -> None:
    client = guarded()
    png = {**OWN, "Content-Type": "image/png"}
    assert [
        client.post(path, content=b"x", headers=png).status_code
        for path in ("/prompt", "/api/prompt", "/queue")
    ] == [200, 200, 415]
    assert client.post("/queue", headers=OWN).status_code == 200  # an empty body
    editor = {**OWN, "Content-Type": "text/plain;charset=UTF-8", "Comfy-User": ""}
    assert client.post("/settings/x", content=b"true", headers=editor).status_code == 200
    assert (
        client.post(
            "/settings/x", content=b"true", headers={**editor, "Origin": "http://evil.example"}
        ).status_code
        == 403
    )


def test_the_token_is_asked_for_everywhere_but_at_the_pulse() -> None:
    client = guarded(token=TOKEN)
    for path in ("/queue", "/metrics", "/", "/view", "/nowhere", "/livez/x", "/livezz"):
        answer = client.get(path)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer"), path
        assert TOKEN not in answer.text
    assert client.post("/prompt", json={}).json()["error"]["type"] == "unauthorized"
    assert [client.get(path).status_code for path in ("/livez", "/api/readyz")] == [200, 200]
    assert greeting(client) == "401"


def test_ways_to_give_the_token() -> None:
    client = guarded(token=TOKEN)
    for given in (f"Bearer {TOKEN}", f"bearer {TOKEN}"):
        assert client.get("/queue", headers={"Authorization": given}).status_code == 200
    for given in (
        TOKEN,
        f"Basic {TOKEN}",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        "Bearer ",
        "Bearer",
        "Bearer \xff",
    ):
        assert (
            client.get("/queue", headers=[(b"authorization", given.encode("latin-1"))]).status_code
            == 401
        )  # type: ignore[arg-type]
    assert greeting(client, f"/ws?clientId=a&token={TOKEN}") == "hello"
    assert greeting(client, "/ws?token=wrong") == "401"
    assert greeting(client, authorization=f"Bearer {TOKEN}") == "hello"
    # only for pages and websockets, which cannot send headers
    assert client.get(f"/queue?token={TOKEN}").status_code == 401
    assert client.get("/queue", headers={"Cookie": "katz_token=wrong"}).status_code == 401


def test_a_page_takes_the_token_from_its_address_into_a_cookie() -> None:
    client = guarded(token=TOKEN)
    answer = client.get("/", params={"token": TOKEN, "workflow": "a b"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/?workflow=a+b")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie and "secure" not in cookie
    assert client.get("/").status_code == 200
    assert client.get("/queue", headers=OWN).status_code == 200
    assert (
        client.post("/prompt", json={}, headers={"Origin": "http://evil.example"}).status_code
        == 403
    )
    assert client.get("/", params={"token": "wrong"}, headers={"Cookie": ""}).status_code in (
        303,
        401,
    )
    assert guarded(token=TOKEN).get("/", params={"token": "wrong"}).status_code == 401


def test_a_page_asks_for_the_token_and_takes_it_in_a_header() -> None:
    client = guarded(token=TOKEN)
    asked = client.get("/", headers={"Accept": "text/html,*/*"})
    assert asked.status_code == 401 and "--token-file" in asked.text
    assert "sha256-" in asked.headers["content-security-policy"]
    assert client.get("/queue", headers={"Accept": "text/html"}).json()["error"]
    wrong = client.post("/", headers={**OWN, "Authorization": "Bearer wrong"})
    assert (wrong.status_code, "set-cookie" in wrong.headers) == (401, False)
    given = client.post("/", headers={**OWN, "Authorization": f"Bearer {TOKEN}"})
    assert (given.status_code, given.headers["cache-control"]) == (204, "no-store")
    cookie = given.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie
    assert client.get("/queue", headers=OWN).status_code == 200


def test_the_token_of_an_https_page_is_sent_by_https_only() -> None:
    assert (
        "secure"
        in guarded("https://localhost", token=TOKEN)
        .get("/", params={"token": TOKEN})
        .headers["set-cookie"]
        .lower()
    )


def test_bodies_are_capped_whether_or_not_they_announce_their_length() -> None:
    client = guarded(limits=Limits(body_bytes=1000, upload_bytes=5000))
    assert client.post("/prompt", content=b"x" * 1000).status_code == 200
    assert client.post("/prompt", content=b"x" * 1001).json()["error"]["type"] == "too_large"
    assert client.post("/prompt", content=iter([b"x" * 600] * 2)).status_code == 413
    assert client.post("/upload/image", content=b"x" * 4000).status_code == 200
    assert client.post("/ignore", content=b"x" * 2**17).status_code == 413
    assert (
        client.post("/queue", content=b"x", headers={"Content-Encoding": "gzip"}).status_code == 415
    )


def test_a_body_that_stands_still_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_limits, "MAX_SILENCE_S", 0.05)

    async def silent() -> Any:
        await asyncio.Event().wait()

    assert posted(silent) == 408


def posted(receive: Callable[[], Coroutine[Any, Any, Any]]) -> int:
    """Returns the response status for a body from `receive`."""
    sent: list[Any] = []

    async def keep(message: Any) -> None:
        sent.append(message)

    async def ask() -> None:
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/prompt",
            "raw_path": b"/prompt",
            "query_string": b"",
            "scheme": "http",
        }
        headers = [(b"host", b"localhost"), (b"transfer-encoding", b"chunked")]
        await guarded().app(
            {**scope, "headers": headers, "http_version": "1.1", "server": ("localhost", 80)},
            receive,
            keep,
        )

    asyncio.run(ask())
    status: int = sent[0]["status"]
    return status


def test_every_answer_has_security_headers() -> None:
    client = guarded(token=TOKEN)
    for answer in (
        client.get("/livez"),
        client.get("/queue"),
        client.get("/livez", headers={"Origin": "null"}),
        client.get("/nowhere"),
    ):
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        # with no-referrer, browsers send `null` for a page's own forms
        assert answer.headers["referrer-policy"] == "same-origin"
        policy = dict(
            rule.split(" ", 1) for rule in answer.headers["content-security-policy"].split("; ")
        )
        assert (policy["default-src"], policy["frame-ancestors"], policy["object-src"]) == (
            "'self'",
            "'none'",
            "'none'",
        )
        assert (
            "'unsafe-inline'" not in policy["script-src"]
            and "'unsafe-eval'" not in policy["script-src"]
        )


def test_a_page_with_scripts_inside_names_them_by_digest() -> None:
    page = b'<script src="of.js"></script><script>abc</script>'
    digest = "sha256-ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0="  # FIPS 180-2, appendix B.1
    assert f"script-src 'self' 'wasm-unsafe-eval' '{digest}';" in page_policy(page)


@pytest.mark.parametrize(
    "charset",
    [
        "punycode",
        "idna",
        "unicode_escape",
        "utf-7",
        '"punycode"',
        "latin-1",
        "utf-8; charset=punycode",
        "",
    ],
)
def test_forms_are_read_in_one_way_only(charset: str) -> None:
    headers = {"Content-Type": f"multipart/form-data; boundary=x; charset={charset}"}
    assert guarded().post("/prompt", content=b"x", headers=headers).status_code == 415


def test_a_body_that_trickles_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_limits, "MAX_SILENCE_S", 0.3)
    pieces = 0

    async def trickle() -> Any:
        nonlocal pieces
        pieces += 1
        await asyncio.sleep(0.05)
        return {"type": "http.request", "body": b"x", "more_body": pieces < 100}

    assert posted(trickle) == 408 and pieces < 20


def test_any_route_answers_head_and_options() -> None:
    client = guarded(token=TOKEN)
    known = {"Authorization": f"Bearer {TOKEN}"}
    for path, status in (("/queue", 200), ("/nowhere", 404), ("/ignore", 405)):
        asked, got = client.head(path, headers=known), client.get(path, headers=known)
        assert (asked.status_code, asked.content, got.status_code) == (status, b"", status)
        assert asked.headers["content-length"] == got.headers["content-length"]
    assert client.head("/queue").status_code == 401
    assert client.options("/prompt", headers=OWN).status_code == 200
    assert client.options("/prompt", headers={"Origin": "http://evil.example"}).status_code == 403
