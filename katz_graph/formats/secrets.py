"""Removes secrets of URLs from workflows that others can read: in pictures, and in a server's
history.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from katz_graph.files.urls import is_url, without_secrets
from katz_graph.node.types import NodeType


def hide_secrets(
    texts: Mapping[str, str], prompt: Mapping[str, Any], types: Mapping[str, NodeType]
) -> dict[str, str]:
    """Removes user, password and query from URLs that name model files. `texts`: JSON of a graph in
    any format, by name; `prompt`: that graph in API format.
    """
    hidden = dict(texts)
    for url in _model_urls(prompt, types):
        for as_ascii in (True, False):
            written, safe = (
                json.dumps(text, ensure_ascii=as_ascii) for text in (url, without_secrets(url))
            )
            hidden = {name: text.replace(written, safe) for name, text in hidden.items()}
    return hidden


def without_url_secrets(data: Any) -> Any:
    """Removes the secrets of URLs from all texts in plain data, because a server does not know
    which texts name model files. A text may contain several URLs.
    """
    if isinstance(data, str):
        return without_secrets(data)
    if isinstance(data, Mapping):
        return {key: without_url_secrets(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [without_url_secrets(value) for value in data]
    return data


def _model_urls(prompt: Mapping[str, Any], types: Mapping[str, NodeType]) -> Iterator[str]:
    for call in prompt.values():
        kind = types.get(call.get("class_type", ""))
        for name, value in call.get("inputs", {}).items():
            expected = kind.inputs.get(name) if kind else None
            if expected and expected.folder and isinstance(value, str) and is_url(value):
                yield value
