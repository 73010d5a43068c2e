"""Loads pictures as tensors [B, H, W, C] in 0..1 from every file type in PICTURE_KINDS, saves PNG
files and previews, and resizes.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Literal

import numpy
import torch
from PIL import Image, ImageOps, ImageSequence, PngImagePlugin
from torch import Tensor

from katz_graph.core.errors import InputError, RunError
from katz_graph.core.latent_space import DEFAULT_LATENT_SPACE
from katz_graph.files.output_files import filled_prefix, write_numbered
from katz_graph.files.picture_kinds import PICTURE_KINDS

# greyscale modes of more than 8 bits: the value of white
WHITE_BY_MODE = {"I": 65535.0, "I;16": 65535.0, "I;16B": 65535.0, "I;16L": 65535.0, "F": 1.0}
STILL = ("MPO",)  # formats whose additional frames are other views of the same picture
# for all frames together; Pillow's limit for one frame
MAX_PIXELS = 2 * (Image.MAX_IMAGE_PIXELS or 0)
WITHOUT_ALPHA = 64  # side of the empty mask of pictures without transparency
SAVED_BANDS = {1: "L", 3: "RGB", 4: "RGBA"}
# Pillow's zlib-ng takes half the time of level 4, and files are an eighth larger
COMPRESS_LEVEL = 1

# limits of a preview's longer side in pixels; between them previews have the picture's size
MAX_PREVIEW_SIDE, MIN_PREVIEW_SIDE = 512, 128
QUALITY = 80  # of JPEG

Channel = Literal["alpha", "red", "green", "blue"]


def load_image(path: Path) -> tuple[Tensor, Tensor]:
    """Loads a picture file as [B, H, W, 3], and 1 - alpha as [B, H, W] (64x64 zeros without alpha).

    Of an animation or multi-page file, loads the frames that have the size of the first. The EXIF
    orientation is applied. InputError if the file is not a picture.
    """
    frames = _frames(path, all_of_them=True)
    pixels = torch.stack([_colours(frame) for frame in frames])
    if not any(map(_has_alpha, frames)):
        return pixels, torch.zeros(len(frames), WITHOUT_ALPHA, WITHOUT_ALPHA)
    return pixels, 1.0 - torch.stack([_alpha(frame) for frame in frames])


def load_channel(path: Path, channel: Channel) -> Tensor:
    """Loads one channel of a picture's first frame as a mask [1, H, W]; `alpha` gives 1 - alpha.
    InputError if the file is not a picture.
    """
    (frame,) = _frames(path, all_of_them=False)
    if channel == "alpha":
        return 1.0 - _alpha(frame).unsqueeze(0)
    return _colours(frame)[..., ("red", "green", "blue").index(channel)].unsqueeze(0)


def _frames(path: Path, all_of_them: bool) -> list[Image.Image]:
    frames: list[Image.Image] = []
    pixels = 0  # of all frames, including skipped ones
    try:
        with Image.open(path, formats=tuple(PICTURE_KINDS)) as opened:
            for frame in ImageSequence.Iterator(opened):
                upright = ImageOps.exif_transpose(frame)
                if not frames or upright.size == frames[0].size:
                    frames.append(upright)
                pixels += upright.width * upright.height
                if pixels > MAX_PIXELS:
                    raise ValueError(f"its frames have more than {MAX_PIXELS:,} pixels")
                if not all_of_them or opened.format in STILL:
                    break
    except FileNotFoundError:
        raise InputError(f"{path}: no such picture") from None
    except MemoryError:
        raise
    except Exception as error:  # Pillow's readers raise many exception types for damaged files
        raise InputError(f"{path}: cannot be read as a picture ({error})") from None
    return frames


def _colours(frame: Image.Image) -> Tensor:
    """Converts a frame to [H, W, 3] in 0..1."""
    if frame.mode in WHITE_BY_MODE:
        grey = (
            torch.from_numpy(numpy.array(frame).astype(numpy.float32))
            .div(WHITE_BY_MODE[frame.mode])
            .clamp(0, 1)
        )
        return grey.unsqueeze(-1).repeat(1, 1, 3)
    return torch.from_numpy(numpy.array(frame.convert("RGB"))).float().div(255)


def _has_alpha(frame: Image.Image) -> bool:
    return frame.mode not in WHITE_BY_MODE and (
        "A" in frame.getbands() or "transparency" in frame.info
    )


def _alpha(frame: Image.Image) -> Tensor:
    """Returns alpha as [H, W]; 1 is opaque."""
    if not _has_alpha(frame):
        return torch.ones(frame.height, frame.width)
    return torch.from_numpy(numpy.array(frame.convert("RGBA").getchannel("A"))).float().div(255)


def save_images(
    images: Tensor, directory: Path, prefix: str, metadata: Mapping[str, str]
) -> Iterator[Path]:
    """Writes each image of [B, H, W, C] as `<prefix>_<number>_.png`, with the next free number.
    Yields each path after writing it.

    RunError if the file cannot be written.
    """
    check_pictures(images)
    height, width = images.shape[1:3]
    for number, image in enumerate(images):
        name = filled_prefix(prefix, width, height, number)

        def write(file: IO[bytes], image: Tensor = image) -> None:
            file.write(png(image, metadata))

        yield write_numbered(directory, name, ".png", write)


def check_pictures(images: Tensor) -> None:
    """Raises InputError unless the shape is [B, H, W, C] with 1, 3 or 4 channels; RunError if a
    value is NaN or infinite.
    """
    if images.ndim != 4 or images.shape[-1] not in SAVED_BANDS or 0 in images.shape:
        raise InputError(
            f"got pictures of shape {list(images.shape)}, expected [batch, height, width, "
            "channels] of 1, 3 or 4 channels"
        )
    if not torch.isfinite(images).all():
        raise RunError("the picture contains NaN or infinity, so it was not saved")


def png(image: Tensor, metadata: Mapping[str, str]) -> bytes:
    """Encodes [H, W, C] as a PNG file with text chunks."""
    chunks = PngImagePlugin.PngInfo()
    for key, text in metadata.items():
        chunks.add_text(key, text)
    file = io.BytesIO()
    to_pillow(image).save(file, format="png", pnginfo=chunks, compress_level=COMPRESS_LEVEL)
    return file.getvalue()


def to_pillow(image: Tensor) -> Image.Image:
    """Converts [H, W, C] with 1, 3 or 4 channels to 8 bits. Truncates values, as ComfyUI does."""
    pixels = (image.detach().cpu().float().clamp(0, 1) * 255).to(torch.uint8).numpy()
    return Image.fromarray(
        pixels[..., 0] if pixels.shape[-1] == 1 else numpy.ascontiguousarray(pixels)
    )


def resize(image: Tensor, width: int, height: int, method: str, crop: str = "disabled") -> Tensor:
    """Resizes [B, H, W, C] -> [B, height, width, C]; `center` crops to the new aspect ratio first.

    Methods: those of torch's `interpolate`, and `lanczos` (Pillow's, in 8 bits).
    """
    if crop == "center":
        image = middle(image, width, height)
    if method == "lanczos":
        return torch.stack([_lanczos(picture, width, height) for picture in image]).to(image.device)
    moved = image.movedim(-1, 1)
    align = {"align_corners": False} if method in ("bilinear", "bicubic") else {}
    return torch.nn.functional.interpolate(
        moved, size=(height, width), mode=method, **align
    ).movedim(1, -1)


def middle(image: Tensor, width: int, height: int) -> Tensor:
    """Crops [B, H, W, C] around the centre to the aspect ratio width : height."""
    high, wide = image.shape[1:3]
    cut_x = min(max(0, round((wide - high * width / height) / 2)), (wide - 1) // 2)
    cut_y = min(max(0, round((high - wide * height / width) / 2)), (high - 1) // 2)
    return image[:, cut_y : high - cut_y, cut_x : wide - cut_x]


def _lanczos(picture: Tensor, width: int, height: int) -> Tensor:
    """Resizes [H, W, C] -> [height, width, C]. With four channels Pillow weights colours by the
    last channel, alpha.
    """
    channels = picture.shape[-1]
    bands = (
        [picture]
        if channels in SAVED_BANDS
        else [picture[..., band : band + 1] for band in range(channels)]
    )
    resized = [to_pillow(band).resize((width, height), Image.Resampling.LANCZOS) for band in bands]
    return (
        torch.cat(
            [torch.from_numpy(numpy.array(band)).reshape(height, width, -1) for band in resized],
            dim=-1,
        ).float()
        / 255
    )


def preview_as_jpeg(picture: Tensor) -> bytes:
    """Encodes the uint8 preview [h, w, 3] of a latent as JPEG at eight times its size, with a
    longer side within 128 to 512 pixels.
    """
    longer = max(picture.shape[:2])
    ratio = (
        min(max(DEFAULT_LATENT_SPACE.pixels(longer), MIN_PREVIEW_SIDE), MAX_PREVIEW_SIDE) / longer
    )
    height, width = (max(round(side * ratio), 1) for side in picture.shape[:2])
    written = io.BytesIO()
    Image.fromarray(picture.numpy()).resize((width, height), Image.Resampling.BILINEAR).save(
        written, "JPEG", quality=QUALITY
    )
    return written.getvalue()
