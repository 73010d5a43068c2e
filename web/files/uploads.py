"""Parses multipart bodies of uploads, and stores the files under a temporary name until they are
complete. Must not know routes.
"""

from __future__ import annotations

import errno
import mimetypes
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

from pydantic import Field
from starlette.datastructures import FormData, UploadFile

from katz_graph.core.errors import InputError
from katz_graph.core.messages import show
from katz_graph.files.folders import Folders
from katz_graph.files.output_files import take, unfinished
from katz_graph.files.picture_kinds import PICTURE_ENDINGS, PICTURE_KINDS
from katz_graph.formats.strict_json import parse_json
from katz_graph.web.files.paths import (
    NAME_BYTES,
    PART_BYTES,
    PLACES,
    TURNING,
    Place,
    file_state,
    folder_of,
    inside,
    parts_of,
)
from katz_graph.web.http.bodies import Body, validated
from katz_graph.web.http.responses import Refusal
from katz_graph.web.options import Limits

PARTS = 20  # files in one body, and as many fields
TRUE = ("true", "1")
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
UNWANTED = re.compile(
    r'[\x00-\x1f\x7f-\x9f<>:"|?*\ud800-\udfff\u2028\u2029' + "".join(sorted(TURNING)) + "]"
)
NUMBERED = 16  # bytes reserved for a suffix such as ` (1234)`
SAME_NAMES = 10_000  # numbered pictures of one name
COMPARED = 2**20  # bytes of one read


class Reference(Body):
    """`original_ref` of a mask: names the picture that the mask belongs to."""

    filename: str = Field(max_length=NAME_BYTES)
    subfolder: str = Field("", max_length=NAME_BYTES)
    type: Place = "output"


@dataclass(frozen=True, slots=True)
class Upload:
    """Holds a complete uploaded file and its destination: `subfolder` below the folder `place`."""

    file: IO[bytes]
    name: str
    place: Place
    subfolder: str
    overwrite: bool
    original: Reference | None

    @classmethod
    def of(cls, form: FormData, limits: Limits) -> Self:
        """Parses the form. Raises Refusal 400 for missing or invalid fields, and 413 for a file
        that is too large.
        """
        file = form.get("image")
        if not isinstance(file, UploadFile) or not file.filename:
            raise Refusal(400, "the multipart field 'image' has no named file")
        if (file.size or 0) > limits.upload_bytes:
            raise Refusal(
                413,
                f"the file has more than {limits.upload_bytes:,} bytes, the limit of this server",
                "too_large",
            )
        place = _text(form, "type") or "input"
        known = next((known for known in PLACES if known == place), None)
        if known is None:
            raise Refusal(400, f"type is {show(place)}, expected one of {', '.join(PLACES)}")
        subfolder = "/".join(parts_of(_text(form, "subfolder")))
        return cls(
            file.file,
            file.filename,
            known,
            subfolder,
            _text(form, "overwrite").lower() in TRUE,
            _reference(form),
        )

    def folder(self, folders: Folders) -> Path:
        """Returns the destination folder, which need not exist."""
        return inside(folder_of(folders, self.place), self.subfolder)


def described(*more: str) -> dict[str, Any]:
    """Builds the `openapi_extra` of a route that accepts an upload with additional text fields."""
    texts = {name: {"type": "string"} for name in ("type", "subfolder", "overwrite", *more)}
    schema = {
        "type": "object",
        "properties": {"image": {"type": "string", "format": "binary"}, **texts},
        "required": ["image", *more],
    }
    return {
        "requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}
    }


def _text(form: FormData, field: str) -> str:
    value = form.get(field, "")
    if not isinstance(value, str):
        raise Refusal(400, f"the multipart field {field!r} is a file, expected text")
    return value


def _reference(form: FormData) -> Reference | None:
    text = _text(form, "original_ref")
    if not text:
        return None
    try:
        return validated(parse_json(text), Reference)
    except InputError as error:
        raise Refusal(400, "original_ref is not JSON", details=str(error)) from None


@contextmanager
def arriving(folder: Path) -> Iterator[tuple[IO[bytes], Path]]:
    """Opens a file under a temporary name in `folder`, which it creates if needed. Deletes the file
    at the end unless it was renamed.

    Raises Refusal 507 if the disk is full, and 503 for other disk errors.
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
    """Converts disk errors to refusals without this machine's paths."""
    try:
        yield
    except (FileExistsError, NotADirectoryError, IsADirectoryError):
        raise Refusal(
            409, "the name needs a folder where a file exists, or a file where a folder exists"
        ) from None
    except OSError as error:
        if error.errno in FULL:
            raise Refusal(
                507, "the server's disk is full; nothing was stored", "disk_full"
            ) from None
        if error.errno == errno.ENAMETOOLONG:
            raise Refusal(400, "the name is too long for the server's disk") from None
        raise Refusal(
            503, f"the server cannot write the file: {error.strerror or 'no reason given'}", "disk"
        ) from None


def picture_name(name: str, kind: str) -> str:
    """Returns the stored name of a picture: its name without misleading characters. A name with the
    ending of another kind of file (`.html`) gets the ending of `kind`, as in PICTURE_KINDS.

    Raises Refusal 400 if the name contains folders.
    """
    if name.startswith(("/", "~")) or "\\" in name or "/" in name or name in (".", ".."):
        raise Refusal(400, "the name of an upload cannot contain folders; pass them in 'subfolder'")
    cleaned = UNWANTED.sub("_", name).strip(" .") or "image"
    stem, ending = os.path.splitext(cleaned)  # noqa: PTH122 (Path would split the name again)
    if ending.lower() not in PICTURE_ENDINGS and mimetypes.guess_type(cleaned)[0] is not None:
        stem, ending = cleaned, PICTURE_KINDS[kind].endings[0]
    shortened = (
        stem.encode()[: PART_BYTES - NUMBERED - len(ending)].decode(errors="ignore").rstrip(" .")
        + ending
    )
    try:
        parts_of(shortened)
    except Refusal:  # a reserved device name
        shortened = f"_{shortened}"
    return shortened


def keep_picture(file: IO[bytes], folder: Path, name: str, overwrite: bool) -> str:
    """Stores a complete file as `name` in `folder`; returns its final name.

    Keeps an existing file with the same name and content. If the content differs, the new file
    becomes `name (1)`, unless `overwrite`. Raises Refusal 409 if too many files have the name, and
    507 if the disk is full.
    """
    with arriving(folder) as (arrived, temporary):
        file.seek(0)
        shutil.copyfileobj(file, arrived, COMPARED)
        arrived.flush()
        if overwrite:
            temporary.replace(folder / name)
            return name
        for candidate in candidates(name):
            path = folder / candidate
            if take(temporary, path) or _same_content(temporary, path):
                return candidate
    raise Refusal(
        409,
        f"there are {SAME_NAMES:,} other pictures of this name; choose another name, or set "
        f"overwrite",
    )


def candidates(name: str) -> Iterator[str]:
    """Yields the possible names of a file: its own, then numbered ones."""
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
