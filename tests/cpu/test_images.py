"""Unusual pictures are read from files, and broken ones refused."""

from __future__ import annotations

import io
import struct
import warnings
import zlib
from pathlib import Path

import numpy
import pytest
import torch
from node_calls import call, context_in
from PIL import Image

from katz_graph.core.errors import InputError, RunError
from katz_graph.files.images import load_image, resize, save_images

RED, GREEN = (255, 0, 0), (0, 255, 0)


def halves(width: int = 4, height: int = 2) -> Image.Image:
    image = Image.new("RGB", (width, height), RED)
    image.paste(GREEN, (width // 2, 0, width, height))
    return image


def test_colours_and_no_transparency(tmp_path: Path) -> None:
    halves().save(tmp_path / "a.png")
    pixels, mask = load_image(tmp_path / "a.png")
    assert pixels.shape == (1, 2, 4, 3) and pixels.dtype == torch.float32
    assert pixels[0, 0, 0].tolist() == [1, 0, 0] and pixels[0, 0, 3].tolist() == [0, 1, 0]
    assert mask.shape == (1, 64, 64) and mask.sum() == 0


def test_transparency_is_a_mask_of_its_inverse(tmp_path: Path) -> None:
    image = halves().convert("RGBA")
    image.putalpha(Image.fromarray(numpy.array([[255, 255, 0, 51]] * 2, numpy.uint8)))
    image.save(tmp_path / "a.png")
    pixels, mask = load_image(tmp_path / "a.png")
    assert pixels.shape[-1] == 3 and pixels[0, 0, 2].tolist() == [0, 1, 0]
    assert torch.allclose(mask[0, 0], torch.tensor([0.0, 0.0, 1.0, 0.8]))


def test_a_palette_with_a_transparent_colour(tmp_path: Path) -> None:
    image = halves().quantize(2)
    image.info["transparency"] = image.getpixel((3, 0))
    image.save(tmp_path / "a.png", transparency=image.getpixel((3, 0)))
    pixels, mask = load_image(tmp_path / "a.png")
    assert mask[0].tolist() == [[0, 0, 1, 1]] * 2
    assert pixels[0, 0, 0].tolist() == [1, 0, 0]


def test_sixteen_bits_are_read(tmp_path: Path) -> None:
    Image.fromarray(numpy.array([[0, 257, 32768, 65535]], numpy.uint16)).save(tmp_path / "deep.png")
    pixels, mask = load_image(tmp_path / "deep.png")
    assert torch.allclose(pixels[0, 0, :, 0], torch.tensor([0.0, 1 / 255, 32768 / 65535, 1.0]))
    assert pixels.shape == (1, 1, 4, 3) and mask.sum() == 0


def test_cmyk_jpeg(tmp_path: Path) -> None:
    Image.new("CMYK", (8, 8), (0, 255, 255, 0)).save(tmp_path / "a.jpg")
    assert torch.allclose(
        load_image(tmp_path / "a.jpg")[0][0, 4, 4], torch.tensor([1.0, 0.0, 0.0]), atol=0.03
    )


def test_the_cameras_orientation_is_applied(tmp_path: Path) -> None:
    image = halves(16, 8)
    exif = image.getexif()
    exif[0x0112] = 6  # to be rotated clockwise by 90 degrees: left becomes top
    image.save(tmp_path / "a.jpg", exif=exif, quality=95)
    pixels, _ = load_image(tmp_path / "a.jpg")
    assert pixels.shape == (1, 16, 8, 3)
    assert pixels[0, 2, 4, 0] > 0.9 and pixels[0, 13, 4, 1] > 0.9


def test_an_animation_is_a_batch(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (6, 4), colour) for colour in (RED, GREEN, (0, 0, 255))]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    pixels, mask = load_image(tmp_path / "a.gif")
    assert pixels.shape == (3, 4, 6, 3) and mask.shape == (3, 64, 64)
    assert pixels[:, 0, 0].tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]


