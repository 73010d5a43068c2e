"""Plain data as JSON that every parser takes. Knows nothing of what it says."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def json_text(data: Any, **options: Any) -> str:
    """Short JSON, where numbers that it does not have (a pack's NaN) are null, and halves of characters are question marks. `options` are
    further ones of `json.dumps`."""
    try:
        text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False, **options)
    except ValueError:
        text = json.dumps(_finite(data), ensure_ascii=False, separators=(",", ":"), **options)
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _finite(data: Any) -> Any:
    if isinstance(data, float) and not math.isfinite(data):
        return None
    if isinstance(data, Mapping):
        return {key: _finite(value) for key, value in data.items()}
    return [_finite(value) for value in data] if isinstance(data, (list, tuple)) else data
