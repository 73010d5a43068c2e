"""Asks for the server's token in a browser."""

from __future__ import annotations

from http import HTTPStatus

from starlette.responses import HTMLResponse, Response

from katz_graph.web.http.content_policy import page_policy

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="color-scheme" content="dark light">
<title>Katz Graph</title></head><body><main><h1>Katz Graph</h1><form><p>This server asks for its
token. It stands in the file that the server was started with (--token-file), or in its KATZ_TOKEN;
who started the server knows it.</p><label>Token <input type="password" name="token"
autocomplete="current-password" autofocus required></label> <button>Open</button>
<p><output></output></p></form></main><script>
const [form] = document.forms;
form.onsubmit = async (event) => {
  event.preventDefault();
  const headers = { Authorization: `Bearer ${form.token.value.trim()}` };
  const { ok } = await fetch("./", { method: "POST", headers }).catch(() => ({ ok: false }));
  if (ok) location.reload();
  else form.querySelector("output").value = "This is not the token.";
};
</script></body></html>
"""


def asking_for_token() -> Response:
    """Returns a form that sends the token in a header, as clients do."""
    return HTMLResponse(
        PAGE,
        HTTPStatus.UNAUTHORIZED,
        {
            "WWW-Authenticate": "Bearer",
            "Cache-Control": "no-store",
            "Content-Security-Policy": page_policy(PAGE.encode()),
        },
    )