def test_pages_of_another_size_are_left_out(tmp_path: Path) -> None:
    pages = [Image.new("L", size, 255) for size in ((6, 4), (3, 3), (6, 4))]
    pages[0].save(tmp_path / "a.tiff", save_all=True, append_images=pages[1:])
    assert load_image(tmp_path / "a.tiff")[0].shape == (2, 4, 6, 3)


def test_one_pixel(tmp_path: Path) -> None:
    Image.new("1", (1, 1), 1).save(tmp_path / "a.png")
    assert load_image(tmp_path / "a.png")[0].tolist() == [[[[1.0, 1.0, 1.0]]]]


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def bomb() -> bytes:
    """Makes a tiny PNG that claims 100,000 by 100,000 pixels."""
    header = struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(bytes(1000)))
        + chunk(b"IEND", b"")
    )


def encoded(image: Image.Image, kind: str) -> bytes:
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue()


NOISE = Image.fromarray(numpy.random.default_rng(0).integers(0, 256, (64, 64, 3), numpy.uint8))
DAMAGED = {
    "empty.png": b"",
    "text.png": b"hello",
    "bomb.png": bomb(),
    "cut.png": encoded(NOISE, "png")[:2000],
    "cut.jpg": encoded(NOISE, "jpeg")[:1000],
    "cut.gif": encoded(NOISE.quantize(), "gif")[:1200],
    "cut.webp": encoded(NOISE, "webp")[:1000],
    "cut.tiff": encoded(NOISE, "tiff")[:1000],
    "header.tiff": b"II*\0" + b"\xff" * 60,
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_files_are_one_clear_line(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(DAMAGED[name])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(InputError, match="cannot be read as a picture") as caught:
            load_image(tmp_path / name)
    assert name in str(caught.value) and "\n" not in str(caught.value)


def test_an_endless_animation_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("katz_graph.files.images.MAX_PIXELS", 100)
    frames = [Image.new("RGB", (6, 4), (shade, 0, 0)) for shade in range(10, 60, 10)]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    with pytest.raises(InputError, match="more than 100 pixels"):
        load_image(tmp_path / "a.gif")


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such picture"):
        load_image(tmp_path / "a.png")


def test_saved_pictures_load_unchanged(tmp_path: Path) -> None:
    images = torch.rand(2, 5, 7, 3, generator=torch.Generator().manual_seed(0))
    paths = list(
        save_images(images, tmp_path, "sub/a_%width%x%height%_%batch_num%", {"prompt": "{}"})
    )
    assert [str(path.relative_to(tmp_path)) for path in paths] == [
        "sub/a_7x5_0_00001_.png",
        "sub/a_7x5_1_00001_.png",
    ]
    again = torch.cat([load_image(path)[0] for path in paths])
    assert (again - images).abs().max() <= 1 / 255 and (again <= images).all()
    assert Image.open(paths[0]).text == {"prompt": "{}"}


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_grey_colour_and_transparent_pictures_are_saved(tmp_path: Path, channels: int) -> None:
    (path,) = save_images(torch.full((1, 3, 3, channels), 0.5), tmp_path, "a", {})
    assert Image.open(path).mode == {1: "L", 3: "RGB", 4: "RGBA"}[channels]


@pytest.mark.parametrize("shape", [(1, 4, 4, 2), (4, 4, 3), (0, 4, 4, 3), (1, 0, 4, 3)])
def test_invalid_picture_batches_are_not_saved(tmp_path: Path, shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="expected \\[batch, height, width, channels\\]"):
        list(save_images(torch.zeros(shape), tmp_path, "a", {}))
    assert list(tmp_path.iterdir()) == []


def test_nan_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="NaN"):
        list(save_images(torch.full((1, 4, 4, 3), float("nan")), tmp_path, "a", {}))


@pytest.mark.parametrize("prefix", ["../a", "/tmp/a", "a/../../b", "", "a\0b", ".a", "a/.b/c"])
def test_prefixes_that_lead_out_or_are_hidden_are_refused(tmp_path: Path, prefix: str) -> None:
    with pytest.raises(InputError, match="filename_prefix"):
        list(save_images(torch.zeros(1, 4, 4, 3), tmp_path / "output", prefix, {}))


def test_numbers_go_on_from_the_largest(tmp_path: Path) -> None:
    (tmp_path / "a_00041_.png").touch()
    (tmp_path / "ab_00099_.png").touch()
    (path,) = save_images(torch.zeros(1, 4, 4, 3), tmp_path, "a", {})
    assert path.name == "a_00042_.png"


def test_a_name_may_contain_its_folder(tmp_path: Path) -> None:
    for place, colour in (("input/sub", RED), ("output", GREEN), ("output/temp", (0, 0, 255))):
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (2, 2), colour).save(tmp_path / place / "a.png")
    context = context_in(tmp_path)
    colours = {
        name: call("LoadImage", context, image=name)[0][0, 0, 0].tolist()
        for name in ("sub/a.png", "a.png [output]", "a.png [temp]")
    }
    assert colours == {
        "sub/a.png": [1, 0, 0],
        "a.png [output]": [0, 1, 0],
        "a.png [temp]": [0, 0, 1],
    }
    assert call("LoadImage", context, image="sub/a.png [input]")[0].shape == (1, 2, 2, 3)


