"""Stores files that arrive: writes them under a temporary name, and renames them when they are
whole. Must not know routes.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from katz_graph.files.output_files import take, unfinished
from katz_graph.web.files.paths import PART_BYTES, TURNING, file_state, parts_of
from katz_graph.web.files.pictures import ENDINGS
from katz_graph.web.http.responses import Refusal

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
UNWANTED = re.compile(r'[\x00-\x1f\x7f-\x9f<>:"|?*\ud800-\udfff\u2028\u2029' + "".join(sorted(TURNING)) + "]")
NUMBERED = 16  # bytes that ` (1234)` and the like take
SAME_NAMES = 10_000  # pictures of one name that are numbered
COMPARED = 2**20  # bytes at once
PICTURE_ENDINGS = tuple(ending for endings in ENDINGS.values() for ending in endings)


@contextmanager
def arriving(folder: Path) -> Iterator[tuple[IO[bytes], Path]]:
    """Opens a file in `folder` (which is made) under a temporary name; deletes it at the end unless
    it was renamed.

    Raises Refusal 507 when the disk is full, 503 when it refuses for another reason.
    """
    temporary = unfinished(folder)
    with disk_refusals():
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("xb") as file:
                yield file, temporary
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def disk_refusals() -> Iterator[None]:
    """Turns disk errors into refusals without this machine's paths."""
    try:
        yield
    except (FileExistsError, NotADirectoryError, IsADirectoryError):
        raise Refusal(409, "a file is where the name has a folder, or a folder where it has a file") from None
    except OSError as error:
        if error.errno in FULL:
            raise Refusal(507, "the server's disk is full; nothing was stored", "disk_full") from None
        if error.errno == errno.ENAMETOOLONG:
            raise Refusal(400, "the name is too long for the server's disk") from None
        raise Refusal(503, f"the server's disk refuses: {error.strerror or 'no reason given'}", "disk") from None


def picture_name(name: str, kind: str) -> str:
    """Makes the name that a picture is kept under: replaces what could mislead, and ends it like a
    picture. `kind`: as in `ENDINGS`.

    Raises Refusal 400 when the name holds folders.
    """
    if name.startswith(("/", "~")) or "\\" in name or "/" in name or name in (".", ".."):
        raise Refusal(400, "the name of an upload is a plain name; folders go into 'subfolder'")
    cleaned = UNWANTED.sub("_", name).strip(" .") or "image"
    stem, ending = os.path.splitext(cleaned)  # noqa: PTH122  (a Path would take the name apart once more)
    if ending.lower() not in PICTURE_ENDINGS:
        stem, ending = cleaned, ENDINGS[kind][0]
    kept = stem.encode()[: PART_BYTES - NUMBERED - len(ending)].decode(errors="ignore").rstrip(" .") + ending
    try:
        parts_of(kept)
    except Refusal:  # a device's name
        kept = f"_{kept}"
    return kept


def keep_picture(file: IO[bytes], folder: Path, name: str, overwrite: bool) -> str:
    """Stores a whole file as `name` in `folder`; returns the name that it got.

    A file of that name and content is left as it is; one of other content makes the new one `name
    (1)`, unless `overwrite`. Raises Refusal 409 when there are too many of the name, 507 when the
    disk is full.
    """
    with arriving(folder) as (arrived, temporary):
        file.seek(0)
        shutil.copyfileobj(file, arrived, COMPARED)
        arrived.flush()
        if overwrite:
            temporary.replace(folder / name)
            return name
        for candidate in _candidates(name):
            path = folder / candidate
            if take(temporary, path) or _same_content(temporary, path):
                return candidate
    raise Refusal(409, f"there are {SAME_NAMES:,} other pictures of this name; choose another, or say overwrite")


def _candidates(name: str) -> Iterator[str]:
    yield name
    stem, ending = os.path.splitext(name)  # noqa: PTH122
    yield from (f"{stem} ({number}){ending}" for number in range(1, SAME_NAMES))


def _same_content(one: Path, other: Path) -> bool:
    state = file_state(other)
    if state is None or state.st_size != one.stat().st_size:
        return False
    with one.open("rb") as first, other.open("rb") as second:
        for piece in iter(lambda: first.read(COMPARED), b""):
            if piece != second.read(COMPARED):
                return False
    return True
