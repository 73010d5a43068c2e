"""Mask nodes give values calculated by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from node_calls import call, context_in, picture, rounded
from PIL import Image
from scipy import ndimage

from katz_graph.core.errors import InputError


def mask(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows).unsqueeze(0)


def point(size: int = 5) -> torch.Tensor:
    dot = torch.zeros(1, size, size)
    dot[0, size // 2, size // 2] = 1.0
    return dot


def test_masks_and_pictures() -> None:
    half = mask([0.0, 0.5], [1.0, 0.25])
    image = call("MaskToImage", mask=half)
    assert image.shape == (1, 2, 2, 3)
    assert torch.equal(call("ImageToMask", image=image, channel="blue"), half)
    # packs give masks without a batch
    assert call("MaskToImage", mask=half[0]).shape == (1, 2, 2, 3)
    transparent = torch.cat([image, torch.full((1, 2, 2, 1), 0.5)], -1)
    assert call("ImageToMask", image=transparent, channel="alpha").tolist() == [[[0.5] * 2] * 2]
    with pytest.raises(InputError, match="3 channels and no alpha"):
        call("ImageToMask", image=image, channel="alpha")


def test_a_colour_as_a_mask() -> None:
    image = picture([0.0, 0.5, 1.0])
    image[..., 0] = 1.0
    # 0.5 is 127.5, rounded to even
    assert call("ImageColorToMask", image=image, color=0xFF8080).tolist() == [[[0.0, 1.0, 0.0]]]
    assert call("ImageColorToMask", image=image, color=0xFF0000).tolist() == [[[1.0, 0.0, 0.0]]]
    assert call(
        "ImageColorToMask", image=torch.cat([image, image[..., :1]], -1), color=0xFFFFFF
    ).tolist() == [[[0.0, 0.0, 1.0]]]


def test_solid_and_inverted_and_thresholded() -> None:
    assert call("SolidMask", value=0.25, width=3, height=2).tolist() == [[[0.25] * 3] * 2]
    assert call("InvertMask", mask=mask([0.25, 1.0])).tolist() == [[[0.75, 0.0]]]
    assert call("ThresholdMask", mask=mask([0.25, 0.5, 0.75])).tolist() == [[[0.0, 0.0, 1.0]]]


def test_cropping() -> None:
    rows = mask([0.0, 0.25], [0.5, 0.75])
    assert call("CropMask", mask=rows, x=1, y=0, width=1, height=9).tolist() == [[[0.25], [0.75]]]
    with pytest.raises(InputError, match="outside of the mask, which is 2x2"):
        call("CropMask", mask=rows, x=2, y=0)


@pytest.mark.parametrize(
    ("operation", "wanted"),
    [
        ("multiply", [0.6, 0.0, 0.16]),
        ("add", [1.0, 1.0, 0.8]),
        ("subtract", [0.0, 0.0, 0.0]),
        ("and", [1, 0, 0]),
        ("or", [1, 1, 0]),
        ("xor", [0, 1, 0]),
    ],
)
def test_combining(operation: str, wanted: list[float]) -> None:
    below, above = mask([0.9, 0.6, 0.0, 0.4]), mask([1.0, 1.0, 0.4], [1.0, 1.0, 1.0])
    combined = call("MaskComposite", destination=below, source=above, x=1, operation=operation)
    assert rounded(combined) == [[[pytest.approx(0.9), *wanted]]]
    assert below[0, 0, 1] == pytest.approx(0.6)


def test_combining_outside_and_in_batches() -> None:
    below = torch.zeros(2, 3, 3)
    assert torch.equal(
        call("MaskComposite", destination=below, source=torch.ones(1, 2, 2), x=3, operation="add"),
        below,
    )
    corner = call(
        "MaskComposite", destination=below, source=torch.ones(1, 2, 2), x=2, y=2, operation="add"
    )
    assert corner.sum(dim=(1, 2)).tolist() == [1, 1]


def test_feathering() -> None:
    feathered = call("FeatherMask", mask=torch.ones(1, 3, 6), left=2, right=4)
    assert feathered[0, 1].tolist() == [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    corner = call("FeatherMask", mask=torch.ones(1, 2, 2), top=2, left=2)
    assert corner[0].tolist() == [[0.25, 0.5], [0.5, 1.0]]
    # no wider than the mask
    assert call("FeatherMask", mask=torch.ones(1, 1, 2), left=99).tolist() == [[[0.5, 1.0]]]


def test_growing_with_and_without_corners() -> None:
    assert call("GrowMask", mask=point(), expand=1)[0].tolist() == [
        [0, 0, 0, 0, 0],
        [0, 0, 1, 0, 0],
        [0, 1, 1, 1, 0],
        [0, 0, 1, 0, 0],
        [0, 0, 0, 0, 0],
    ]
    assert call("GrowMask", mask=point(), expand=2, tapered_corners=False).min() == 1
    assert call("GrowMask", mask=point(), expand=2).sum() == 13
    assert call("GrowMask", mask=point(), expand=-1).sum() == 0
    assert torch.equal(call("GrowMask", mask=point(), expand=0), point())


@pytest.mark.parametrize("tapered", [True, False])
@pytest.mark.parametrize("expand", [-3, -1, 1, 4])
def test_growing_is_grey_morphology(expand: int, tapered: bool) -> None:
    values = torch.rand(1, 9, 12, generator=torch.Generator().manual_seed(2))
    corner = 0 if tapered else 1
    footprint = numpy.array([[corner, 1, corner], [1, 1, 1], [corner, 1, corner]])
    wanted: Any = values[0].numpy()
    for _ in range(abs(expand)):
        wanted = (ndimage.grey_dilation if expand > 0 else ndimage.grey_erosion)(
            wanted, footprint=footprint
        )
    assert numpy.array_equal(
        call("GrowMask", mask=values, expand=expand, tapered_corners=tapered)[0].numpy(), wanted
    )


def test_growing_by_more_than_the_mask_ends() -> None:
    assert call("GrowMask", mask=point(33), expand=16384).min() == 1


def test_a_preview_is_a_grey_picture(tmp_path: Path) -> None:
    context = context_in(tmp_path)
    half = torch.full((2, 3, 4), 0.5)
    assert call("MaskPreview", context, mask=half) is half
    assert [Image.open(path).size for path in context.files] == [(4, 3)] * 2
    assert Image.open(context.files[0]).getpixel((0, 0)) == 127
