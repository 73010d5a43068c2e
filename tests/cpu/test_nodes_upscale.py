"""Upscalers with random weights: all weight names give the same network, tiles leave no seams, and
wrong files are reported.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from node_calls import PlainEngine, call, context_in
from safetensors.torch import save_file

from katz_graph.core.errors import InputError, OutOfMemory
from katz_graph.core.recipe import Compact, Rrdb, UpscaleModelRecipe
from katz_graph.executor.graph.context import RunContext
from katz_graph.picture.compose import in_tiles
from katz_graph.upscale.networks import CompactNet, RrdbNet

FOUR = Rrdb(features=8, growth=4, blocks=2, doublings=2, unshuffle=1)


@pytest.fixture
def context(tmp_path: Path) -> RunContext:
    (tmp_path / "models" / "upscale_models").mkdir(parents=True)
    return context_in(tmp_path)


def weights(shape: Rrdb | Compact) -> dict[str, torch.Tensor]:
    """Draws small weights."""
    torch.manual_seed(0)
    network = RrdbNet(shape) if isinstance(shape, Rrdb) else CompactNet(shape)
    return {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}


def store(
    context: RunContext, tensors: dict[str, torch.Tensor], name: str = "model.safetensors"
) -> UpscaleModelRecipe:
    save_file(tensors, context.folders.models[0] / "upscale_models" / name)
    loaded: UpscaleModelRecipe = call("UpscaleModelLoader", context, model_name=name)
    return loaded


def image(high: int = 12, wide: int = 16, channels: int = 3) -> torch.Tensor:
    return torch.rand(1, high, wide, channels, generator=torch.Generator().manual_seed(1))


def enlarge(
    context: RunContext,
    tensors: dict[str, torch.Tensor],
    picture: torch.Tensor,
    name: str = "model.safetensors",
) -> torch.Tensor:
    made: torch.Tensor = call(
        "ImageUpscaleWithModel", context, upscale_model=store(context, tensors, name), image=picture
    )
    return made


def as_first_release(name: str) -> str:
    name = re.sub(r"body\.(\d+)\.rdb(\d)", r"RRDB_trunk.\1.RDB\2", name)
    return (
        name.replace("conv_body", "trunk_conv")
        .replace("conv_up", "upconv")
        .replace("conv_hr", "HRconv")
    )


def as_sequence(name: str) -> str:
    """Returns the oldest name of a weight of a 2-block 4x network."""
    name = re.sub(r"body\.(\d+)\.rdb(\d)\.conv(\d)", r"model.1.sub.\1.RDB\2.conv\3.0", name)
    places = {
        "conv_first": "model.0",
        "conv_body": "model.1.sub.2",
        "conv_up1": "model.3",
        "conv_up2": "model.6",
    }
    for part, place in (places | {"conv_hr": "model.8", "conv_last": "model.10"}).items():
        name = name.replace(part, place)
    return name


SPELLINGS = {
    "first release": as_first_release,
    "sequence": as_sequence,
    "wrapped": "params_ema.{}".format,
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_is_the_same_network(context: RunContext, spelling: str) -> None:
    tensors = weights(FOUR)
    renamed = {SPELLINGS[spelling](name): tensor for name, tensor in tensors.items()}
    assert set(renamed) != set(tensors)
    plain, other = (
        enlarge(context, tensors, image()),
        enlarge(context, renamed, image(), "other.safetensors"),
    )
    assert plain.shape == (1, 48, 64, 3) and torch.equal(plain, other)


def test_a_residual_block_is_the_papers(context: RunContext) -> None:
    """Compares one block with the papers' formulas."""
    tensors = weights(Rrdb(features=4, growth=2, blocks=1, doublings=0, unshuffle=1))

    def convolution(name: str, x: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, tensors[f"{name}.weight"], tensors[f"{name}.bias"], padding=1)

    def bent(x: torch.Tensor) -> torch.Tensor:
        return torch.where(x > 0, x, 0.2 * x)

    def dense(name: str, x: torch.Tensor) -> torch.Tensor:
        seen = [x]
        for number in range(1, 5):
            seen.append(bent(convolution(f"{name}.conv{number}", torch.cat(seen, 1))))
        return x + 0.2 * convolution(f"{name}.conv5", torch.cat(seen, 1))

    first = convolution("conv_first", image().movedim(-1, 1))
    inner = dense("body.0.rdb3", dense("body.0.rdb2", dense("body.0.rdb1", first)))
    features = first + convolution("conv_body", first + 0.2 * inner)
    wanted = (
        convolution("conv_last", bent(convolution("conv_hr", features))).clamp(0, 1).movedim(1, -1)
    )
    assert torch.allclose(enlarge(context, tensors, image()), wanted, atol=1e-6)


@pytest.mark.parametrize(("unshuffle", "scale"), [(2, 2), (4, 1)])
@pytest.mark.parametrize("size", [(12, 16), (11, 13), (1, 1)])
def test_networks_that_shrink_first_take_any_size(
    context: RunContext, unshuffle: int, scale: int, size: tuple[int, int]
) -> None:
    tensors = weights(Rrdb(features=4, growth=2, blocks=1, doublings=2, unshuffle=unshuffle))
    assert enlarge(context, tensors, image(*size)).shape == (1, size[0] * scale, size[1] * scale, 3)


