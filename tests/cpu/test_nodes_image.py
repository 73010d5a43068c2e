"""Picture nodes give values calculated by hand."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from node_calls import call, call_with_ui, context_in, grey, picture, rounded
from PIL import Image

from katz_graph.core.errors import InputError
from katz_graph.node.literals import LiteralError

STEPS = picture([0.0, 0.2, 0.4], [0.6, 0.8, 1.0])


def test_saving_and_previewing_pass_the_pictures_on_and_report_their_places(tmp_path: Path) -> None:
    context = context_in(tmp_path, metadata={"prompt": "{}"})
    said = []
    for name, inputs in (
        ("SaveImage", {"filename_prefix": "a/x"}),
        ("PreviewImage", {}),
        ("SaveImage", {"filename_prefix": "a/x"}),
    ):
        images, ui = call_with_ui(name, context, images=STEPS, **inputs)
        assert images is STEPS
        said += ui["images"]
    names = [str(path.relative_to(tmp_path)) for path in context.files]
    assert names == [
        "output/a/x_00001_.png",
        "output/temp/preview_00001_.png",
        "output/a/x_00002_.png",
    ]
    assert said == [
        {"filename": "x_00001_.png", "subfolder": "a", "type": "output"},
        {"filename": "preview_00001_.png", "subfolder": "", "type": "temp"},
        {"filename": "x_00002_.png", "subfolder": "a", "type": "output"},
    ]


def test_a_websocket_picture_goes_to_the_client_and_to_no_file(tmp_path: Path) -> None:
    sent: list[bytes] = []
    assert (
        call(
            "SaveImageWebsocket",
            context_in(tmp_path, on_picture=sent.append),
            images=STEPS.repeat(2, 1, 1, 1),
        )
        == ()
    )
    assert [Image.open(io.BytesIO(file)).size for file in sent] == [(3, 2), (3, 2)]
    assert list(tmp_path.iterdir()) == []


def test_a_websocket_picture_without_a_client_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="use SaveImage instead"):
        call("SaveImageWebsocket", context_in(tmp_path), images=STEPS)


@pytest.mark.parametrize(
    ("inputs", "size"),
    [
        ({"width": 6, "height": 2}, (6, 2)),
        ({"width": 6, "height": 0}, (6, 4)),
        ({"width": 0, "height": 1}, (2, 1)),  # 1.5 is rounded to even
        ({"width": 0, "height": 0}, (3, 2)),
        ({"width": 1, "height": 0}, (1, 1)),
    ],
)
@pytest.mark.parametrize("method", ["nearest-exact", "bilinear", "area", "bicubic", "lanczos"])
def test_scale_to_a_size(inputs: dict[str, int], size: tuple[int, int], method: str) -> None:
    assert call(
        "GetImageSize", image=call("ImageScale", image=STEPS, upscale_method=method, **inputs)
    ) == (*size, 1)


def test_a_centre_crop_keeps_the_proportions() -> None:
    wide = picture([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], [0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    assert (
        grey(call("ImageScale", image=wide, width=2, height=2, crop="center")) == [[0.3, 0.4]] * 2
    )
    assert (
        grey(call("ImageScale", image=wide, width=2, height=2, crop="disabled")) == [[0.2, 0.5]] * 2
    )


def test_area_is_the_mean() -> None:
    assert grey(
        call("ImageScale", image=STEPS[:, :, :2], upscale_method="area", width=1, height=1)
    ) == [[0.4]]


def test_scale_by_a_factor_and_to_the_longer_side() -> None:
    assert call("ImageScaleBy", image=STEPS, scale_by=2.0).shape == (1, 4, 6, 3)
    assert call("ImageScaleBy", image=STEPS, scale_by=0.01).shape == (1, 1, 1, 3)
    assert call("ImageScaleToMaxDimension", image=STEPS, largest_size=30).shape == (1, 20, 30, 3)
    assert call("ImageScaleToMaxDimension", image=STEPS.transpose(1, 2), largest_size=30).shape == (
        1,
        30,
        20,
        3,
    )
    with pytest.raises(InputError, match="largest_size"):
        call("ImageScaleToMaxDimension", image=STEPS, largest_size=0)


def test_scale_to_megapixels() -> None:
    """0.25 megapixels are 512 x 512; at 3 : 2 they are 627.07 x 418.05."""
    assert call("ImageScaleToTotalPixels", image=STEPS, megapixels=0.25).shape == (1, 418, 627, 3)
    assert call(
        "ImageScaleToTotalPixels", image=STEPS, megapixels=0.25, resolution_steps=64
    ).shape == (1, 448, 640, 3)


@pytest.mark.parametrize(
    ("way", "given", "size"),
    [
        ("scale dimensions", {"width": 6, "height": 2}, (6, 2)),
        ("scale dimensions", {"width": 6, "height": 0}, (6, 4)),
        ("scale width", {"width": 6, "height": 9}, (6, 4)),
        ("scale height", {"width": 7, "height": 4}, (6, 4)),
        ("scale by multiplier", {"multiplier": 2.0}, (6, 4)),
        ("scale longer dimension", {"longer_size": 30}, (30, 20)),
        ("scale shorter dimension", {"shorter_size": 30}, (45, 30)),
        ("scale total pixels", {"megapixels": 0.25}, (627, 418)),
        ("scale to multiple", {"multiple": 2}, (2, 2)),
        ("match size", {"match": torch.zeros(1, 5, 7, 3)}, (7, 5)),
        ("match size", {"match": torch.zeros(1, 5, 7)}, (7, 5)),
    ],
)
def test_pictures_and_masks_are_resized_in_each_way(
    way: str, given: dict[str, Any], size: tuple[int, int]
) -> None:
    named = {f"resize_type.{name}": value for name, value in given.items()}
    width, height = size
    for method in ("area", "lanczos"):
        how = {"resize_type": way, "scale_method": method, **named}
        assert call("ResizeImageMaskNode", input=STEPS, **how).shape == (1, height, width, 3)
        assert call("ResizeImageMaskNode", input=STEPS[..., 0], **how).shape == (1, height, width)


def test_a_resized_picture_is_cut_where_that_was_chosen() -> None:
    how = {"resize_type": "scale dimensions", "resize_type.width": 2, "resize_type.height": 2}
    wide = picture([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], [0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    assert grey(call("ResizeImageMaskNode", input=wide, **how)) == [[0.3, 0.4]] * 2
    whole = how | {"resize_type.crop": "disabled"}
    assert grey(call("ResizeImageMaskNode", input=wide, **whole)) == [[0.2, 0.5]] * 2


def test_impossible_resizes_are_reported() -> None:
    with pytest.raises(InputError, match=r"needs a picture or a mask at resize_type\.match"):
        call("ResizeImageMaskNode", input=STEPS, resize_type="match size")
    small = {"resize_type": "scale to multiple", "resize_type.multiple": 8}
    with pytest.raises(InputError, match=r"3x2 pixels has no side that is a multiple of 8"):
        call("ResizeImageMaskNode", input=STEPS, **small)


def test_the_advanced_node_saves_as_the_plain_one_does(tmp_path: Path) -> None:
    context = context_in(tmp_path)
    result = call(
        "SaveImageAdvanced",
        context,
        images=STEPS,
        filename_prefix="x",
        format="png",
        **{"format.bit_depth": "8-bit", "format.input_color_space": "sRGB"},
    )
    (written,) = tmp_path.rglob("x_*.png")
    assert written.stat().st_size > 0 and torch.equal(result, STEPS)
    with pytest.raises(LiteralError, match='got "exr", expected one of "png"'):
        call("SaveImageAdvanced", context, images=STEPS, format="exr")


def test_crops_are_clipped_to_the_picture() -> None:
    assert grey(call("ImageCrop", image=STEPS, width=1, height=2, x=1, y=0)) == [[0.2], [0.8]]
    assert grey(call("ImageCrop", image=STEPS, width=9, height=9, x=2, y=1)) == [[1.0]]
    assert grey(call("ImageCrop", image=STEPS, width=2, height=1, x=99, y=99)) == [[1.0]]
    assert grey(call("CenterCropImages", images=STEPS, width=1, height=8)) == [[0.2], [0.8]]


def test_flips_and_turns() -> None:
    assert grey(call("ImageFlip", image=STEPS, flip_method="x-axis: vertically")) == [
        [0.6, 0.8, 1.0],
        [0.0, 0.2, 0.4],
    ]
    assert grey(call("ImageFlip", image=STEPS, flip_method="y-axis: horizontally")) == [
        [0.4, 0.2, 0.0],
        [1.0, 0.8, 0.6],
    ]
    assert grey(call("ImageRotate", image=STEPS, rotation="90 degrees")) == [
        [0.6, 0.0],
        [0.8, 0.2],
        [1.0, 0.4],
    ]
    assert grey(call("ImageRotate", image=STEPS, rotation="180 degrees")) == [
        [1.0, 0.8, 0.6],
        [0.4, 0.2, 0.0],
    ]
    assert grey(call("ImageRotate", image=STEPS, rotation="270 degrees")) == [
        [0.4, 1.0],
        [0.2, 0.8],
        [0.0, 0.6],
    ]


def test_padding_for_outpaint() -> None:
    image, mask = call(
        "ImagePadForOutpaint", image=torch.ones(2, 3, 3, 3), left=1, bottom=2, feathering=0
    )
    assert image.shape == (2, 5, 4, 3) and mask.shape == (1, 5, 4)
    assert grey(image) == [[0.5, 1, 1, 1]] * 3 + [[0.5] * 4] * 2
    assert mask[0].tolist() == [[1, 0, 0, 0]] * 3 + [[1] * 4] * 2


def test_the_mask_fades_into_the_picture_with_the_square_of_the_distance() -> None:
    _, mask = call("ImagePadForOutpaint", image=torch.ones(1, 9, 9, 3), left=1, feathering=4)
    assert mask[0, 4].tolist() == [1.0, 1.0, 0.5625, 0.25, 0.0625, 0, 0, 0, 0, 0]
    # no fading towards sides without padding
    assert mask[0, 0].tolist() == mask[0, 4].tolist()
    _, mask = call("ImagePadForOutpaint", image=torch.ones(1, 9, 9, 3), bottom=1, feathering=4)
    # the last row is one pixel from the border
    assert mask[0, :, 0].tolist() == [0, 0, 0, 0, 0, 0, 0.0625, 0.25, 0.5625, 1.0]
    _, mask = call("ImagePadForOutpaint", image=torch.ones(1, 8, 8, 3), left=1, feathering=4)
    assert mask.sum() == 8  # too small


@pytest.mark.parametrize(
    ("direction", "rows"),
    [
        ("right", [[0.2, 1, 1, 0.7], [0.2, 1, 1, 0.7]]),
        ("left", [[0.7, 1, 1, 0.2], [0.7, 1, 1, 0.2]]),
        ("down", [[0.2], [0.2], [1], [1], [0.7]]),
        ("up", [[0.7], [1], [1], [0.2], [0.2]]),
    ],
)
def test_stitching(direction: str, rows: list[list[float]]) -> None:
    first, second = (
        picture([0.2], [0.2]),
        picture([0.7], [0.7]) if direction in ("right", "left") else picture([0.7]),
    )
    assert (
        grey(
            call(
                "ImageStitch",
                image1=first,
                image2=second,
                direction=direction,
                match_image_size=False,
                spacing_width=1,
            )
        )
        == rows
    )


def test_stitching_brings_the_second_to_the_first_or_centres_the_smaller() -> None:
    first, second = torch.zeros(1, 4, 4, 3), torch.ones(1, 2, 6, 3)
    assert call("ImageStitch", image1=first, image2=second).shape == (1, 4, 4 + 12, 3)
    assert call("ImageStitch", image1=first, image2=second, direction="down").shape == (
        1,
        4 + 1,
        4,
        3,
    )
    apart = call("ImageStitch", image1=first, image2=second, match_image_size=False)
    assert apart[0, :, 4:, 0].tolist() == [[0] * 6, [1] * 6, [1] * 6, [0] * 6]
    assert call("ImageStitch", image1=first) is first


def test_stitching_batches_and_transparency() -> None:
    first = torch.stack([torch.full((2, 2, 3), value) for value in (0.1, 0.2, 0.3)])
    second = torch.full((1, 2, 2, 4), 0.5)
    stitched = call(
        "ImageStitch",
        image1=first,
        image2=second,
        match_image_size=False,
        spacing_width=2,
        spacing_color="red",
    )
    assert stitched.shape == (3, 2, 6, 4)
    assert rounded(stitched[2, 0]) == [[0.3] * 3 + [1]] * 2 + [[1, 0, 0, 1]] * 2 + [[0.5] * 4] * 2


def test_a_batch_takes_the_size_and_the_channels_of_the_first() -> None:
    joined = call("ImageBatch", image1=torch.zeros(2, 4, 4, 3), image2=torch.zeros(1, 2, 8, 4))
    assert (
        joined.shape == (3, 4, 4, 4)
        and joined[:2, ..., 3].min() == 1
        and joined[2, ..., 3].max() == 0
    )


def test_any_number_of_pictures_masks_and_latents_are_one_batch() -> None:
    pictures = {
        "images.image0": torch.zeros(2, 4, 4, 3),
        "images.image1": torch.zeros(1, 2, 8, 4),
        "images.image7": torch.full((1, 4, 4, 3), 0.5),
    }
    batch = call("BatchImagesNode", **pictures)
    assert batch.shape == (4, 4, 4, 4)
    assert batch[:2, ..., 3].min() == 1 and batch[2, ..., 3].max() == 0
    assert batch[3, ..., :3].unique().tolist() == [0.5]
    masks = {"masks.mask0": torch.ones(1, 4, 4), "masks.mask1": torch.full((2, 2, 4), 0.5)}
    joined = call("BatchMasksNode", **masks)
    assert joined.shape == (3, 4, 4) and rounded(joined[1]) == [[0.5] * 4] * 4
    latents = {
        "latents.latent0": {"samples": torch.ones(1, 4, 2, 2)},
        "latents.latent1": {"samples": torch.zeros(2, 4, 4, 4), "batch_index": [5, 6]},
    }
    latent = call("BatchLatentsNode", **latents)
    assert latent["samples"].shape == (3, 4, 2, 2) and latent["batch_index"] == [0, 5, 6]


def test_parts_and_repetitions_of_a_batch() -> None:
    batch = torch.arange(4.0).reshape(4, 1, 1, 1).expand(-1, 1, 1, 3)

    def part(**inputs: int) -> Any:
        return call("ImageFromBatch", image=batch, **inputs)[:, 0, 0, 0].tolist()

    assert part(batch_index=1, length=2) == [1, 2]
    assert part(batch_index=3, length=9) == [3] and part(batch_index=99) == [3]
    assert part(batch_index=-2, length=2) == [2, 3] and part(batch_index=-99) == [0]
    assert call("RepeatImageBatch", image=batch[:2], amount=2)[:, 0, 0, 0].tolist() == [0, 1, 0, 1]


def test_rebatching_a_list() -> None:
    numbered = [torch.full((count, 2, 2, 3), float(count)) for count in (3, 2)]
    batches = call("RebatchImages", images=numbered, batch_size=[2])
    assert [batch[:, 0, 0, 0].tolist() for batch in batches] == [[3, 3], [3, 2], [2]]
    other_size = [torch.zeros(1, 2, 2, 3), torch.zeros(2, 4, 4, 3)]
    assert [len(batch) for batch in call("RebatchImages", images=other_size, batch_size=[4])] == [
        1,
        2,
    ]


def test_lists_are_declared() -> None:
    from node_calls import registry

    for name in ("RebatchImages", "RebatchLatents"):
        assert registry()[name].takes_lists and registry()[name].gives_lists == (True,)


def test_an_empty_picture_has_a_colour() -> None:
    image = call("EmptyImage", width=3, height=2, batch_size=2, color=0xFF3300)
    assert image.shape == (2, 2, 3, 3) and rounded(image[1, 1, 2]) == [1.0, 0.2, 0.0]


def test_transparency_is_joined_and_split() -> None:
    mask = torch.tensor([[[0.0, 0.0, 1.0], [0.0, 0.0, 1.0]]])
    joined = call("JoinImageWithAlpha", image=STEPS, alpha=mask)
    assert joined[0, ..., 3].tolist() == [[1, 1, 0]] * 2
    colours, again = call("SplitImageWithAlpha", image=joined)
    assert torch.equal(colours, STEPS) and torch.equal(again, mask)
    assert call("SplitImageWithAlpha", image=STEPS)[1].tolist() == [[[0.0] * 3] * 2]
    assert call("JoinImageWithAlpha", image=STEPS, alpha=torch.zeros(3, 8, 8)).shape == (3, 2, 3, 4)


BLENDED = {  # 0.25 below, 0.75 above, at full opacity
    "normal": 0.75,
    "multiply": 0.1875,
    "screen": 0.8125,
    "overlay": 0.375,
    "soft_light": 0.25 + 0.5 * (0.5 - 0.25),
    "difference": 0.0,  # -0.5, clipped
}


@pytest.mark.parametrize("mode", BLENDED)
def test_blending(mode: str) -> None:
    below, above = picture([0.25]), picture([0.75])
    for factor in (0.0, 0.5, 1.0):
        wanted = max(
            0.0, 0.25 + ((BLENDED[mode] if mode != "difference" else -0.5) - 0.25) * factor
        )
        blended = call(
            "ImageBlend", image1=below, image2=above, blend_mode=mode, blend_factor=factor
        )
        assert grey(blended) == [[pytest.approx(wanted, abs=1e-4)]]


def test_blending_takes_the_size_of_the_first() -> None:
    assert call("ImageBlend", image1=STEPS, image2=torch.zeros(2, 9, 4, 4)).shape == (2, 2, 3, 3)


def test_a_blur_spreads_a_point_and_keeps_the_sum() -> None:
    point = torch.zeros(1, 7, 7, 3)
    point[0, 3, 3] = 1.0
    blurred = call("ImageBlur", image=point, blur_radius=1, sigma=1.0)
    edge = math.exp(-0.5) / (1 + 2 * math.exp(-0.5))  # sigma is in units of the radius
    assert torch.allclose(blurred.sum(dim=(1, 2)), torch.ones(1, 3), atol=1e-5)
    assert blurred[0, 3, 2, 1].item() == pytest.approx(edge * (1 - 2 * edge), abs=1e-5)
    assert blurred[0, 2, 2, 1].item() == pytest.approx(edge**2, abs=1e-5)
    assert blurred[0, 3, 5, 1] == 0


def test_an_even_picture_is_neither_blurred_nor_sharpened() -> None:
    for image in (torch.full((1, 5, 9, 3), 0.3), torch.full((1, 1, 1, 3), 0.3)):
        assert torch.allclose(call("ImageBlur", image=image, blur_radius=31), image, atol=1e-6)
        assert torch.allclose(
            call("ImageSharpen", image=image, sharpen_radius=31, alpha=5.0), image, atol=1e-4
        )


def test_sharpening_adds_ten_times_the_blur_s_loss() -> None:
    image = picture([0.5, 0.5, 0.51, 0.5, 0.5]).repeat(1, 5, 1, 1)
    blurred = call("ImageBlur", image=image, blur_radius=1)
    assert torch.allclose(
        call("ImageSharpen", image=image, sharpen_radius=1, alpha=0.5),
        image + 5 * (image - blurred),
        atol=1e-5,
    )
    assert torch.equal(call("ImageSharpen", image=image, alpha=0.0), image)


def test_a_picture_over_another() -> None:
    below, above = torch.zeros(2, 3, 4, 3), torch.ones(1, 2, 2, 3)
    untouched = below.clone()
    covered = call("ImageCompositeMasked", destination=below, source=above, x=1, y=2)
    assert covered[1, ..., 0].tolist() == [[0] * 4, [0] * 4, [0, 1, 1, 0]]
    assert torch.equal(below, untouched)
    mask = torch.tensor([[[1.0, 0.25], [0.0, 0.0]]])
    assert grey(call("ImageCompositeMasked", destination=below, source=above, mask=mask))[0] == [
        1,
        0.25,
        0,
        0,
    ]
    assert (
        call("ImageCompositeMasked", destination=below, source=above, resize_source=True).min() == 1
    )
    assert torch.equal(
        call("ImageCompositeMasked", destination=below, source=above, x=99, y=0), below
    )


def test_a_source_with_other_channels_is_taken() -> None:
    below, above = torch.zeros(1, 2, 2, 4), torch.ones(1, 1, 1, 3)
    assert call("ImageCompositeMasked", destination=below, source=above)[0, 0].tolist() == [
        [1] * 4,
        [0] * 4,
    ]
    assert call(
        "ImageCompositeMasked", destination=below[..., :3], source=torch.ones(1, 1, 1, 4)
    ).shape == (1, 2, 2, 3)


def test_inverting() -> None:
    assert grey(call("ImageInvert", image=STEPS)) == [[1.0, 0.8, 0.6], [0.4, 0.2, 0.0]]


def test_canny_with_thresholds_the_wrong_way_round() -> None:
    with pytest.raises(InputError, match="must not be above high_threshold"):
        call("Canny", image=STEPS, low_threshold=0.9, high_threshold=0.2)


def test_previewing_any_value_as_text() -> None:
    values = ["a\nb", 3, 0.5, True, None, [1, {"a": "é"}]]
    texts = [call("PreviewAny", source=value) for value in values]
    assert texts[:5] == ["a\nb", "3", "0.5", "True", "None"] and json.loads(texts[5]) == values[5]
    assert call_with_ui("PreviewAny", source=3) == ("3", {"text": ("3",)})
    assert "tensor" in call("PreviewAny", source=torch.zeros(2))


def test_predictions_of_surfaces_become_pictures() -> None:
    values = torch.rand(2, 4, 5, 3)
    depth = call("MarigoldV2PostProcess", image=values, prediction="depth")
    distances = values.mean(-1)
    assert depth.shape == (2, 4, 5, 3) and torch.equal(depth[..., 0], depth[..., 2])
    for one, far in zip(depth[..., 0], distances, strict=True):
        assert (one.min(), one.max()) == (0, 1) and one.argmax() == far.argmin()
    assert not call("MarigoldV2PostProcess", image=torch.ones(1, 2, 2, 3), prediction="depth").any()
    normals = call("MarigoldV2PostProcess", image=values, prediction="normals") * 2 - 1
    assert torch.allclose(normals.norm(dim=-1), torch.ones(2, 4, 5))
    assert torch.allclose(normals, F.normalize(values * 2 - 1, dim=-1), atol=1e-6)
    grey = torch.full((1, 1, 1, 3), 0.5)
    albedo = call("MarigoldV2PostProcess", image=grey, prediction="albedo")
    assert torch.allclose(albedo, torch.tensor(0.7354), atol=1e-4)  # IEC 61966-2-1
