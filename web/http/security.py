"""Guards every route: names of this server, allowed origins, token, body sizes, and response
headers.

Must not know the routes.
"""

from __future__ import annotations

import contextlib
from http import HTTPStatus
from http.cookies import SimpleCookie
from urllib.parse import parse_qsl, urlencode

from python_multipart.multipart import parse_options_header
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from katz_graph.web.http.access import COOKIE, KNOWN, OPEN, Access, body_trouble
from katz_graph.web.http.body_limits import HELD, BoundedBody, body_limit, too_large
from katz_graph.web.http.content_policy import POLICY, page_policy
from katz_graph.web.http.responses import json_answer, refuse
from katz_graph.web.options import ServeOptions

PAGE = "/"
UTF_8 = (b"utf-8", b"utf8")
READING = ("GET", "HEAD", "OPTIONS")
NO_TOKEN = (
    "this server needs a token: send 'Authorization: Bearer TOKEN', or open its page "
    "with ?token=TOKEN once"
)
ASKING = {
    "Allow": "GET, HEAD, POST, DELETE, PATCH, OPTIONS",
    "Access-Control-Allow-Methods": "GET, HEAD, POST, DELETE, PATCH",
    "Access-Control-Allow-Headers": "Authorization, Comfy-User, Content-Type, Idempotency-Key, "
    "X-Request-ID",
    "Access-Control-Max-Age": "600",
}
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}


class Security:
    """Guards HTTP and websockets as ASGI middleware in front of all routes.

    A body that exceeds its limit or stalls raises Refusal in the code that reads it.
    """

    def __init__(self, app: ASGIApp, options: ServeOptions) -> None:
        self._app = app
        self._access = Access.of(options)
        self._limits = options.limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        guest = self._access.asks_from(headers)
        if scope["type"] == "websocket":
            denial = self._denial(scope, headers)
            await (
                self._app(scope, receive, send)
                if denial is None
                else _deny(denial, scope, receive, send)
            )
            return
        answer = self._answer(scope, headers, guest)
        bounded = BoundedBody(receive, body_limit(scope["path"], self._limits))
        hardened = _hardened(send, guest)
        with contextlib.ExitStack() as scope[HELD]:
            if answer is None and scope["method"] == "HEAD":
                await _head(self._app, scope, bounded.receive, hardened)
            else:
                await (self._app if answer is None else answer)(scope, bounded.receive, hardened)

    def _answer(self, scope: Scope, headers: Headers, guest: str | None) -> Response | None:
        """Answers requests that need no route; returns None if the routes may answer."""
        request = Request(scope)
        # a proxy may see the body end elsewhere
        if "transfer-encoding" in headers and "content-length" in headers:
            answer = refuse(
                request,
                HTTPStatus.BAD_REQUEST,
                "send Content-Length or Transfer-Encoding, not both",
            )
            answer.headers["Connection"] = "close"
            return answer
        trouble = self._access.foreign(scope["scheme"], headers)
        if trouble is not None:
            return refuse(request, HTTPStatus.FORBIDDEN, trouble, "forbidden")
        if scope["method"] == "OPTIONS":  # same for every route; browsers send it without token
            return Response(headers=ASKING)
        page = scope["path"] == PAGE and scope["method"] in READING
        if not OPEN.fullmatch(scope["path"]) and not self._access.holds(
            headers, scope["query_string"] if page else b""
        ):
            if page and "text/html" in headers.get("accept", ""):
                return token_form()
            answer = refuse(request, HTTPStatus.UNAUTHORIZED, NO_TOKEN, "unauthorized")
            answer.headers["WWW-Authenticate"] = "Bearer"
            return answer
        if not OPEN.fullmatch(scope["path"]):
            scope[KNOWN] = True
        if page and self._access.token is not None and b"token=" in scope["query_string"]:
            return self._remembering(scope)
        if scope["path"] == PAGE and scope["method"] == "POST" and self._access.token is not None:
            return Response(status_code=HTTPStatus.NO_CONTENT, headers=self._cookie(scope))
        if scope["method"] not in READING:
            return self._body_refused(request, headers)
        return None

    def _body_refused(self, request: Request, headers: Headers) -> Response | None:
        trouble = body_trouble(request.url.path, headers)
        if trouble is not None:
            return refuse(
                request, HTTPStatus.UNSUPPORTED_MEDIA_TYPE, trouble, "unsupported_media_type"
            )
        if headers.get("content-encoding", "identity") != "identity":
            return refuse(
                request,
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
                "compressed bodies are not supported",
                "unsupported_media_type",
            )
        if _form_charset(headers) not in UTF_8:
            return refuse(
                request,
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
                "forms must be UTF-8",
                "unsupported_media_type",
            )
        length = headers.get("content-length", "0")
        limit = body_limit(request.url.path, self._limits)
        if length.isascii() and length.isdigit() and int(length) > limit:
            return refuse(
                request, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, too_large(limit), "too_large"
            )
        return None

    def _remembering(self, scope: Scope) -> Response:
        """Moves the token from the URL, which histories and logs record, into a cookie."""
        rest = urlencode(
            [
                (key, value)
                for key, value in parse_qsl(scope["query_string"].decode("latin-1"))
                if key != "token"
            ]
        )
        location = f"{PAGE}?{rest}" if rest else PAGE
        return Response(
            status_code=HTTPStatus.SEE_OTHER, headers={"Location": location, **self._cookie(scope)}
        )

    def _cookie(self, scope: Scope) -> dict[str, str]:
        """Returns headers that store the token in a cookie for this server only."""
        cookie: SimpleCookie = SimpleCookie()
        cookie[COOKIE] = self._access.token or ""
        cookie[COOKIE].update(
            {
                "path": "/",
                "httponly": True,
                "samesite": "Strict",
                "secure": scope["scheme"] == "https",
            }
        )
        return {"Set-Cookie": cookie[COOKIE].OutputString(), "Cache-Control": "no-store"}

    def _denial(self, scope: Scope, headers: Headers) -> Response | None:
        trouble = self._access.foreign(scope["scheme"], headers)
        if trouble is not None:
            return json_answer({"error": trouble}, HTTPStatus.FORBIDDEN)
        if not self._access.holds(headers, scope["query_string"]):
            return json_answer(
                {"error": NO_TOKEN}, HTTPStatus.UNAUTHORIZED, {"WWW-Authenticate": "Bearer"}
            )
        return None


