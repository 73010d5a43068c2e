"""Runs small transformers of all families: in stages, through their own `forward`, and whole
pictures with the engine and with diffusers' pipelines.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from diffusers import Flux2Pipeline, FluxPipeline, Krea2Pipeline, QwenImagePipeline
from diffusers.models.embeddings import get_2d_rotary_pos_embed
from diffusers.pipelines.hunyuandit.pipeline_hunyuandit import get_resize_crop_region_for_grid
from torch import Tensor
from torch.nn.functional import pad

from katz_graph.core.recipe import ClipRecipe, ConditioningEntry, Lora, ModelRecipe, Prompt
from katz_graph.ir.region import Region
from katz_graph.ir.values import Step, TextEncoding, Tokens
from katz_graph.models.families.anima.random_models import without_torchvision
from katz_graph.models.families.shared.transformer_stack import family_of_module, packed, unpacked
from katz_graph.models.loading.sources import pipeline_recipes
from katz_graph.models.stage_registry import stage
from katz_graph.planner.passes.expand import expand_sampling
from katz_graph.testing.random_models import Kind, kinds
from katz_graph.testing.requests import bind
from katz_graph.testing.stock_pipelines import TEXTS, Asked, cfg, schedule, stock

KINDS: tuple[Kind, ...] = (
    "sd3",
    "sd35",
    "flux",
    "schnell",
    "z_image",
    "hunyuan_dit",
    "hunyuan_dit11",
    "qwen_image",
    "krea2",
    "flux2",
    "klein",
    "qwen_image_21",
    "anima",
)
EACH: tuple[Kind, ...] = (
    "sd35",
    "flux",
    "z_image",
    "hunyuan_dit",
    "qwen_image",
    "krea2",
    "klein",
    "qwen_image_21",
    "anima",
)  # one per family
PROMPTS, STEPS, GUIDANCE = TEXTS, 4, 4.0
COSTED = ("transformer_embed", "transformer_blocks", "transformer_head")


def guidance(kind: Kind) -> float:
    return cfg(kind, GUIDANCE)


def region(
    folder: Path, kind: Kind, latent: Tensor, loras: tuple[Lora, ...] = (), **changed: Any
) -> Region:
    model, clip, _ = pipeline_recipes(folder)
    return region_of(replace(model, loras=loras), clip, kind, latent, **changed)


def region_of(
    model: ModelRecipe, clip: ClipRecipe, kind: Kind, latent: Tensor, **changed: Any
) -> Region:
    """Returns a sampling region. `changed`: inputs of the KSampler, or of the DiffusersSampler if
    they name a scheduler class, and `texts`, the positive and the negative prompt.
    """
    texts = changed.pop("texts", PROMPTS)
    factor = changed.pop("cfg", guidance(kind))
    own = "scheduler_class" in changed
    how = {} if own else {"sampler_name": "euler", "scheduler": schedule(kind)}
    given = {"steps": STEPS, "seed": 7, "latent_image": {"samples": latent}, "model": model}
    entries = ((ConditioningEntry(Prompt(clip, text)),) for text in texts)
    begin = "DiffusersStepBegin" if own else "StepBegin"
    expansion = expand_sampling(begin, how | given | changed, model, *entries, factor)
    return bind(expansion.graph, expansion.outputs[0].node)


def inputs(module: Any, batch: int, dtype: torch.dtype, seed: int = 4) -> tuple[Step, TextEncoding]:
    """Draws a step of 6 x 10 cells and a text of 9 tokens (HunyuanDiT: two texts; Qwen-Image: 8 x 12
    cells, as diffusers places odd numbers of patches otherwise).
    """
    draw = torch.Generator().manual_seed(seed)
    config = module.config
    if type(module).__name__ == "HunyuanDiT2DModel":
        return _inputs_of_two_encoders(config, batch, dtype, draw)
    width = (
        config.get("joint_attention_dim")
        or config.get("cap_feat_dim")
        or config.get("context_in_dim")
        or config.get("source_dim")
        or config["num_text_layers"] * config["text_hidden_dim"]
    )
    pooled = config.get("pooled_projection_dim")
    wider = {"Flux2Transformer2DModel": 128, "QwenImage21Transformer2DModel": 64}
    channels = wider.get(type(module).__name__, 16)
    sides = (8, 12) if type(module).__name__.startswith("QwenImage") else (6, 10)
    x, hidden = (
        torch.randn(shape, generator=draw).to(dtype)
        for shape in ((batch, channels, *sides), (batch, 9, width))
    )
    vector = None if pooled is None else torch.randn(batch, pooled, generator=draw).to(dtype)
    embedded_guidance = (
        torch.full((batch,), kinds()["flux"].stock.embedded_guidance)
        if config.get("guidance_embeds")
        else None
    )
    level = 0.4375 if pooled is None or embedded_guidance is not None else 437.5
    return Step.of(x.float(), x, 0.4375, level), TextEncoding(
        hidden, vector, guidance=embedded_guidance, words=_words(module, batch, draw)
    )


def _words(module: Any, batch: int, draw: torch.Generator) -> Tensor | None:
    """Draws 7 words with weights for a network that embeds words; the second text has 5."""
    if (most := family_of_module(module).text_layout.words) == 0:
        return None
    numbers, weights = torch.full((batch, most), -1.0), torch.zeros(batch, most)
    for row in range(batch):
        count = 7 - 2 * row
        numbers[row, :count] = torch.randint(0, 32128, (count,), generator=draw).float()
        weights[row, :count] = 1 + torch.randint(-2, 3, (count,), generator=draw) / 4
    return torch.stack([numbers, weights], dim=-1)


def _inputs_of_two_encoders(
    config: Any, batch: int, dtype: torch.dtype, draw: torch.Generator
) -> tuple[Step, TextEncoding]:
    """Draws a step of 6 x 10 cells and a padded text for each encoder: 7 and 5 tokens (in row 2: 70
    and 200).
    """
    short, long = (
        torch.randn(shape, generator=draw).to(dtype)
        for shape in (
            (batch, 77, config.cross_attention_dim),
            (batch, 256, config.cross_attention_dim_t5),
        )
    )
    wider = pad(short, (0, long.shape[-1] - short.shape[-1]))
    masks = [
        torch.arange(length)[None] < torch.tensor(counts)[:batch, None]
        for length, counts in ((77, (7, 70)), (256, (5, 200)))
    ]
    x = torch.randn(batch, 4, 6, 10, generator=draw).to(dtype)
    sizes = torch.tensor([[1024, 768, 8, 16, 48, 80, 6.0]], dtype=dtype).repeat(batch, 1)
    text = TextEncoding(torch.cat([wider, long], dim=1), sizes=sizes, mask=torch.cat(masks, dim=1))
    return Step.of(x.float(), x, 0.4375, 436), text


def forward(module: Any, step: Step, text: TextEncoding, **more: Any) -> Any:
    """Returns diffusers' raw prediction, or a ControlNet's residuals, called as its pipelines call
    the module. `more`: further arguments of HunyuanDiT.
    """
    x, time = step.model_input, step.timestep.float()
    batch, _, height, width = x.shape
    match type(module).__name__:
        case "SD3Transformer2DModel":
            return module(x, text.hidden, text.pooled, time).sample
        case "FluxTransformer2DModel":
            tokens = FluxPipeline._pack_latents(x, batch, 16, height, width)
            grid = height // 2, width // 2
            ids = FluxPipeline._prepare_latent_image_ids(batch, *grid, "cpu", torch.float32)
            nowhere = torch.zeros(text.hidden.shape[1], 3)
            whole = module(tokens, text.hidden, text.pooled, time, ids, nowhere, text.guidance)
            return FluxPipeline._unpack_latents(whole.sample, height * 8, width * 8, 8)
        case "Krea2Transformer2DModel":
            rows, columns = height // 2, width // 2
            states = text.hidden.unflatten(-1, (module.config.num_text_layers, -1))
            ids = Krea2Pipeline.prepare_position_ids(states.shape[1], rows, columns, "cpu")
            whole = module(packed(x), states, time, ids).sample
            return unpacked(whole, rows, columns)
        case "QwenImageTransformer2DModel" | "QwenImageControlNetModel" as name:
            given = {
                "hidden_states": QwenImagePipeline._pack_latents(x, *x.shape),
                "encoder_hidden_states": text.hidden,
                "timestep": time,
                "img_shapes": [[(1, height // 2, width // 2)]] * batch,
            }
            whole = module(**given, **more, return_dict=False)
            if name == "QwenImageControlNetModel":
                return whole
            (whole,) = whole
            return QwenImagePipeline._unpack_latents(whole, height * 8, width * 8, 8)[:, :, 0]
        case "Flux2Transformer2DModel":
            ids = Flux2Pipeline._prepare_latent_ids(x), Flux2Pipeline._prepare_text_ids(text.hidden)
            tokens = Flux2Pipeline._pack_latents(x)
            whole = module(tokens, text.hidden, time, *ids, text.guidance).sample
            return whole.mT.reshape(x.shape)
        case "QwenImage21Transformer2DModel":
            rows = x.flatten(2).transpose(1, 2)
            slots = torch.zeros(batch, text.hidden.shape[1] + rows.shape[1] // 4, dtype=torch.bool)
            slots[:, text.hidden.shape[1] :] = True
            shapes = [[(1, height, width)]] * batch
            whole = module(rows, text.hidden, time, shapes, slots).sample[:, -rows.shape[1] :]
            return whole.transpose(1, 2).reshape(x.shape)
        case "AnimaTransformer":
            rows = module.llm_adapter(text.hidden, *anima_words(text))
            rows = rows * text.words[..., 1:].to(rows.dtype)
            mask = torch.zeros(1, 1, height, width, dtype=x.dtype)
            with without_torchvision():
                return module(x[:, :, None], time, rows, padding_mask=mask).sample[:, :, 0]
        case "HunyuanDiT2DModel" | "HunyuanDiT2DControlNetModel" as name:
            config, first = module.config, 77
            assert text.mask is not None and text.sizes is not None
            grid = height // 2, width // 2
            region = get_resize_crop_region_for_grid(grid, 32)
            whole = module(
                x,
                time.to(x.dtype),
                encoder_hidden_states=text.hidden[:, :first, : config.cross_attention_dim],
                text_embedding_mask=text.mask[:, :first].long(),
                encoder_hidden_states_t5=text.hidden[
                    :, first:, : config.cross_attention_dim_t5
                ].contiguous(),
                text_embedding_mask_t5=text.mask[:, first:].long(),
                image_meta_size=text.sizes[:, [0, 1, 4, 5, 2, 3]],
                style=torch.zeros(batch, dtype=torch.long),
                image_rotary_emb=get_2d_rotary_pos_embed(config.attention_head_dim, region, grid),
                **more,
            )
            return whole.sample[:, :4] if name == "HunyuanDiT2DModel" else whole[0]
        case _:
            found = module([*x.unsqueeze(2)], 1 - time, [*text.hidden]).sample
            return -torch.stack(found).squeeze(2)


def anima_words(text: TextEncoding) -> tuple[Tensor, Tensor]:
    """Returns T5's words and their mask, as Anima's conditioner takes them."""
    assert text.words is not None
    numbers = text.words[..., 0].long()
    return numbers.clamp(min=0), numbers >= 0


def in_stages(
    module: Any,
    step: Step,
    text: TextEncoding,
    cuts: list[int],
    references: tuple[Tensor, ...] = (),
    placing: str = "offset",
    first: int = 0,
    passed: str = "",
) -> Tensor:
    """Runs the stages with the blocks from `first` on, except `passed`, split after the block
    numbers in `cuts`. Returns the raw prediction.
    """

    def run(name: str, **given: Any) -> Any:
        return stage(name).computed(module, given)[0]

    fixed = run(
        "transformer_fixed",
        text=text,
        cells=step.x.shape[2:],
        latents=references,
        placing=placing,
        before=0,
    )
    tokens: Tokens = run(
        "transformer_embed",
        step=step,
        text=text,
        fixed=fixed,
        context=run("transformer_context", text=text, kinds=()),
        pooled=run("transformer_pooled", text=text, reads_pooled=text.pooled is not None),
    )
    for last in [*cuts, -1]:
        tokens = run(
            "transformer_blocks",
            features=tokens,
            fixed=fixed,
            first_block=first,
            last_block=last,
            passed_over=passed,
        )
        first = last + 1
    raw: Tensor = run("transformer_head", features=tokens, parametrisation="raw")
    return raw


def stock_picture(
    folder: Path,
    kind: Kind,
    noise: Tensor,
    texts: tuple[str, str] = PROMPTS,
    **arguments: Any,
) -> Tensor:
    """Returns the picture [B, H, W, 3] of diffusers' pipeline."""
    return stock(Asked(folder, kind, noise, STEPS, texts, GUIDANCE, arguments=arguments))()
