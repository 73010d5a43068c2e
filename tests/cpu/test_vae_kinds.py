"""Each kind of VAE encodes and decodes as its class in diffusers does, from folders and from single
files in the original layouts.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch
from diffusers.loaders.single_file_utils import convert_wan_vae_to_diffusers
from PIL import Image
from safetensors.torch import load_file
from single_files import save
from torch import Tensor
from torch.nn.functional import pixel_shuffle, pixel_unshuffle

import katz_graph as katz
from katz_graph.core.errors import InputError
from katz_graph.core.recipe import Component, Tile
from katz_graph.executor.worker.models import DeviceModels
from katz_graph.executor.worker.vae_parts import Parts, needed, surely_enough
from katz_graph.models.families.shared.stages import VAE_DECODE, VAE_ENCODE
from katz_graph.models.families.unet.random_models.original import original_vae
from katz_graph.models.loading.identity import count_values
from katz_graph.models.loading.sources import network_recipe, vae_recipe
from katz_graph.models.loading.store import ModelStore
from katz_graph.models.stages import Stage
from katz_graph.models.vae.coding import decode, encode
from katz_graph.models.vae.kinds import FLUX2, QWEN_IMAGE, QWEN_IMAGE_21, VaeKind, latent_space

FRAMES = {"attn_scales": [], "num_res_blocks": 2}
BLOCKS = {
    "down_block_types": ["DownEncoderBlock2D"] * 4,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
    "block_out_channels": [32, 32, 64, 64],
    "layers_per_block": 1,
}
SETTINGS = {
    "AutoencoderKLQwenImage": {**FRAMES, "base_dim": 8},
    "layers": {**FRAMES, "base_dim": 8, "input_channels": 4},
    "AutoencoderKLQwenImage21": {**FRAMES, "base_dim": 8, "decoder_base_dim": 16},
    "AutoencoderKLFlux2": {**BLOCKS},
    "small decoder": {**BLOCKS, "decoder_block_out_channels": [32, 32, 32, 64]},
}
SAMPLES = {"AutoencoderKLQwenImage": (16, 8, 3), "layers": (16, 8, 4)} | {
    "AutoencoderKLQwenImage21": (64, 16, 4),
    "AutoencoderKLFlux2": (128, 16, 3),
    "small decoder": (128, 16, 3),
}
"""Channels of latents, pixels per cell, channels of pictures."""
CLASSES = {"layers": "AutoencoderKLQwenImage", "small decoder": "AutoencoderKLFlux2"}
KINDS = list(SETTINGS)


@cache
def stock(kind: str) -> Any:
    """Builds diffusers' module with random weights, and statistics of a batch norm."""
    generator = torch.Generator().manual_seed(7)
    with torch.random.fork_rng():
        torch.manual_seed(7)
        module = getattr(diffusers, CLASSES.get(kind, kind))(**SETTINGS[kind]).eval()
    if hasattr(module, "bn"):
        module.bn.running_mean.copy_(torch.randn(128, generator=generator))
        module.bn.running_var.copy_(torch.rand(128, generator=generator) + 0.1)
    return module.requires_grad_(False)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    @cache
    def saved(kind: str) -> Path:
        folder = tmp_path_factory.mktemp("vae") / kind
        stock(kind).save_pretrained(folder)
        return folder

    return saved


def loaded(place: Path) -> Any:
    return ModelStore().vae(vae_recipe(place).vae, "cpu", torch.float32)


def stock_decode(kind: str, latents: Tensor) -> Tensor:
    vae = stock(kind)
    if hasattr(vae, "bn"):
        deviation = torch.sqrt(vae.bn.running_var + vae.config.batch_norm_eps).view(1, -1, 1, 1)
        whole = pixel_shuffle(latents * deviation + vae.bn.running_mean.view(1, -1, 1, 1), 2)
        made = vae.decode(whole).sample
    else:
        made = vae.decode(latents.unsqueeze(2)).sample.squeeze(2)
    picture: Tensor = (made / 2 + 0.5).clamp(0, 1).movedim(1, -1)
    return picture


