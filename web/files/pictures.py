"""Recognizes clients' pictures by their content, and converts them. Must not know routes and
folders.
"""

from __future__ import annotations

import io
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Literal

from PIL import Image, PngImagePlugin, UnidentifiedImageError

from katz_graph.files.picture_kinds import PICTURE_KINDS
from katz_graph.web.http.responses import Refusal
from katz_graph.web.options import MB

READ = tuple(PICTURE_KINDS)
SAME_AS = {"MPO": "JPEG"}  # formats treated as another one: a camera's JPEG with additional views
FRAMES = 1_000  # of an animation
LONGEST_SIDE = 16_383  # of a WebP picture

Channel = Literal["rgba", "rgb", "a"]
Preview = tuple[Literal["webp", "jpeg"], int]  # format and quality in 1..100
THUMBNAIL_FORMAT: Preview = ("webp", 80)  # of a thumbnail
THUMBNAIL_BYTES = 64 * MB  # of cached thumbnails
Encoded = tuple[bytes, str]  # bytes and media type


def checked_format(file: IO[bytes], max_pixels: int) -> str:
    """Returns the kind, as in PICTURE_KINDS, of a file that decodes completely. Raises Refusal 400
    if it is of another kind or damaged, and 413 if it has too many pixels.

    Checks each frame's size before decoding it, and limits the pixels of all frames together. Does
    not use Pillow's `n_frames`, which reads all frames even if their sizes grow.
    """
    file.seek(0)
    with _opened(file, READ, max_pixels) as picture:
        pixels = 0
        for frame in range(FRAMES + 1):
            try:
                picture.seek(frame)
            except EOFError:
                break
            if frame == FRAMES:
                raise Refusal(413, f"the animation has more than {FRAMES:,} frames", "too_large")
            pixels += picture.width * picture.height
            if pixels > max_pixels:
                raise _too_many_pixels(picture, max_pixels, frame + 1)
            picture.load()
        return SAME_AS.get(str(picture.format), str(picture.format))


def shown(
    path: Path, preview: Preview | None, channel: Channel, max_pixels: int, width: int = 0
) -> tuple[bytes, str]:
    """Converts a picture to another format, selects channels, or limits its `width` in pixels.
    Returns the bytes and the media type. Raises Refusal like `checked_format`.

    A preview of format jpeg or channel `rgb` has no transparency. Channel `a` is the alpha over
    black.
    """
    if preview is None and channel == "rgba":
        preview = THUMBNAIL_FORMAT
    with path.open("rb") as file, _opened(file, READ, max_pixels) as picture:
        scale = min(1.0, width / picture.width) if width else 1.0
        if preview is not None and max(picture.size) * scale > LONGEST_SIDE:
            raise Refusal(
                413,
                f"previews need pictures with sides of at most {LONGEST_SIDE:,} pixels",
                "too_large",
            )
        if scale < 1:
            picture.draft(None, (width, width))  # JPEG decodes at reduced size
            picture.thumbnail((width, max_pixels))
        if preview is None:
            return _png(
                _without_alpha(picture) if channel == "rgb" else _only_alpha(picture), {}
            ), "image/png"
        opaque = preview[0] == "jpeg" or channel == "rgb"
        return _encoded(
            _without_alpha(picture) if opaque else _usual(picture), preview
        ), f"image/{preview[0]}"


def with_alpha_of(mask: IO[bytes], original: Path, max_pixels: int) -> bytes:
    """Combines the original's colours and texts with the mask's alpha, as PNG. Raises Refusal like
    `checked_format`, and 400 if the sizes differ.
    """
    mask.seek(0)
    with (
        original.open("rb") as file,
        _opened(file, READ, max_pixels) as picture,
        _opened(mask, READ, max_pixels) as drawn,
    ):
        if picture.size != drawn.size:
            raise Refusal(
                400,
                f"the mask has {drawn.width}x{drawn.height} pixels, its picture "
                f"{picture.width}x{picture.height}",
            )
        texts = {
            key: text for key, text in getattr(picture, "text", {}).items() if isinstance(text, str)
        }
        masked = picture.convert("RGBA")
        masked.putalpha(drawn.convert("RGBA").getchannel("A"))
        return _png(masked, texts)


@contextmanager
def _opened(file: IO[bytes], formats: tuple[str, ...], max_pixels: int) -> Iterator[Image.Image]:
    try:
        with Image.open(file, formats=formats) as picture:
            if picture.width * picture.height > max_pixels:
                raise _too_many_pixels(picture, max_pixels)
            yield picture
    except (Refusal, MemoryError):
        raise
    except UnidentifiedImageError:
        raise Refusal(
            400,
            f"the file is not a picture of an accepted format ({', '.join(formats)})",
            "invalid_image",
        ) from None
    except Image.DecompressionBombError:
        raise Refusal(413, "the picture has too many pixels", "too_large") from None
    except Exception as error:  # Pillow raises many kinds of errors for damaged files
        raise Refusal(400, "the picture is damaged", "invalid_image", str(error)) from None


def _too_many_pixels(picture: Image.Image, max_pixels: int, frames: int = 1) -> Refusal:
    size = f"{picture.width}x{picture.height}"
    what = f"{frames} frames up to one of {size}" if frames > 1 else size
    return Refusal(
        413, f"the picture has {what} pixels; at most {max_pixels:,} are accepted", "too_large"
    )


def _usual(picture: Image.Image) -> Image.Image:
    """Converts to a mode that WebP supports."""
    transparent = "A" in picture.getbands() or "transparency" in picture.info
    return picture.convert("RGBA" if transparent else "RGB")


def _without_alpha(picture: Image.Image) -> Image.Image:
    return picture.convert("RGBA").convert("RGB")


def _only_alpha(picture: Image.Image) -> Image.Image:
    alpha = Image.new("RGBA", picture.size)
    alpha.putalpha(picture.convert("RGBA").getchannel("A"))
    return alpha


def _encoded(picture: Image.Image, preview: Preview) -> bytes:
    kind, quality = preview
    encoded = io.BytesIO()
    picture.save(encoded, format=kind, quality=quality)
    return encoded.getvalue()


def _png(picture: Image.Image, texts: dict[str, str]) -> bytes:
    chunks = PngImagePlugin.PngInfo()
    for key, text in texts.items():
        chunks.add_text(key, text)
    encoded = io.BytesIO()
    picture.save(encoded, format="png", pnginfo=chunks, compress_level=4)
    return encoded.getvalue()


class Thumbnails:
    """Caches the most recently used thumbnails, up to `limit` bytes, so that a gallery decodes each
    picture once.
    """

    def __init__(self, limit: int = THUMBNAIL_BYTES) -> None:
        self._limit, self._bytes = limit, 0
        self._pictures: OrderedDict[Hashable, Encoded] = OrderedDict()

    def get(self, key: Hashable) -> Encoded | None:
        if key in self._pictures:
            self._pictures.move_to_end(key)
        return self._pictures.get(key)

    def keep(self, key: Hashable, picture: Encoded) -> None:
        if len(picture[0]) > self._limit or key in self._pictures:
            return
        self._pictures[key] = picture
        self._bytes += len(picture[0])
        while self._bytes > self._limit:
            self._bytes -= len(self._pictures.popitem(last=False)[1][0])
