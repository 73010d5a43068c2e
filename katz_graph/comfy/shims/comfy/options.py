"""Provides `comfy.options` to packs: a command line that is never parsed."""

from __future__ import annotations

args_parsing = False


def enable_args_parsing(enable: bool = True) -> None:
    """Does nothing: the options stay at their defaults."""