@pytest.mark.parametrize("scale", [1, 2, 3, 4])
def test_the_compact_network(context: RunContext, scale: int) -> None:
    tensors = weights(Compact(features=6, convolutions=2, scale=scale))
    recipe = store(context, tensors)
    assert recipe.shape == Compact(6, 2, scale)
    last = max(tensors, key=lambda name: int(name.split(".")[1])).rsplit(".", 1)[0]
    still = tensors | {
        f"{last}.{part}": torch.zeros_like(tensors[f"{last}.{part}"]) for part in ("weight", "bias")
    }
    # without detail, pixels only repeat
    enlarged = enlarge(context, still, image(), "still.safetensors")
    assert torch.equal(enlarged, image().repeat_interleave(scale, 1).repeat_interleave(scale, 2))


def test_half_precision_files_and_odd_pictures(context: RunContext) -> None:
    tensors = {name: tensor.half() for name, tensor in weights(FOUR).items()}
    assert enlarge(context, tensors, image(channels=4)).shape == (1, 48, 64, 3)
    grey = enlarge(context, tensors, image(channels=1).repeat(2, 1, 1, 1), "again.safetensors")
    assert (
        grey.shape == (2, 48, 64, 3)
        and grey.dtype == torch.float32
        and grey.min() >= 0
        and grey.max() <= 1
    )


@pytest.mark.parametrize("size", [(20, 20), (64, 30), (33, 97), (7, 100)])
def test_tiles_of_a_local_function_leave_no_seam(size: tuple[int, int]) -> None:
    seen: list[torch.Size] = []

    def double(tile: torch.Tensor) -> torch.Tensor:
        seen.append(tile.shape)
        return tile.repeat_interleave(2, -1).repeat_interleave(2, -2)

    planes = image(*size).movedim(-1, 1)
    tiled = in_tiles(planes, 2, 32, 8, double)
    assert torch.allclose(tiled, double(planes), atol=1e-6)
    assert max(max(shape[-2:]) for shape in seen[:-1]) <= 32


def test_tiles_of_a_network_blend(context: RunContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four convolutions reach 4 pixels, so the outer 4 of a tile differ; an overlap of 32 gives
    them a weight of at most 1/8.
    """
    tensors = weights(Compact(features=6, convolutions=2, scale=2))
    whole = enlarge(context, tensors, image(70, 90))
    monkeypatch.setattr("katz_graph.nodes.upscale.TILE", 40)
    engine = PlainEngine()
    tiled = enlarge(
        context_in(context.folders.models[0].parent, engine=engine), tensors, image(70, 90)
    )
    assert len(engine.tiles) > 4
    assert (tiled - whole).abs().max() < 0.05 * (whole.max() - whole.min())


def test_little_memory_makes_smaller_tiles(context: RunContext) -> None:
    engine = PlainEngine(max_pixels=200 * 200)
    small = context_in(context.folders.models[0].parent, engine=engine)
    assert enlarge(small, weights(Compact(4, 1, 2)), image(300, 300)).shape == (1, 600, 600, 3)
    assert small.warnings == [
        f"ImageUpscaleWithModel: the device is out of memory; continuing in tiles of {side} pixels"
        for side in (256, 128)
    ]
    assert set(engine.tiles) == {(128, 128)}
    with pytest.raises(OutOfMemory):
        enlarge(
            context_in(context.folders.models[0].parent, engine=PlainEngine(max_pixels=9)),
            weights(Compact(4, 1, 2)),
            image(),
        )


def test_a_cancelled_run_stops_between_tiles(context: RunContext) -> None:
    from katz_graph.core.errors import Cancelled

    context.cancel()
    with pytest.raises(Cancelled):
        enlarge(context, weights(FOUR), image())


def without(tensors: dict[str, torch.Tensor], name: str) -> dict[str, torch.Tensor]:
    return {key: tensor for key, tensor in tensors.items() if key != name}


def unlike(name: str) -> dict[str, torch.Tensor]:
    tensors = weights(FOUR)
    if name == "another network":
        return {"layers.0.weight": torch.zeros(3, 3)}
    if name == "grey":
        return tensors | {"conv_first.weight": torch.zeros(8, 1, 3, 3)}
    return without(tensors, "conv_last.weight")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("another network", "not an upscaler of a known kind"),
        ("grey", "from 1 to 3 channels"),
        ("part missing", "not an upscaler"),
    ],
)
def test_files_of_other_networks_are_reported(context: RunContext, name: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        store(context, unlike(name))


@pytest.mark.parametrize("change", ["missing", "unknown", "shape"])
def test_weights_that_do_not_fit_are_reported(context: RunContext, change: str) -> None:
    tensors = weights(FOUR)
    changed: Any = {
        "missing": without(tensors, "body.1.rdb2.conv3.weight"),
        "unknown": tensors | {"attention.weight": torch.zeros(2)},
        "shape": tensors | {"conv_hr.weight": torch.zeros(8, 9, 3, 3)},
    }[change]
    with pytest.raises(
        InputError, match=r"model\.safetensors: its weights do not fit the detected RrdbNet"
    ) as caught:
        enlarge(context, changed, image())
    assert "\n" not in str(caught.value)


def test_pickles_are_refused_with_the_way_out(context: RunContext) -> None:
    (context.folders.models[0] / "upscale_models" / "RealESRGAN_x4plus.pth").write_bytes(
        b"\x80\x02}q\x00."
    )
    with pytest.raises(InputError, match=r"is a pickle.*\.safetensors"):
        call("UpscaleModelLoader", context, model_name="RealESRGAN_x4plus.pth")


def test_a_replaced_file_is_another_model(context: RunContext) -> None:
    recipe = store(context, weights(FOUR))
    save_file(weights(Compact(4, 1, 2)), recipe.file.path)
    with pytest.raises(InputError, match="changed since"):
        call("ImageUpscaleWithModel", context, upscale_model=recipe, image=image())
