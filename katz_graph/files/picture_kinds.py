"""Defines the supported picture types, for uploads, file lists, picture loaders, previews and media
types. Must not know how pictures are decoded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

HEAD_BYTES = 16  # that `media_type_of` needs


@dataclass(frozen=True, slots=True)
class PictureKind:
    """A picture type: its file extensions, the usual one first, and its signature (`magic` at byte
    `at`).
    """

    endings: tuple[str, ...]
    media_type: str
    magic: tuple[bytes, ...]
    at: int = 0


PICTURE_KINDS: Mapping[str, PictureKind] = {
    "PNG": PictureKind((".png", ".apng"), "image/png", (b"\x89PNG\r\n\x1a\n",)),
    "JPEG": PictureKind((".jpg", ".jpeg", ".jfif", ".jpe"), "image/jpeg", (b"\xff\xd8\xff",)),
    "WEBP": PictureKind((".webp",), "image/webp", (b"WEBP",), 8),
    "GIF": PictureKind((".gif",), "image/gif", (b"GIF87a", b"GIF89a")),
    "BMP": PictureKind((".bmp", ".dib"), "image/bmp", (b"BM",)),
    "TIFF": PictureKind((".tif", ".tiff"), "image/tiff", (b"II*\0", b"MM\0*")),
    "AVIF": PictureKind((".avif", ".avifs"), "image/avif", (b"ftypavif", b"ftypavis"), 4),
}
"""Picture types by Pillow's format names."""
PICTURE_ENDINGS = tuple(ending for kind in PICTURE_KINDS.values() for ending in kind.endings)


def media_type_of(head: bytes) -> str | None:
    """Returns the media type of a picture by its first HEAD_BYTES; None for other data."""
    return next(
        (
            kind.media_type
            for kind in PICTURE_KINDS.values()
            if head[kind.at :].startswith(kind.magic)
        ),
        None,
    )
