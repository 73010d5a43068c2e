"""Lists the features that the server offers clients, over HTTP and in a websocket's handshake."""

from __future__ import annotations

from typing import Any

from katz_graph.web.options import Limits


def features(limits: Limits) -> dict[str, Any]:
    """Returns them by ComfyUI's names; `max_upload_size` is in bytes."""
    return {
        "supports_preview_metadata": True,
        "max_upload_size": limits.upload_bytes,
        "extension": {"manager": {"supports_v4": False}},
        "node_replacements": True,
        "assets": False,
    }
