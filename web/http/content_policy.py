"""Builds the Content-Security-Policy of pages."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator

SCRIPT = re.compile(rb"<script(?![^>]*\ssrc\s*=)[^>]*>(.*?)</script>", re.DOTALL | re.IGNORECASE)


def page_policy(page: bytes = b"") -> str:
    """Builds the Content-Security-Policy that allows a page's inline scripts."""
    scripts = " ".join(f"'{digest}'" for digest in _inline_scripts(page))
    return "; ".join(
        (
            "default-src 'self'",
            f"script-src 'self' 'wasm-unsafe-eval' {scripts}".rstrip(),
            "style-src 'self' 'unsafe-inline'",
            "img-src 'self' data: blob:",
            "media-src 'self' data: blob:",
            "font-src 'self' data:",
            "connect-src 'self' data: blob:",
            "worker-src 'self' blob:",
            "object-src 'none'",
            "base-uri 'self'",
            "form-action 'self'",
            "frame-ancestors 'none'",
        )
    )


def _inline_scripts(page: bytes) -> Iterator[str]:
    """Hashes inline scripts for a Content-Security-Policy (CSP level 3, section 2.3.1). Browsers
    normalize line ends to \\n.
    """
    for script in SCRIPT.findall(page.replace(b"\r\n", b"\n")):
        yield f"sha256-{base64.b64encode(hashlib.sha256(script).digest()).decode()}"


POLICY = page_policy()
EDITOR_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob: data:",
        "connect-src 'self'",
        "worker-src 'self'",
        "font-src 'self'",
        "form-action 'none'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
"""The Content-Security-Policy of Katz Graph's own pages, which have no inline script or style."""
