"""Reads additional model and pack folders from ComfyUI's `extra_model_paths.yaml`. Must not know
the contents of the folders.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from katz_graph.core.errors import InputError
from katz_graph.core.messages import one_line, show

RESERVED = ("base_path", "is_default")
PACKS = "custom_nodes"
REMARK = re.compile(r"\s+#.*")  # YAML does not remove comments inside a block of lines


@dataclass(frozen=True, slots=True)
class ExtraPaths:
    """Additional folders by kind (the name of a model root's subfolder), searched `before` or
    `after` those of the model roots, and pack folders.
    """

    before: Mapping[str, tuple[Path, ...]] = field(default_factory=dict)
    after: Mapping[str, tuple[Path, ...]] = field(default_factory=dict)
    packs: tuple[Path, ...] = ()

    def __add__(self, other: ExtraPaths) -> ExtraPaths:
        return ExtraPaths(
            _merged(self.before, other.before),
            _merged(self.after, other.after),
            self.packs + other.packs,
        )


def read_extra_paths(files: Iterable[Path]) -> ExtraPaths:
    """Reads the files in order. InputError names the file, the section and the problem."""
    return sum((_read(file) for file in files), ExtraPaths())


def _read(file: Path) -> ExtraPaths:
    try:
        document = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"{file}: {error.strerror or error}; expected a list of model folders in YAML"
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{file}: not YAML: {one_line(str(error))}") from None
    if document is None:
        return ExtraPaths()
    if not isinstance(document, Mapping):
        raise InputError(
            f"{file}: got {show(document)}, expected sections such as `comfyui:` with "
            "folders by kind"
        )
    return sum(
        (
            _section(file, str(name), section)
            for name, section in document.items()
            if section is not None
        ),
        ExtraPaths(),
    )


def _section(file: Path, name: str, section: Any) -> ExtraPaths:
    if not isinstance(section, Mapping):
        raise InputError(f"{file}: section {name}: got {show(section)}, expected folders by kind")
    base = file.absolute().parent / _path(file, name, "base_path", section.get("base_path") or "")
    folders = {
        str(kind): tuple(
            base / _path(file, name, str(kind), line)
            for line in _lines(file, name, str(kind), value)
        )
        for kind, value in section.items()
        if kind not in RESERVED and value is not None
    }
    packs = folders.pop(PACKS, ())
    return (
        ExtraPaths(folders, {}, packs)
        if section.get("is_default")
        else ExtraPaths({}, folders, packs)
    )


def _lines(file: Path, section: str, kind: str, value: Any) -> list[str]:
    lines = (
        value if isinstance(value, list) else value.split("\n") if isinstance(value, str) else None
    )
    if lines is None or not all(isinstance(line, str) for line in lines):
        raise InputError(
            f"{file}: section {section}, {kind}: got {show(value)}, expected a folder, or one per "
            "line"
        )
    return [
        stripped
        for line in lines
        if (stripped := REMARK.sub("", line).strip()) and not stripped.startswith("#")
    ]


def _path(file: Path, section: str, key: str, value: Any) -> Path:
    if not isinstance(value, str):
        raise InputError(f"{file}: section {section}, {key}: got {show(value)}, expected a folder")
    return Path(os.path.expandvars(value)).expanduser()


def _merged(
    first: Mapping[str, tuple[Path, ...]], second: Mapping[str, tuple[Path, ...]]
) -> dict[str, tuple[Path, ...]]:
    return {kind: first.get(kind, ()) + second.get(kind, ()) for kind in {**first, **second}}
