"""Stable Diffusion 3 and 3.5: pictures without T5, and files."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKL, StableDiffusion3Pipeline
from diffusers.loaders.single_file_utils import convert_sd3_transformer_checkpoint_to_diffusers
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection
from transformers_made import GUIDANCE, PROMPTS, STEPS, region, region_of

from katz_graph.core.errors import InputError
from katz_graph.core.latent_space import LatentSpace
from katz_graph.core.recipe import Tile
from katz_graph.models.families.sd3.stand_ins import transformer
from katz_graph.models.families.shared.random_parts import seeded
from katz_graph.models.family import check_text
from katz_graph.models.loading.convert import blank
from katz_graph.models.loading.convert import tensors as loaded_tensors
from katz_graph.models.loading.sources import (
    clip_recipe,
    network_recipe,
    pipeline_recipes,
    typed_clip_recipe,
    vae_recipe,
)
from katz_graph.models.text.kinds import pooled_text_width
from katz_graph.models.vae.coding import decode
from katz_graph.planner.sampling import table_of
from katz_graph.testing.random_models import (
    Kind,
    make_pipeline,
)
from katz_graph.testing.requests import bare_context, local_engine, sample

ABSENT = "text_encoder_3", "tokenizer_3", "image_encoder", "feature_extractor"

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("sd35")
    make_pipeline(place, "sd35", 1)
    return place


@pytest.mark.parametrize("kind", ["sd3", "sd35"])
def test_a_picture_without_t5_is_the_stock_pipeline_s(kind: Kind, tmp_path: Path) -> None:
    make_pipeline(tmp_path, kind, 5)
    latent = torch.zeros(1, 16, 8, 12)
    with local_engine() as engine:
        ours = sample(engine, region(tmp_path, kind, latent))
        _, _, vae = pipeline_recipes(tmp_path)
        picture = engine.decode_latent(vae, ours, bare_context(engine))
    stock = StableDiffusion3Pipeline.from_pretrained(tmp_path, **dict.fromkeys(ABSENT))
    stock.set_progress_bar_config(disable=True)
    noise = torch.randn(latent.shape, generator=torch.Generator().manual_seed(7))
    assert (picture - without_t5(stock, noise)).abs().max() <= 1e-5


def without_t5(stock: Any, noise: Tensor, prompts: tuple[str, str] = PROMPTS) -> Tensor:
    """Returns the picture [B, H, W, 3] of the stock pipeline for CLIP rows only."""
    embeds = []
    for prompt in prompts:
        hidden, pooled = stock._get_clip_prompt_embeds(prompt)
        second, second_pooled = stock._get_clip_prompt_embeds(prompt, clip_model_index=1)
        joined = torch.cat([hidden, second], dim=-1)
        missing = stock.transformer.config.joint_attention_dim - joined.shape[-1]
        embeds.append(
            (
                torch.nn.functional.pad(joined, (0, missing)),
                torch.cat([pooled, second_pooled], dim=-1),
            )
        )
    (positive, pooled), (negative, negative_pooled) = embeds
    made = stock(
        prompt_embeds=positive,
        pooled_prompt_embeds=pooled,
        negative_prompt_embeds=negative,
        negative_pooled_prompt_embeds=negative_pooled,
        latents=noise,
        height=noise.shape[-2] * 8,
        width=noise.shape[-1] * 8,
        num_inference_steps=STEPS,
        guidance_scale=GUIDANCE,
        output_type="pt",
    )
    picture: Tensor = made.images.movedim(1, -1)
    return picture


def test_the_first_text_encoder_s_projection_is_not_used(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    for suffix, same in (("", True), ("_2", False)):
        weights = other / f"text_encoder{suffix}" / "model.safetensors"
        tensors = load_file(weights)
        tensors["text_projection.weight"] *= 2
        save_file(tensors, weights, {"format": "pt"})
        latent = torch.zeros(1, 16, 8, 8)
        with local_engine() as engine:
            made = [sample(engine, region(place, "sd35", latent)) for place in (folder, other)]
        assert torch.equal(*made) == same


# Files


@pytest.mark.parametrize(("blocks", "second", "norm"), [(3, 0, None), (4, 2, 32)])
def test_a_file_in_the_original_layout_matches_diffusers(
    blocks: int, second: int, norm: int | None, tmp_path: Path
) -> None:
    tensors = transformer(blocks, second, norm=norm)
    save_file(tensors, tmp_path / "model.safetensors")
    network = network_recipe(tmp_path / "model.safetensors").network
    wanted = convert_sd3_transformer_checkpoint_to_diffusers(dict(tensors))
    module = blank(network)
    ours = loaded_tensors(network, module)
    assert ours.keys() == wanted.keys() == module.state_dict().keys()
    assert all(torch.equal(ours[name], tensor) for name, tensor in wanted.items())
    assert {name: value.shape for name, value in module.state_dict().items()} == {
        name: tensor.shape for name, tensor in wanted.items()
    }


def test_two_text_encoders_in_files_pool_as_the_folder_s_do(folder: Path) -> None:
    model, clip, _ = pipeline_recipes(folder)
    paths = [folder / f"text_encoder{suffix}" for suffix in ("_2", "")]
    own = typed_clip_recipe(paths, "sd3")
    assert [one.encoder for one in own.encoders] == [one.encoder for one in clip.encoders]
    assert pooled_text_width(own) == 32 + 40
    check_text(own, model)
    with pytest.raises(InputError, match="not the two text encoders of one model"):
        clip_recipe(paths)


def test_a_checkpoint_in_one_file_matches_its_parts(tmp_path: Path) -> None:
    parts = {"unet": {name: 0.05 * value for name, value in transformer(3, 1).items()}}
    with seeded(1):
        for role, projection, sizes in (("clip_l", 0, (32, 2)), ("clip_g", 40, (64, 3))):
            config = CLIPTextConfig(
                hidden_size=sizes[0],
                num_hidden_layers=sizes[1],
                intermediate_size=64,
                num_attention_heads=1,
                vocab_size=49408,
                projection_dim=projection or sizes[0],
            )
            kind = CLIPTextModelWithProjection if projection else CLIPTextModel
            parts[role] = {
                name if name.startswith("text_") else f"text_model.{name}": value
                for name, value in kind(config).state_dict().items()
            }
        parts["vae"] = vae_of_16_channels().state_dict()
    prefixes = {
        "unet": "model.diffusion_model.",
        "vae": "first_stage_model.",
        "clip_l": "text_encoders.clip_l.transformer.",
        "clip_g": "text_encoders.clip_g.transformer.",
    }
    whole = tmp_path / "whole.safetensors"
    save_file(
        {
            prefixes[part] + name: value
            for part, found in parts.items()
            for name, value in found.items()
        },
        whole,
    )
    save_file(parts["unet"], tmp_path / "unet.safetensors")
    latent = torch.zeros(1, 16, 8, 8)
    model = network_recipe(tmp_path / "unet.safetensors")
    assert model.latent == LatentSpace(16, 8, 1.5305, 0.0609)
    with local_engine() as engine:
        ours = sample(engine, region(whole, "sd35", latent))
        apart = sample(engine, region_of(model, pipeline_recipes(whole)[1], "sd35", latent))
    assert torch.equal(ours, apart)
    assert apart.isfinite().all() and apart.std() > 0.1


def test_a_file_has_the_noise_levels_of_a_folder(folder: Path, tmp_path: Path) -> None:
    save_file(transformer(2, 1), tmp_path / "model.safetensors")
    alone = network_recipe(tmp_path / "model.safetensors"), network_recipe(folder / "transformer")
    wanted = table_of(pipeline_recipes(folder)[0])
    for model in alone:
        assert torch.equal(table_of(model).sigmas, wanted.sigmas)


def vae_of_16_channels() -> AutoencoderKL:
    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(32,) * 4,
        layers_per_block=1,
        latent_channels=16,
        use_quant_conv=False,
        use_post_quant_conv=False,
    ).eval()


def test_a_vae_of_16_channels_in_a_file_decodes_as_its_module(tmp_path: Path) -> None:
    vae = vae_of_16_channels()
    save_file(vae.state_dict(), tmp_path / "ae.safetensors")
    latent = torch.randn(1, 16, 8, 8, generator=torch.Generator().manual_seed(1))
    with local_engine() as engine, torch.no_grad():
        recipe = vae_recipe(tmp_path / "ae.safetensors")
        ours = engine.decode_latent(recipe, latent, bare_context(engine))
        wanted = (vae.decode(latent).sample.movedim(1, -1) / 2 + 0.5).clamp(0, 1)
    assert torch.equal(ours, wanted)


@torch.no_grad()
def test_a_vae_of_16_channels_decodes_in_tiles() -> None:
    """2048² pixels need it: one tile for all equals the whole; overlaps are blended."""
    model, draw = vae_of_16_channels(), torch.Generator().manual_seed(1)
    latent = torch.randn(2, 16, 20, 12, generator=draw)
    whole = decode(model, latent)
    assert torch.equal(decode(model, latent, Tile(256, 64)), whole)
    tiled = decode(model, latent, Tile(96, 32))
    assert tiled.shape == whole.shape and not torch.equal(tiled, whole)
    assert (tiled - whole).abs().mean() < 0.5 * (whole - whole.flip(0)).abs().mean()


# Bad input


def test_a_picture_larger_than_the_table_of_positions_is_refused(folder: Path) -> None:
    with pytest.raises(InputError, match="208x64 pixels, the transformer takes at most 192x192"):
        region(folder, "sd35", torch.zeros(1, 16, 8, 26))