def stock_encode(kind: str, pictures: Tensor) -> Tensor:
    vae, x = stock(kind), pictures.movedim(-1, 1) * 2 - 1
    if hasattr(vae, "bn"):
        packed = pixel_unshuffle(vae.encode(x).latent_dist.mode(), 2)
        normed: Tensor = vae.bn(packed)  # in eval mode: by running statistics
        return normed
    latents: Tensor = vae.encode(x.unsqueeze(2)).latent_dist.mode().squeeze(2)
    return latents


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_pictures_and_latents_are_those_of_the_stock_class(
    folders: Callable[[str], Path], kind: str
) -> None:
    channels, factor, colours = SAMPLES[kind]
    vae, samples = loaded(folders(kind)), drawn(2, channels, 3, 2)
    picture = decode(vae, samples)
    assert picture.shape == (2, 3 * factor, 2 * factor, colours)
    torch.testing.assert_close(picture, stock_decode(kind, samples), rtol=0, atol=4e-6)
    pixels = torch.rand(2, 2 * factor, 3 * factor, colours)
    latent = encode(vae, pixels)
    assert latent.shape == (2, channels, 2, 3)
    expected = stock_encode(kind, pixels)
    torch.testing.assert_close(latent, expected, rtol=0, atol=4e-6 * float(expected.abs().max()))


@pytest.mark.parametrize("kind", KINDS)
def test_spaces_are_those_of_configurations(folders: Callable[[str], Path], kind: str) -> None:
    published = {"AutoencoderKLQwenImage": QWEN_IMAGE, "AutoencoderKLQwenImage21": QWEN_IMAGE_21}
    name = CLASSES.get(kind, kind)
    assert latent_space(vae_recipe(folders(kind))) == published.get(name, FLUX2).latent


def test_statistics_of_other_channels_are_refused(
    tmp_path: Path, folders: Callable[[str], Path]
) -> None:
    place = shutil.copytree(folders("AutoencoderKLQwenImage"), tmp_path / "vae")
    values = json.loads((place / "config.json").read_text())
    for changed, words in (
        ({"latents_mean": [0.5] * 4}, "latents_mean has 4 values, expected one for each of 16"),
        ({"latents_std": [0.0] * 16}, "latents_std contains 0"),
        ({"latents_std": 2.0}, "latents_std is 2.0, expected a list"),
        ({"dim_mult": 4}, "dim_mult is 4, expected a list"),
    ):
        (place / "config.json").write_text(json.dumps({**values, **changed}))
        with pytest.raises(InputError, match=f"vae: config.json: {words}"):
            vae_recipe(place)