@pytest.mark.parametrize(
    "name",
    [
        "a.png",
        "../a.png [output]",
        "/etc/passwd [input]",
        "b.png [temp]",
        "a.png [elsewhere]",
        " [output]",
    ],
)
def test_names_that_lead_nowhere_or_out_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "output").mkdir()
    halves().save(tmp_path / "a.png")
    with pytest.raises(InputError):
        call("LoadImage", context_in(tmp_path), image=name)


def test_a_replaced_picture_is_another_one(tmp_path: Path) -> None:
    from node_calls import registry

    (tmp_path / "input").mkdir()
    context = context_in(tmp_path)
    prints = []
    for colour in (RED, RED, GREEN):
        Image.new("RGB", (2, 2), colour).save(tmp_path / "input" / "a.png")
        prints += [
            registry()[name].fingerprint(context, {"image": "a.png"})
            for name in ("LoadImage", "LoadImageMask")
        ]  # type: ignore[misc]
    assert prints[:2] == prints[2:4] and prints[:2] != prints[4:]


@pytest.mark.parametrize(
    ("channel", "value"), [("alpha", 0.8), ("red", 1.0), ("green", 0.2), ("blue", 0.0)]
)
def test_one_channel_as_a_mask(tmp_path: Path, channel: str, value: float) -> None:
    (tmp_path / "input").mkdir()
    Image.new("RGBA", (3, 2), (255, 51, 0, 51)).save(tmp_path / "input" / "a.png")
    mask = call("LoadImageMask", context_in(tmp_path), image="a.png", channel=channel)
    assert torch.allclose(mask, torch.full((1, 2, 3), value))


def test_a_picture_without_transparency_is_an_empty_mask_of_its_size(tmp_path: Path) -> None:
    (tmp_path / "input").mkdir()
    halves().save(tmp_path / "input" / "a.png")
    assert call("LoadImageMask", context_in(tmp_path), image="a.png").tolist() == [[[0.0] * 4] * 2]


def test_lanczos_is_pillows(tmp_path: Path) -> None:
    numbers = numpy.random.default_rng(1).integers(0, 256, (9, 13, 3), numpy.uint8)
    wanted = numpy.array(Image.fromarray(numbers).resize((5, 7), Image.Resampling.LANCZOS))
    resized = resize(torch.from_numpy(numbers).float().unsqueeze(0) / 255, 5, 7, "lanczos")
    # truncation to 8 bits may lose one step
    assert (resized[0] * 255 - torch.from_numpy(wanted).float()).abs().max() <= 1


@pytest.mark.parametrize("size", [(1, 100), (100, 1), (3, 3)])
def test_a_centre_crop_keeps_at_least_a_pixel(size: tuple[int, int]) -> None:
    for width, height in ((1, 50), (50, 1), (7, 7)):
        assert resize(torch.zeros(1, *size, 3), width, height, "bilinear", "center").shape == (
            1,
            height,
            width,
            3,
        )
