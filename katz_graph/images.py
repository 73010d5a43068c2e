"""Pictures as tensors [B, H, W, C] in 0..1 and as PNG files, which get their name only when they are whole."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import numpy
import torch
from PIL import Image, ImageOps, PngImagePlugin, UnidentifiedImageError
from torch import Tensor

from katz_graph.errors import InputError, RunError


def load_image(path: Path) -> tuple[Tensor, Tensor]:
    """A picture file as [B, H, W, 3], and 1 - alpha as [B, H, W] (64x64 zeros without alpha). InputError when it is not a picture."""
    try:
        with Image.open(path) as opened:
            opened.load()
            picture = ImageOps.exif_transpose(opened)
    except FileNotFoundError:
        raise InputError(f"{path}: no such picture") from None
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise InputError(f"{path}: not a picture that can be read ({error})") from None
    if picture.mode in ("I", "I;16", "I;16B"):  # 16 bits of grey
        picture = Image.fromarray((numpy.array(picture).astype(numpy.float32) / 257).round().astype(numpy.uint8))
    has_alpha = "A" in picture.getbands() or "transparency" in picture.info
    pixels = torch.from_numpy(numpy.array(picture.convert("RGB"))).float().div(255).unsqueeze(0)
    if not has_alpha:
        return pixels, torch.zeros(1, 64, 64)
    alpha = torch.from_numpy(numpy.array(picture.convert("RGBA").getchannel("A"))).float().div(255).unsqueeze(0)
    return pixels, 1.0 - alpha


def save_images(images: Tensor, directory: Path, prefix: str, metadata: Mapping[str, str]) -> Iterator[Path]:
    """Write each of [B, H, W, C] as `<prefix>_<number>_.png`, numbered on from what is there; each path as soon as it is written.

    RunError when the disk refuses.
    """
    if not torch.isfinite(images).all():
        raise RunError("the picture holds NaN or infinity, so it was not saved")
    height, width = images.shape[1:3]
    for number, image in enumerate(images):
        folder, stem = _target(directory, _filled(prefix, width, height, number))
        yield _write(folder, stem, image, metadata)


def _filled(prefix: str, width: int, height: int, number: int) -> str:
    now = datetime.now()
    values = {
        "year": f"{now.year}",
        "month": f"{now.month:02}",
        "day": f"{now.day:02}",
        "hour": f"{now.hour:02}",
        "minute": f"{now.minute:02}",
        "second": f"{now.second:02}",
        "width": str(width),
        "height": str(height),
        "batch_num": str(number),
    }
    for name, value in values.items():
        prefix = prefix.replace(f"%{name}%", value)
    return prefix


def _target(directory: Path, prefix: str) -> tuple[Path, str]:
    if "\0" in prefix:
        raise InputError("filename_prefix holds a NUL character")
    target = (directory / prefix).resolve()
    if not target.is_relative_to(directory.resolve()) or target == directory.resolve():
        raise InputError(f"filename_prefix {prefix!r} leads out of the output folder")
    return target.parent, target.name


def _write(folder: Path, stem: str, image: Tensor, metadata: Mapping[str, str]) -> Path:
    chunks = PngImagePlugin.PngInfo()
    for key, text in metadata.items():
        chunks.add_text(key, text)
    pixels = (image.detach().cpu().float().clamp(0, 1) * 255).to(torch.uint8).numpy()  # truncated, as the ecosystem does
    picture = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    temporary = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=folder, prefix=".", suffix=".tmp")
        with os.fdopen(handle, "wb") as file:
            picture.save(file, format="png", pnginfo=chunks, compress_level=4)
        Path(temporary).chmod(0o666 & ~_umask())
        return _claim(folder, stem, temporary)
    except OSError as error:
        raise RunError(f"{folder}: cannot write the picture ({error.strerror or error})") from None
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


def _claim(folder: Path, stem: str, temporary: str) -> Path:
    """Give the finished file the first free number. A hard link fails where the name exists, so that two runs never take the same."""
    pattern = re.compile(re.escape(stem) + r"_(\d+)_\.png")
    taken = (pattern.fullmatch(entry.name) for entry in folder.iterdir())
    number = max((int(match[1]) for match in taken if match), default=0) + 1
    while True:
        path = folder / f"{stem}_{number:05}_.png"
        try:
            os.link(temporary, path)
            return path
        except FileExistsError:
            number += 1
        except OSError:  # a file system without hard links: take the name first, then put the file there
            with suppress(FileExistsError):
                path.touch(exist_ok=False)
                return Path(temporary).replace(path)
            number += 1


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def resize(image: Tensor, width: int, height: int, method: str, crop: str = "disabled") -> Tensor:
    """[B, H, W, C] -> [B, height, width, C]; `center` crops to the new proportions first."""
    if crop == "center":
        old_height, old_width = image.shape[1:3]
        cut_x = round((old_width - old_height * width / height) / 2) if old_width * height > old_height * width else 0
        cut_y = round((old_height - old_width * height / width) / 2) if old_width * height < old_height * width else 0
        image = image[:, cut_y : old_height - cut_y, cut_x : old_width - cut_x]
    if method == "lanczos":
        return _lanczos(image, width, height)
    moved = image.movedim(-1, 1)
    align = {"align_corners": False} if method in ("bilinear", "bicubic") else {}
    return torch.nn.functional.interpolate(moved, size=(height, width), mode=method, **align).movedim(1, -1)


def _lanczos(image: Tensor, width: int, height: int) -> Tensor:
    def one(picture: Tensor) -> Tensor:
        pixels = (picture.cpu().clamp(0, 1) * 255).to(torch.uint8).numpy()
        channels = [
            Image.fromarray(pixels[..., channel]).resize((width, height), Image.Resampling.LANCZOS) for channel in range(pixels.shape[-1])
        ]
        return torch.stack([torch.from_numpy(numpy.array(channel)) for channel in channels], dim=-1).float() / 255

    return torch.stack([one(picture) for picture in image])
