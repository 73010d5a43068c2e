"""Names the modules of a transformer beside diffusers' names."""

from __future__ import annotations

from collections.abc import Collection, Mapping


def other_names(paths: Collection[str]) -> Mapping[str, str]:
    """Maps no path: the original code fuses what diffusers has apart, so a module has no name of
    its own there.
    """
    return {}
