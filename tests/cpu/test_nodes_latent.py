"""Latent nodes give values calculated by hand, and carry noise masks and noise draws along."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from node_calls import call, context_in, rounded
from safetensors import safe_open
from safetensors.torch import save_file

from katz_graph.core.errors import InputError
from katz_graph.sampling.areas import fit_mask
from katz_graph.sampling.noise import initial_noise


def latent(
    batch: int = 1, high: int = 8, wide: int = 8, channels: int = 4, **fields: Any
) -> dict[str, Any]:
    values = (
        torch.arange(batch * channels * high * wide).reshape(batch, channels, high, wide).float()
    )
    return {"samples": values, **fields}


def left_half(batch: int = 1) -> torch.Tensor:
    """Masks the left half: [B, 1, 64, 64]."""
    mask = torch.zeros(batch, 1, 64, 64)
    mask[..., :32] = 1.0
    return mask


def test_empty_latents(tmp_path: Path) -> None:
    context = context_in(tmp_path)
    assert call("EmptyLatentImage", context, width=64, height=32, batch_size=2)[
        "samples"
    ].shape == (2, 4, 4, 8)
    assert call("EmptySD3LatentImage", context, width=64, height=32)["samples"].shape == (
        1,
        16,
        4,
        8,
    )
    assert context.warnings == []
    assert call("EmptySD3LatentImage", context, width=70, height=32)["samples"].shape == (
        1,
        16,
        4,
        8,
    )
    assert context.warnings == ["EmptySD3LatentImage: 70x32 is not a multiple of 8; using 64x32"]


def test_empty_latents_of_other_cells_and_with_frames(tmp_path: Path) -> None:
    context = context_in(tmp_path)
    packed = call("EmptyFlux2LatentImage", context, width=72, height=32, batch_size=2)["samples"]
    assert packed.shape == (2, 128, 2, 4) and not packed.any()
    assert context.warnings == ["EmptyFlux2LatentImage: 72x32 is not a multiple of 16; using 64x32"]
    layered = call("EmptyQwenImageLayeredLatentImage", context, width=64, height=32, layers=2)
    assert layered["samples"].shape == (1, 16, 3, 4, 8)


@pytest.mark.parametrize(
    ("dim", "index", "amount", "wanted"),
    [
        ("x", 2, 3, [2, 3, 4]),
        ("x", -2, 5, [6, 7]),
        ("x", 100, 2, [7]),
        ("x", -100, 2, [0, 1]),
        ("y", 0, 1, [0]),
        ("t", 1, 16384, [1, 2]),
    ],
)
def test_a_latent_is_cut_within_its_size(
    dim: str, index: int, amount: int, wanted: list[int]
) -> None:
    values = torch.randn(2, 4, 3, 4, 8)
    cut = call("LatentCut", samples={"samples": values}, dim=dim, index=index, amount=amount)
    axis = {"t": 2, "y": 3, "x": 4}[dim]
    assert torch.equal(cut["samples"], values.index_select(axis, torch.tensor(wanted)))


def test_frames_become_samples_in_order() -> None:
    values = torch.randn(2, 4, 5, 3, 3)
    cut = call("LatentCutToBatch", samples={"samples": values}, dim="t", slice_size=2)["samples"]
    assert cut.shape == (4, 4, 2, 3, 3)
    for number, (sample, first) in enumerate(((0, 0), (0, 2), (1, 0), (1, 2))):
        assert torch.equal(cut[number], values[sample, :, first : first + 2])
    flat = latent()
    for name in ("LatentCut", "LatentCutToBatch"):  # a latent without frames has one
        assert torch.equal(call(name, samples=flat, dim="t")["samples"], flat["samples"])


@pytest.mark.parametrize(
    ("name", "sockets", "inputs"),
    [
        ("LatentUpscale", ("samples",), {"width": 256, "upscale_method": "bislerp"}),
        ("RepeatLatentBatch", ("samples",), {"amount": 2}),
        ("LatentBlend", ("samples1", "samples2"), {}),
        ("LatentComposite", ("samples_to", "samples_from"), {"x": 8, "feather": 16}),
        ("LatentCompositeMasked", ("destination", "source"), {"resize_source": True}),
        ("LatentCompositeMasked", ("destination", "source"), {"mask": left_half()[0]}),
    ],
)
def test_each_frame_is_edited_as_a_picture(
    name: str, sockets: tuple[str, ...], inputs: dict[str, Any]
) -> None:
    values = torch.randn(2, 4, 3, 8, 16), torch.randn(2, 4, 3, 8, 12)
    whole, second = (
        call(name, **inputs, **dict(zip(sockets, given, strict=False)))["samples"]
        for given in (
            [{"samples": one} for one in values],
            [{"samples": one[:, :, 1]} for one in values],
        )
    )
    assert whole.shape[2] == 3 and torch.equal(whole[:, :, 1], second)


def test_latents_of_other_frames_do_not_mix() -> None:
    with pytest.raises(InputError, match="one latent has no frames, the other 3: cut frames"):
        frames = {"samples": torch.zeros(1, 4, 3, 8, 8)}
        call("LatentAdd", samples1=latent(), samples2=frames)


METHODS = ("nearest-exact", "bilinear", "area", "bicubic", "bislerp")


@pytest.mark.parametrize("method", METHODS)
def test_upscaling_to_pixels(method: str) -> None:
    def size(**inputs: Any) -> tuple[int, ...]:
        return tuple(
            call("LatentUpscale", samples=latent(high=16), upscale_method=method, **inputs)[
                "samples"
            ].shape[2:]
        )

    assert size(width=128, height=256) == (32, 16)
    assert size(width=128, height=0) == (32, 16)
    assert size(width=0, height=0) == (16, 8)
    assert size(width=8, height=8) == (8, 8)  # no side below 64 pixels
    assert size(width=128, height=128, crop="center") == (16, 16)
    by = call("LatentUpscaleBy", samples=latent(high=16), upscale_method=method, scale_by=1.5)
    assert by["samples"].shape == (1, 4, 24, 12)


@pytest.mark.parametrize("method", METHODS)
def test_an_even_latent_stays_even_in_any_size(method: str) -> None:
    even = {"samples": torch.tensor([1.0, -2.0, 0.5, 0.0]).reshape(1, 4, 1, 1).expand(1, 4, 5, 7)}
    scaled = call("LatentUpscaleBy", samples=even, upscale_method=method, scale_by=2.3)["samples"]
    assert torch.allclose(
        scaled, torch.tensor([1.0, -2.0, 0.5, 0.0]).reshape(1, 4, 1, 1).expand_as(scaled), atol=1e-5
    )


def test_bislerp_turns_between_neighbours_at_full_length() -> None:
    """From (2, 0) to (0, 4) by weights 0, 1/4, 3/4, 1: angles 0 to 90 degrees, lengths 2 to 4."""
    pair = torch.zeros(1, 2, 1, 2)
    pair[0, :, 0, 0], pair[0, :, 0, 1] = torch.tensor([2.0, 0.0]), torch.tensor([0.0, 4.0])
    scaled = call(
        "LatentUpscaleBy", samples={"samples": pair}, upscale_method="bislerp", scale_by=2.0
    )["samples"]
    assert rounded(scaled[0, :, 0].norm(dim=0)) == [2.0, 2.5, 3.5, 4.0]
    angles = torch.atan2(scaled[0, 1, 0], scaled[0, 0, 0]).rad2deg()
    assert rounded(angles, 2) == [0.0, 22.5, 67.5, 90.0]


def test_bislerp_of_opposite_and_empty_vectors_has_no_nan() -> None:
    values = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 0.0]]).T.reshape(1, 2, 1, 3)
    scaled = call(
        "LatentUpscaleBy", samples={"samples": values}, upscale_method="bislerp", scale_by=3.0
    )["samples"]
    assert torch.isfinite(scaled).all()


def test_bislerp_agrees_with_bilinear_between_parallel_vectors() -> None:
    ramp = {
        "samples": torch.rand(1, 1, 5, 6, generator=torch.Generator().manual_seed(0))
        * torch.ones(1, 4, 1, 1)
    }
    scaled = [
        call("LatentUpscaleBy", samples=ramp, upscale_method=method, scale_by=1.7)["samples"]
        for method in ("bislerp", "bilinear")
    ]
    assert torch.allclose(*scaled, atol=1e-5)


def test_a_centre_crop_takes_the_mask_along() -> None:
    masked = latent(noise_mask=left_half())
    cropped = call("LatentUpscale", samples=masked, width=64, height=128, crop="center")
    mask = fit_mask(cropped["noise_mask"], cropped["samples"])
    assert mask.shape == (1, 1, 16, 8)
    # columns 2 to 6 of 8, with the border in the middle
    assert mask[0, 0, 8].tolist() == [1, 1, 1, 1, 0, 0, 0, 0]


def test_turns_and_flips_take_the_mask_along() -> None:
    masked = latent(noise_mask=left_half())
    turned = call("LatentRotate", samples=masked, rotation="90 degrees")
    # clockwise: the first column is the top row
    assert turned["samples"][0, 0, 0].tolist() == [56, 48, 40, 32, 24, 16, 8, 0]
    assert (
        fit_mask(turned["noise_mask"], turned["samples"])[0, 0, :, 0].tolist() == [1] * 4 + [0] * 4
    )
    flipped = call("LatentFlip", samples=masked, flip_method="y-axis: horizontally")
    assert flipped["samples"][0, 0, 0].tolist() == [7, 6, 5, 4, 3, 2, 1, 0]
    assert (
        fit_mask(flipped["noise_mask"], flipped["samples"])[0, 0, 0].tolist() == [0] * 4 + [1] * 4
    )
    assert (
        call("LatentFlip", samples=latent(), flip_method="x-axis: vertically")["samples"][
            0, 0, 0, 0
        ]
        == 56
    )
    assert torch.equal(call("LatentRotate", samples=masked)["samples"], masked["samples"])


def test_cropping_takes_the_mask_along() -> None:
    source = latent(high=16, wide=16, noise_mask=left_half())  # a mask at half the picture's size
    part = call("LatentCrop", samples=source, width=64, height=64, x=32, y=8)
    assert torch.equal(part["samples"], source["samples"][..., 1:9, 4:12])
    assert fit_mask(part["noise_mask"], part["samples"])[0, 0, 0].tolist() == [1] * 4 + [0] * 4
    # at least 64 pixels stay
    assert call("LatentCrop", samples=source, x=16384, y=16384)["samples"].shape[2:] == (8, 8)
    assert call("LatentCrop", samples=latent(high=2, wide=2), x=64)["samples"].shape[2:] == (2, 2)


def test_arithmetic() -> None:
    one, two = latent(), {"samples": torch.full((1, 4, 8, 8), 2.0)}
    assert torch.equal(call("LatentAdd", samples1=one, samples2=two)["samples"], one["samples"] + 2)
    assert torch.equal(
        call("LatentSubtract", samples1=one, samples2=two)["samples"], one["samples"] - 2
    )
    assert torch.equal(
        call("LatentMultiply", samples=one, multiplier=-0.5)["samples"], one["samples"] * -0.5
    )
    blended = call("LatentBlend", samples1=one, samples2=two, blend_factor=0.25)["samples"]
    assert torch.allclose(blended, one["samples"] * 0.25 + 1.5)


def test_the_second_takes_size_and_batch_of_the_first_which_keeps_its_mask() -> None:
    first = latent(3, noise_mask=left_half(), batch_index=[4, 5, 6])
    total = call("LatentAdd", samples1=first, samples2={"samples": torch.ones(2, 4, 4, 16)})
    assert torch.equal(total["samples"], first["samples"] + 1)
    assert torch.equal(total["noise_mask"], first["noise_mask"]) and total["batch_index"] == [
        4,
        5,
        6,
    ]


@pytest.mark.parametrize(
    "name", ["LatentAdd", "LatentSubtract", "LatentInterpolate", "LatentBlend", "LatentBatch"]
)
def test_latents_of_other_vaes_do_not_mix(name: str) -> None:
    with pytest.raises(InputError, match="4 and 16 channels"):
        call(name, samples1=latent(), samples2=latent(channels=16))


def test_interpolation_mixes_directions_and_lengths_apart() -> None:
    """Between (3, 0) and (0, 1): direction of (1, 1), length 2."""
    ends = [
        {"samples": torch.tensor(vector).reshape(1, 2, 1, 1)} for vector in ([3.0, 0.0], [0.0, 1.0])
    ]
    middle = call("LatentInterpolate", samples1=ends[0], samples2=ends[1], ratio=0.5)[
        "samples"
    ].flatten()
    assert rounded(middle) == [1.4142, 1.4142]
    assert rounded(
        call("LatentInterpolate", samples1=ends[0], samples2=ends[1])["samples"].flatten()
    ) == [3.0, 0.0]
    zero = {"samples": torch.zeros(1, 2, 1, 1)}
    assert torch.isfinite(
        call("LatentInterpolate", samples1=zero, samples2=zero, ratio=0.5)["samples"]
    ).all()


def test_composite() -> None:
    below, above = {"samples": torch.zeros(2, 4, 8, 8)}, {"samples": torch.ones(1, 4, 4, 4)}
    placed = call("LatentComposite", samples_to=below, samples_from=above, x=16, y=48)["samples"]
    assert placed[1, 0, 6].tolist() == [0, 0, 1, 1, 1, 1, 0, 0] and placed.sum() == 2 * 4 * 2 * 4
    assert below["samples"].sum() == 0
    soft = call("LatentComposite", samples_to=below, samples_from=above, x=16, y=0, feather=16)[
        "samples"
    ]
    # no feather at the picture's own border
    assert soft[0, 0, 0].tolist() == [0, 0, 0.5, 1, 1, 0.5, 0, 0]
    assert soft[0, 0, 3].tolist() == [0, 0, 0.25, 0.5, 0.5, 0.25, 0, 0]
    assert (
        call("LatentComposite", samples_to=below, samples_from=above, x=640, feather=16)[
            "samples"
        ].sum()
        == 0
    )


def test_composite_through_a_mask() -> None:
    below, above = {"samples": torch.zeros(1, 4, 8, 8)}, {"samples": torch.ones(1, 4, 4, 4)}
    mask = torch.zeros(1, 32, 32)
    mask[:, :16] = 1.0
    placed = call("LatentCompositeMasked", destination=below, source=above, x=8, y=8, mask=mask)[
        "samples"
    ]
    assert placed[0, 0, :, 1].tolist() == [0, 1, 1, 0, 0, 0, 0, 0]
    assert (
        call("LatentCompositeMasked", destination=below, source=above, resize_source=True)[
            "samples"
        ].min()
        == 1
    )
    assert call("LatentCompositeMasked", destination=below, source=above)["samples"].sum() == 4 * 16


def test_a_part_of_a_batch_gets_the_noise_that_it_has_in_the_whole() -> None:
    whole = latent(
        4, noise_mask=torch.stack([torch.full((1, 8, 8), value) for value in (0.1, 0.2)])
    )
    part = call("LatentFromBatch", samples=whole, batch_index=1, length=2)
    assert torch.equal(part["samples"], whole["samples"][1:3]) and part["batch_index"] == [1, 2]
    # two masks for four samples repeat
    assert rounded(part["noise_mask"][:, 0, 0, 0]) == [0.2, 0.1]
    again = call("LatentFromBatch", samples=part, batch_index=-1, length=64)
    assert again["batch_index"] == [2] and len(again["samples"]) == 1
    numbered = [
        initial_noise((count, 4, 8, 8), 7, indices)
        for count, indices in ((4, [0, 1, 2, 3]), (1, again["batch_index"]))
    ]
    assert torch.equal(numbered[0][2:3], numbered[1])


def test_repeating_a_batch() -> None:
    repeated = call(
        "RepeatLatentBatch",
        samples=latent(2, noise_mask=torch.rand(2, 1, 8, 8), batch_index=[3, 5]),
        amount=3,
    )
    assert len(repeated["samples"]) == len(repeated["noise_mask"]) == 6
    assert torch.equal(repeated["noise_mask"][2:4], repeated["noise_mask"][:2])
    assert repeated["batch_index"] == [3, 5, 6, 8, 9, 11]
    plain = call("RepeatLatentBatch", samples=latent(2, noise_mask=left_half()), amount=2)
    assert len(plain["noise_mask"]) == 1 and "batch_index" not in plain


def test_two_latents_as_one_batch() -> None:
    joined = call(
        "LatentBatch",
        samples1=latent(2),
        samples2=latent(1, 4, 4, noise_mask=torch.zeros(1, 1, 4, 4), batch_index=[9]),
    )
    assert joined["samples"].shape == (3, 4, 8, 8) and joined["batch_index"] == [0, 1, 9]
    fitted = fit_mask(joined["noise_mask"], joined["samples"])
    assert fitted.mean(dim=(1, 2, 3)).tolist() == [1, 1, 0]  # without a mask: painted whole
    assert "noise_mask" not in call("LatentBatch", samples1=latent(), samples2=latent())


def test_seed_behaviour() -> None:
    assert call("LatentBatchSeedBehavior", samples=latent(3), seed_behavior="fixed")[
        "batch_index"
    ] == [0, 0, 0]
    numbered = latent(2, batch_index=[4, 7])
    assert call("LatentBatchSeedBehavior", samples=numbered)["batch_index"] == [4, 4]
    assert "batch_index" not in call(
        "LatentBatchSeedBehavior", samples=numbered, seed_behavior="random"
    )
    assert numbered["batch_index"] == [4, 7]


def test_rebatching_a_list() -> None:
    batches = call(
        "RebatchLatents", latents=[latent(3), latent(2, noise_mask=left_half())], batch_size=[2]
    )
    assert [batch["batch_index"] for batch in batches] == [[0, 1], [2, 3], [4]]
    assert torch.equal(
        batches[1]["samples"], torch.cat([latent(3)["samples"][2:], latent(2)["samples"][:1]])
    )
    assert ["noise_mask" in batch for batch in batches] == [False, True, True]
    assert fit_mask(batches[1]["noise_mask"], batches[1]["samples"])[:, 0, 0, 7].tolist() == [1, 0]
    assert [
        len(batch["samples"])
        for batch in call("RebatchLatents", latents=[latent(1), latent(1, 4, 4)], batch_size=[8])
    ] == [1, 1]


def test_a_batch_index_that_does_not_fit_is_reported() -> None:
    with pytest.raises(
        InputError, match="batch_index has 1 numbers, expected one for each of 2 samples"
    ):
        call("LatentFromBatch", samples=latent(2, batch_index=[0]))


def test_a_latent_in_a_file(tmp_path: Path) -> None:
    context = context_in(tmp_path, metadata={"prompt": "{}"})
    source = latent(2)
    assert call("SaveLatent", context, samples=source) is source
    (path,) = context.files
    assert str(path.relative_to(tmp_path)) == "output/latents/ComfyUI_00001_.latent"
    with safe_open(path, "pt") as file:
        assert set(file.keys()) == {
            "latent_tensor",
            "latent_format_version_0",
        } and file.metadata() == {"prompt": "{}"}
    (tmp_path / "input").mkdir()
    (tmp_path / "input" / "a.latent").write_bytes(path.read_bytes())
    for name in ("a.latent", "latents/ComfyUI_00001_.latent [output]"):
        assert torch.equal(call("LoadLatent", context, latent=name)["samples"], source["samples"])
    assert context.warnings == []
    framed = {"samples": torch.ones(1, 16, 1, 2, 2)}
    call("SaveLatent", context, samples=framed)
    name = "latents/ComfyUI_00002_.latent [output]"
    assert torch.equal(call("LoadLatent", context, latent=name)["samples"], framed["samples"])
    call("SaveLatent", context, samples=latent(noise_mask=left_half()))
    assert "noise mask is not written" in context.warnings[0]


def test_latent_files_of_other_makes(tmp_path: Path) -> None:
    (tmp_path / "input").mkdir()
    save_file(
        {"latent_tensor": torch.full((1, 4, 2, 2), 0.18215)}, tmp_path / "input" / "old.latent"
    )
    save_file({"weights": torch.zeros(1)}, tmp_path / "input" / "other.latent")
    save_file({"latent_tensor": torch.zeros(3)}, tmp_path / "input" / "flat.latent")
    (tmp_path / "input" / "text.latent").write_text("hello, this is no latent")
    context = context_in(tmp_path)
    assert torch.allclose(
        call("LoadLatent", context, latent="old.latent")["samples"], torch.ones(1, 4, 2, 2)
    )
    for name, why in (
        ("other", "no latent_tensor"),
        ("flat", r"shape \[3\]"),
        ("text", "safetensors"),
        ("gone", "not in latents"),
    ):
        with pytest.raises(InputError, match=why):
            call("LoadLatent", context, latent=f"{name}.latent")