def _form_charset(headers: Headers) -> bytes:
    """Returns the charset that the form parser uses for a multipart body; UTF-8 for other bodies.
    The parser accepts all of Python's codecs, and some need quadratic time.
    """
    kind, options = parse_options_header(headers.get("content-type"))
    return options.get(b"charset", UTF_8[0]).lower() if kind.startswith(b"multipart/") else UTF_8[0]


def _hardened(send: Send, guest: str | None) -> Send:
    """Adds browser security headers to every response, unless a route has set them."""

    async def hardened(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
            headers.setdefault("Content-Security-Policy", POLICY)
            if guest is not None:
                headers["Access-Control-Allow-Origin"] = guest
                headers.add_vary_header("Origin")
        await send(message)

    return hardened


async def _head(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Answers HEAD like GET, without a body. Stores the route in `scope`."""
    asked = {
        **scope,
        "method": "GET",
        "headers": [header for header in scope["headers"] if header[0] != b"range"],
    }
    # no file is read
    asked["extensions"] = {**scope.get("extensions", {}), "http.response.pathsend": {}}

    async def without_body(message: Message) -> None:
        if message["type"] == "http.response.start":
            await send(message)
            await send({"type": "http.response.body"})

    try:
        await app(asked, receive, without_body)
    finally:
        if "route" in asked:
            scope["route"] = asked["route"]


async def _deny(denial: Response, scope: Scope, receive: Receive, send: Send) -> None:
    if "websocket.http.response" in scope.get("extensions", {}):
        await denial(scope, receive, send)
    else:
        await send({"type": "websocket.close", "code": 1008})


TOKEN_FORM = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="color-scheme" content="dark light">
<title>Katz Graph</title></head><body><main><h1>Katz Graph</h1><form><p>This server needs a token.
It is in the file of --token-file, or in KATZ_TOKEN; ask the person who started the server.</p>
<label>Token <input type="password" name="token"
autocomplete="current-password" autofocus required></label> <button>Open</button>
<p><output></output></p></form></main><script>
const [form] = document.forms;
form.onsubmit = async (event) => {
  event.preventDefault();
  const headers = { Authorization: `Bearer ${form.token.value.trim()}` };
  const { ok } = await fetch("./", { method: "POST", headers }).catch(() => ({ ok: false }));
  if (ok) location.reload();
  else form.querySelector("output").value = "Wrong token.";
};
</script></body></html>
"""


def token_form() -> Response:
    """Returns a form that sends the token in a header, as clients do."""
    return HTMLResponse(
        TOKEN_FORM,
        HTTPStatus.UNAUTHORIZED,
        {
            "WWW-Authenticate": "Bearer",
            "Cache-Control": "no-store",
            "Content-Security-Policy": page_policy(TOKEN_FORM.encode()),
        },
    )
