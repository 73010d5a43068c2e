"""Reads multipart bodies of uploads, field by field. Must not know what is done with them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

from pydantic import Field
from starlette.datastructures import FormData, UploadFile

from katz_graph.errors import InputError
from katz_graph.files.folders import Folders
from katz_graph.formats.strict_json import parse_json
from katz_graph.messages import show
from katz_graph.web.files.paths import NAME_BYTES, PLACES, Place, folder_of, inside, parts_of
from katz_graph.web.http.responses import Refusal
from katz_graph.web.http.schemas import Body, validated
from katz_graph.web.options import Limits

PARTS = 20  # of a body, files and fields each
TRUE = ("true", "1")


class Reference(Body):
    """`original_ref` of a mask: the picture that it belongs to."""

    filename: str = Field(max_length=NAME_BYTES)
    subfolder: str = Field("", max_length=NAME_BYTES)
    type: Place = "output"


@dataclass(frozen=True, slots=True)
class Upload:
    """A whole uploaded file and its destination: `subfolder` below the folder called `place`."""

    file: IO[bytes]
    name: str
    place: Place
    subfolder: str
    overwrite: bool
    original: Reference | None

    @classmethod
    def of(cls, form: FormData, limits: Limits) -> Self:
        """Reads the form. Refusal 400 for fields that are missing or wrong, 413 for a file too
        large.
        """
        file = form.get("image")
        if not isinstance(file, UploadFile) or not file.filename:
            raise Refusal(400, "the multipart field 'image' holds no file with a name")
        if (file.size or 0) > limits.upload_bytes:
            raise Refusal(413, f"the file has more than {limits.upload_bytes:,} bytes, which is the limit here", "too_large")
        place = _text(form, "type") or "input"
        known = next((known for known in PLACES if known == place), None)
        if known is None:
            raise Refusal(400, f"type is {show(place)}, expected one of {', '.join(PLACES)}")
        subfolder = "/".join(parts_of(_text(form, "subfolder")))
        return cls(file.file, file.filename, known, subfolder, _text(form, "overwrite").lower() in TRUE, _reference(form))

    def folder(self, folders: Folders) -> Path:
        """Returns the destination folder, which need not exist."""
        return inside(folder_of(folders, self.place), self.subfolder)


def described(*more: str) -> dict[str, Any]:
    """Builds the `openapi_extra` of a route that takes an upload with further text fields."""
    texts = {name: {"type": "string"} for name in ("type", "subfolder", "overwrite", *more)}
    schema = {"type": "object", "properties": {"image": {"type": "string", "format": "binary"}, **texts}, "required": ["image", *more]}
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}}


def _text(form: FormData, field: str) -> str:
    value = form.get(field, "")
    if not isinstance(value, str):
        raise Refusal(400, f"the multipart field {field!r} is a file, expected a text")
    return value


def _reference(form: FormData) -> Reference | None:
    text = _text(form, "original_ref")
    if not text:
        return None
    try:
        return validated(parse_json(text), Reference)
    except InputError as error:
        raise Refusal(400, "original_ref is not JSON", details=str(error)) from None