def test_model_range_is_that_of_the_published_statistics() -> None:
    """As the pipelines compute it: (latent - mean) * (1 / deviation), also with a frame axis."""
    config = stock("AutoencoderKLQwenImage").config
    mean, inverse = (
        one.view(1, 16, 1, 1, 1)
        for one in (torch.tensor(config.latents_mean), 1.0 / torch.tensor(config.latents_std))
    )
    latent = drawn(1, 16, 1, 2, 3)
    expected = (latent - mean) * inverse
    space = QWEN_IMAGE.latent
    for given, wanted in ((latent, expected), (latent[:, :, 0], expected[:, :, 0])):
        normal = space.normalised(given)
        torch.testing.assert_close(normal, wanted, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(space.restored(normal), given, rtol=1e-6, atol=1e-6)
        scaled = space.unshifted().normalised(given)
        torch.testing.assert_close(
            scaled - normal,
            (mean * inverse).view(1, 16, *[1] * (given.ndim - 2)).expand_as(given),
            rtol=1e-5,
            atol=1e-5,
        )


@torch.no_grad()
@pytest.mark.parametrize(
    "kind", ["AutoencoderKLQwenImage", "AutoencoderKLQwenImage21", "small decoder"]
)
def test_tiles_blend_to_the_picture(folders: Callable[[str], Path], kind: str) -> None:
    channels, factor, _ = SAMPLES[kind]
    vae, samples = loaded(folders(kind)), drawn(1, channels, 4, 10)
    tile = Tile(6 * factor, 2 * factor)
    tiled, whole = decode(vae, samples, tile), decode(vae, samples)
    assert tiled.shape == whole.shape
    alone = decode(vae, samples[..., :6])  # outside of overlaps, a tile is its window alone
    torch.testing.assert_close(
        tiled[:, :, : 4 * factor], alone[:, :, : 4 * factor], rtol=0, atol=1e-6
    )
    latent = encode(vae, whole, tile)
    alone = encode(vae, whole[:, :, : 6 * factor])
    torch.testing.assert_close(latent[..., :4], alone[..., :4], rtol=0, atol=2e-5)


def test_pictures_without_alpha_are_opaque(folders: Callable[[str], Path]) -> None:
    vae = loaded(folders("AutoencoderKLQwenImage21"))
    pixels = torch.rand(1, 32, 32, 3)
    opaque = torch.cat([pixels, torch.ones(1, 32, 32, 1)], dim=-1)
    assert torch.equal(encode(vae, pixels), encode(vae, opaque))
    plain = loaded(folders("AutoencoderKLQwenImage"))
    assert torch.equal(encode(plain, opaque), encode(plain, pixels))


def test_layers_along_time_take_no_memory(folders: Callable[[str], Path]) -> None:
    """One frame uses the last time slice of each kernel."""
    recipe, models = vae_recipe(folders("AutoencoderKLQwenImage")), DeviceModels()
    models.decode_latent(recipe, drawn(1, 16, 2, 2))
    own = sum(weight.numel() for weight in loaded(folders("AutoencoderKLQwenImage")).parameters())
    assert models.residents.use.resident_bytes == 4 * own
    assert own < 0.4 * count_values(recipe.vae)


@pytest.mark.parametrize(
    "kind", [QWEN_IMAGE, QWEN_IMAGE_21, FLUX2], ids=lambda kind: kind.class_name
)
@pytest.mark.parametrize("stage", [VAE_DECODE, VAE_ENCODE], ids=lambda stage: stage.name)
def test_the_quick_bound_of_memory_holds_at_full_size(kind: VaeKind, stage: Stage) -> None:
    part, sizes = Component("", (), json.dumps({"_class_name": kind.class_name})), (1, 512, 768, 4)
    parts = Parts(1, None)
    assert surely_enough(part, parts, *sizes) >= needed(part, stage, parts, *sizes)


def video_names(kind: str) -> dict[str, str]:
    """Maps the names of a stock module to those of the authors' code: a level's layers in sequence,
    or a sequence for each level.
    """
    parts = {"quant_conv": "conv1", "post_quant_conv": "conv2"}
    layers = {"norm1": "residual.0", "conv1": "residual.2", "norm2": "residual.3"}
    layers |= {"conv2": "residual.6", "conv_shortcut": "shortcut"}
    ends = {"conv_in": "conv1", "norm_out": "head.0", "conv_out": "head.2"}
    found = {}
    for name in stock(kind).state_dict():
        words = name.split(".")
        if words[0] in parts:
            found[name] = ".".join([parts[words[0]], *words[1:]])
            continue
        half, place, *rest = words
        way = "downsamples" if half == "encoder" else "upsamples"
        if place in ends:
            new = [ends[place], *rest]
        elif place == "mid_block":
            number = 1 if rest[0] == "attentions" else 2 * int(rest[1])
            new = ["middle", str(number), *[layers.get(word, word) for word in rest[2:]]]
        elif kind != "AutoencoderKLQwenImage21":
            number, inner = int(rest[0]), rest[1:]
            if half == "decoder":
                number = 4 * number + (int(rest[2]) if rest[1] == "resnets" else 3)
                inner = rest[3:]
            new = [way, str(number), *[layers.get(word, word) for word in inner]]
        else:
            level, inner = rest[0], rest[3:] if rest[1] == "resnets" else rest[2:]
            layer = rest[2] if rest[1] == "resnets" else "2" if half == "encoder" else "3"
            new = [way, level, way, layer, *[layers.get(word, word) for word in inner]]
        found[name] = ".".join([half, *new])
    return found


def original(kind: str, frames: int = 1) -> dict[str, Tensor]:
    """Returns the tensors of a stock module as the authors save them."""
    tensors = stock(kind).state_dict()
    if hasattr(stock(kind), "bn"):
        batch_norm = {name: tensors[name] for name in tensors if name.startswith("bn.")}
        inside = {"quant_conv": "encoder.quant_conv", "post_quant_conv": "decoder.post_quant_conv"}
        return batch_norm | {
            ".".join([inside.get(layer, layer), rest]): tensor
            for name, tensor in original_vae(stock(kind)).items()
            for layer, rest in [name.split(".", 1)]
        }
    kernels = kind == "AutoencoderKLQwenImage21"  # of its convolutions the authors save three axes
    return {
        there: tensors[name][:, :, None].repeat(1, 1, frames, 1, 1)
        if kernels and tensors[name].ndim == 4 and is_causal(there)
        else tensors[name]
        for name, there in video_names(kind).items()
    }


def is_causal(name: str) -> bool:
    """Returns whether a layer of the authors' code is a convolution along time too."""
    return name.endswith("weight") and not any(
        part in name for part in (".resample.", ".to_qkv.", ".proj.")
    )


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    @cache
    def saved(kind: str) -> Path:
        path = tmp_path_factory.mktemp("file") / f"{kind}.safetensors"
        save(path, original(kind))
        return path

    return saved


def test_the_authors_names_are_those_that_diffusers_converts() -> None:
    kind = "AutoencoderKLQwenImage"
    assert {*convert_wan_vae_to_diffusers(original(kind))} == {*stock(kind).state_dict()}


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_is_the_folder(
    folders: Callable[[str], Path], files: Callable[[str], Path], kind: str
) -> None:
    channels, factor, colours = SAMPLES[kind]
    folder, file = loaded(folders(kind)), loaded(files(kind))
    assert latent_space(vae_recipe(files(kind))) == latent_space(vae_recipe(folders(kind)))
    latents, pixels = drawn(1, channels, 2, 2), torch.rand(1, factor, factor, colours)
    assert torch.equal(decode(file, latents), decode(folder, latents))
    assert torch.equal(encode(file, pixels), encode(folder, pixels))


def test_a_file_of_diffusers_names_and_a_decoder_alone_load(
    tmp_path: Path, folders: Callable[[str], Path]
) -> None:
    for kind in ("layers", "AutoencoderKLQwenImage21"):
        (whole,) = folders(kind).glob("*.safetensors")
        file = tmp_path / f"{kind}.safetensors"
        decoder = {
            name: tensor
            for name, tensor in load_file(whole).items()
            if name.startswith(("decoder.", "post_quant_conv.")) and ".time_conv." not in name
        }
        save(file, decoder)
        samples = drawn(1, SAMPLES[kind][0], 2, 2)
        assert torch.equal(decode(loaded(file), samples), decode(loaded(folders(kind)), samples))


def test_other_video_files_are_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "wan2.2_vae.safetensors"
    save(file, original("AutoencoderKLQwenImage21", frames=3))
    with pytest.raises(InputError, match=r"wan2.2_vae.safetensors: this is a VAE of Wan 2.2 .*64"):
        vae_recipe(file)
    tensors = original("AutoencoderKLQwenImage")
    tensors["decoder.conv1.weight"] = tensors["decoder.conv1.weight"][:, :12]
    save(file, tensors)
    with pytest.raises(InputError, match="a VAE with latents of 12 channels, expected 16"):
        vae_recipe(file)
    with pytest.raises(InputError, match="this is a VAE, expected"):
        network_recipe(file)
    for place in (
        original("AutoencoderKLQwenImage"),
        stock("AutoencoderKLQwenImage21").state_dict(),
    ):
        save(file, {name: one for name, one in place.items() if name.startswith("encoder.")})
        with pytest.raises(
            InputError, match=r"incomplete: decoder.conv_(in|out).weight is missing"
        ):
            vae_recipe(file)


def test_a_latent_of_another_vae_is_named_before_loading(folders: Callable[[str], Path]) -> None:
    recipe, models = vae_recipe(folders("AutoencoderKLQwenImage")), DeviceModels()
    for channels in (64, 128):
        with pytest.raises(
            InputError, match=rf"AutoencoderKLQwenImage: VAE decode: .*\[1, {channels}, 2, 2\]"
        ):
            models.decode_latent(recipe, torch.zeros(1, channels, 2, 2))
    with pytest.raises(InputError, match="the latent has 3 frames, expected one"):
        models.decode_latent(recipe, torch.zeros(1, 16, 3, 2, 2))
    assert models.residents.use.resident_bytes == 0
    samples = drawn(1, 16, 2, 2)
    one = models.decode_latent(recipe, samples.unsqueeze(2))[0]
    assert torch.equal(one, models.decode_latent(recipe, samples)[0])


@pytest.fixture(scope="module")
def engine(
    files: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[katz.Engine]:
    place = tmp_path_factory.mktemp("run")
    (place / "models" / "vae").mkdir(parents=True)
    (place / "input").mkdir()
    for kind in ("AutoencoderKLQwenImage", "AutoencoderKLQwenImage21"):
        (place / "models" / "vae" / f"{kind}.safetensors").symlink_to(files(kind))
    clear = Image.new("RGBA", (32, 32), (200, 40, 40, 0))
    Image.new("RGB", (32, 32), (200, 40, 40)).save(place / "input" / "opaque.png")
    clear.save(place / "input" / "clear.png")
    models, pictures = str(place / "models"), str(place / "input")
    with katz.open(models=models, input=pictures, output=str(place / "output")) as engine:
        yield engine


def alpha_graph(kind: str, *more: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    """Encodes and decodes a picture with alpha, and runs nodes on the result (`decoded`)."""
    nodes = {
        "loaded": ("LoadImage", {"image": "clear.png"}),
        "seen": ("JoinImageWithAlpha", {"image": ["loaded", 0], "alpha": ["loaded", 1]}),
        "vae": ("VAELoader", {"vae_name": f"{kind}.safetensors"}),
        "latent": ("VAEEncode", {"pixels": ["seen", 0], "vae": ["vae", 0]}),
        "decoded": ("VAEDecode", {"samples": ["latent", 0], "vae": ["vae", 0]}),
    } | {f"more{number}": one for number, one in enumerate(more)}
    return {name: {"class_type": of, "inputs": given} for name, (of, given) in nodes.items()}


@pytest.mark.parametrize("kind", ["AutoencoderKLQwenImage", "AutoencoderKLQwenImage21"])
def test_pictures_with_alpha_are_saved_with_it(engine: katz.Engine, kind: str) -> None:
    decoded = {"images": ["decoded", 0]}
    saved = ("SaveImage", decoded), ("SaveImageAdvanced", decoded), ("PreviewImage", decoded)
    modes = [image.mode for image in engine.run(alpha_graph(kind, *saved)).images]
    assert modes == 3 * ["RGBA" if kind == "AutoencoderKLQwenImage21" else "RGB"]


def test_alpha_of_the_picture_is_encoded(engine: katz.Engine) -> None:
    kind = "AutoencoderKLQwenImage21"
    graph = alpha_graph(kind, ("SaveImage", {"images": ["decoded", 0]}))
    seen = engine.run(graph).images[0]
    graph["latent"]["inputs"]["pixels"] = ["loaded", 0]  # colours alone
    assert engine.run(graph).images[0].tobytes() != seen.tobytes()
