"""Makes small pipelines with random weights in the shapes of the families of transformers; equal
arguments give equal weights.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import diffusers
import torch
import transformers
from diffusers import AutoencoderKL, DDPMScheduler, FlowMatchEulerDiscreteScheduler
from torch import nn
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

from katz_graph.bench.random_models import END, TEXT_ENCODERS, VOCABULARY, seeded, tokenizer
from katz_graph.models.loading.quiet import quiet
from katz_graph.models.loading.store import LIBRARIES
from katz_graph.models.text.kinds import QWEN3, T5, EncoderKind
from katz_graph.models.text.vocabularies import SHIPPED, TOKENIZERS

Kind = Literal["sd3", "sd35", "flux", "schnell", "z_image", "hunyuan_dit", "hunyuan_dit11"]

SPREAD = 0.1  # of weights
POOLED_WIDTH = 40  # of the second text encoder's projection
SIZES = TEXT_ENCODERS["sdxl"]
WIDTHS = [sizes["hidden_size"] for sizes in SIZES]
PADDING = 16  # columns of zeros behind CLIP's text encoders' own
LONG_WIDTH = sum(WIDTHS) + PADDING  # of T5 and of the language model
CHAT = (  # as the language model's own tokenizer has it, for one message
    "{% for said in messages %}<|im_start|>{{ said.role }}\n{{ said.content }}<|im_end|>\n"
    "{% endfor %}{{ '<|im_start|>assistant\n' }}"
)
LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = (
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ",", "(", ")"),
    *(start + letter for start in ("", "##") for letter in LETTERS),
    *("red", "circle", "above", "sand"),
)
SHIFT = 1.15  # of FLUX.1's levels, whatever the size of the picture
VAES: Mapping[str, tuple[float, float | None]] = {
    "StableDiffusion3Pipeline": (1.5305, 0.0609),
    "FluxPipeline": (0.3611, 0.1159),
    "ZImagePipeline": (0.3611, 0.1159),
    "HunyuanDiTPipeline": (0.13025, None),
}
"""Maps pipelines to scale and shift of their latents."""
CHANNELS = {"HunyuanDiTPipeline": 4}  # of latents; of others 16
ABSENT: Mapping[str, tuple[str, ...]] = {
    "StableDiffusion3Pipeline": (
        "image_encoder",
        "feature_extractor",
        "text_encoder_3",
        "tokenizer_3",
    ),
    "FluxPipeline": ("image_encoder", "feature_extractor"),
    "ZImagePipeline": (),
    "HunyuanDiTPipeline": ("safety_checker", "feature_extractor"),
}
"""Maps pipelines to what their index says that they go without."""
PIPELINES: Mapping[Kind, tuple[str, str]] = {
    "sd3": ("StableDiffusion3Pipeline", "SD3Transformer2DModel"),
    "sd35": ("StableDiffusion3Pipeline", "SD3Transformer2DModel"),
    "flux": ("FluxPipeline", "FluxTransformer2DModel"),
    "schnell": ("FluxPipeline", "FluxTransformer2DModel"),
    "z_image": ("ZImagePipeline", "ZImageTransformer2DModel"),
    "hunyuan_dit": ("HunyuanDiTPipeline", "HunyuanDiT2DModel"),
    "hunyuan_dit11": ("HunyuanDiTPipeline", "HunyuanDiT2DModel"),
}


def transformer_config(kind: Kind, blocks: int = 3) -> dict[str, Any]:
    """Returns arguments of a transformer of two heads; of 3.5 with norms of queries and keys and a
    second attention in the first two blocks; of FLUX.1 with one single block less than double ones;
    of HunyuanDiT with so many blocks in each half.
    """
    if kind == "z_image":
        return {
            "dim": 32,
            "n_layers": blocks,
            "n_refiner_layers": 1,
            "n_heads": 2,
            "n_kv_heads": 2,
            "cap_feat_dim": LONG_WIDTH,
            "axes_dims": [4, 6, 6],
        }
    heads = {"attention_head_dim": 16, "num_attention_heads": 2, "num_layers": blocks}
    if kind in ("hunyuan_dit", "hunyuan_dit11"):
        return heads | {
            "num_layers": 2 * blocks,
            "sample_size": 8,
            "in_channels": 4,
            "patch_size": 2,
            "hidden_size": 32,
            "cross_attention_dim": WIDTHS[1],
            "cross_attention_dim_t5": LONG_WIDTH,
            "pooled_projection_dim": POOLED_WIDTH,
            "use_style_cond_and_image_meta_size": kind == "hunyuan_dit11",
        }
    if kind in ("flux", "schnell"):
        return heads | {
            "in_channels": 64,
            "num_single_layers": blocks - 1,
            "joint_attention_dim": LONG_WIDTH,
            "pooled_projection_dim": WIDTHS[0],
            "guidance_embeds": kind == "flux",
            "axes_dims_rope": [4, 6, 6],
        }
    later = {"qk_norm": "rms_norm", "dual_attention_layers": (0, 1)} if kind == "sd35" else {}
    return (
        heads
        | {
            "sample_size": 8,
            "caption_projection_dim": 32,
            "joint_attention_dim": LONG_WIDTH,
            "pooled_projection_dim": WIDTHS[0] + POOLED_WIDTH,
            "pos_embed_max_size": 12,
        }
        | later
    )


def make_transformer(
    kind: Kind, seed: int, blocks: int = 3, spread: float = SPREAD, **changed: Any
) -> Any:
    """Makes a transformer whose weights all count. `changed`: of its configuration."""
    _, name = PIPELINES[kind]
    values = transformer_config(kind, blocks) | changed
    return _drawn(getattr(diffusers, name), values, seed, spread)


def make_controlnet(kind: Kind, seed: int, blocks: int = 2, **changed: Any) -> Any:
    """Makes a ControlNet of a transformer whose weights all count; of FLUX.1 with one single block
    less than double ones, of HunyuanDiT for a transformer of one block more in each half, of
    Z-Image with one behind every second block. `changed`: of its configuration.
    """
    if kind == "z_image":
        config = transformer_config(kind, blocks)
        names = "dim", "n_refiner_layers", "n_heads", "n_kv_heads"
        values = {name: config[name] for name in names} | {
            "control_layers_places": [2 * number for number in range(blocks)],
            "control_in_dim": 16,
        }
        return _drawn(diffusers.ZImageControlNetModel, values | changed, seed)
    values = transformer_config(kind, blocks) | {"num_layers": blocks} | changed
    if kind in ("flux", "schnell"):
        values["num_single_layers"] = changed.get("num_single_layers", blocks - 1)
        model = diffusers.FluxControlNetModel
    elif kind in ("hunyuan_dit", "hunyuan_dit11"):
        values["transformer_num_layers"] = 2 * (values.pop("num_layers") + 1)
        model = diffusers.HunyuanDiT2DControlNetModel
    else:
        dropped = ("sample_size", "dual_attention_layers")
        values = {name: value for name, value in values.items() if name not in dropped}
        model = diffusers.SD3ControlNetModel
    return _drawn(model, values, seed)


def _drawn(
    model: Callable[..., Any], values: Mapping[str, Any], seed: int, spread: float = SPREAD
) -> Any:
    """Makes a network of a configuration, all of whose weights are drawn."""
    with seeded(seed):
        module = model(**values).eval()
        for parameter in module.parameters():
            nn.init.normal_(parameter, 0.0, spread)
    return module.requires_grad_(False)


def make_pipeline(
    folder: str | Path,
    kind: Kind,
    seed: int,
    blocks: int = 3,
    with_t5: bool = False,
    spread: float = SPREAD,
    **changed: Any,
) -> None:
    """Writes a pipeline in diffusers' folder layout, in torch's default format and made on its
    default device, text encoders in float32: transformer, text encoders, tokenizers, VAE,
    scheduler. `with_t5`: of Stable Diffusion 3, whose first text encoder's projection changes
    nothing, as in the published folders. `spread`: of the transformer's weights. `changed`: of its
    configuration.
    """
    folder, (pipeline, network) = Path(folder), PIPELINES[kind]
    parts: dict[str, Any] = {
        "transformer": ["diffusers", network],
        "vae": ["diffusers", "AutoencoderKL"],
        "scheduler": ["diffusers", type(_scheduler(kind)).__name__],
    }
    with seeded(seed), quiet(*LIBRARIES):
        make_transformer(kind, seed, blocks, spread, **changed).save_pretrained(
            folder / "transformer"
        )
        vae = _vae(pipeline)
        # means, and spreads of nothing, so that encoding draws nothing
        last = vae.quant_conv or vae.encoder.conv_out
        last.weight.data[len(last.weight) // 2 :] = 0.0
        last.bias.data[len(last.bias) // 2 :] = -100.0
        vae.save_pretrained(folder / "vae")
        _scheduler(kind).save_pretrained(folder / "scheduler")
        encoders = _text_encoders(pipeline, with_t5)
        for suffix, (make, words, tokens) in zip(("", "_2", "_3"), encoders, strict=False):
            encoder = make()
            encoder.save_pretrained(folder / f"text_encoder{suffix}")
            words.save_pretrained(folder / f"tokenizer{suffix}")
            parts[f"text_encoder{suffix}"] = ["transformers", type(encoder).__name__]
            parts[f"tokenizer{suffix}"] = ["transformers", tokens]
    absent = {name: [None, None] for name in ABSENT[pipeline]}
    index = {"_class_name": pipeline, "_diffusers_version": "0.42.0"} | absent | parts
    (folder / "model_index.json").write_text(json.dumps(index, indent=2) + "\n")


Encoder = tuple[Callable[[], Any], Any, str]
"""Makes a text encoder; its tokenizer; what the index calls the tokenizer."""


def _text_encoders(pipeline: str, with_t5: bool) -> list[Encoder]:
    clip = "CLIPTokenizer"
    t5: Encoder = (_t5, _shipped(T5), "T5TokenizerFast")
    if pipeline == "ZImagePipeline":
        return [(_language_model, _shipped(QWEN3), "Qwen2Tokenizer")]
    if pipeline == "HunyuanDiTPipeline":
        return [(_bert, _Words(), "BertTokenizer"), t5]
    if pipeline == "FluxPipeline":
        return [(lambda: _clip(SIZES[0], None), tokenizer(END), clip), t5]

    def first() -> CLIPTextModelWithProjection:
        encoder = _clip(SIZES[0], WIDTHS[0])
        nn.init.eye_(encoder.text_projection.weight)
        return encoder

    both: list[Encoder] = [
        (first, tokenizer(END), clip),
        (lambda: _clip(SIZES[1], POOLED_WIDTH), tokenizer("!"), clip),
    ]
    return [*both, t5] if with_t5 else both


def _shipped(kind: EncoderKind) -> Any:
    made = getattr(transformers, kind.tokenizer).from_pretrained(TOKENIZERS / SHIPPED[kind])
    made.chat_template = CHAT if kind is QWEN3 else None
    return made


def _scheduler(kind: Kind) -> Any:
    if kind in ("hunyuan_dit", "hunyuan_dit11"):
        return DDPMScheduler(
            beta_schedule="scaled_linear",
            beta_start=0.00085,
            beta_end=0.018 if kind == "hunyuan_dit" else 0.03,
            prediction_type="v_prediction",
            steps_offset=1,
            clip_sample=False,
        )
    if kind == "flux":
        return FlowMatchEulerDiscreteScheduler(
            use_dynamic_shifting=True, base_shift=SHIFT, max_shift=SHIFT, shift=3.0
        )
    return FlowMatchEulerDiscreteScheduler(shift=1.0 if kind == "schnell" else 3.0)


def _vae(pipeline: str) -> AutoencoderKL:
    scale, shift = VAES[pipeline]
    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(8, 8, 16, 16),
        layers_per_block=1,
        norm_num_groups=4,
        sample_size=64,
        latent_channels=CHANNELS.get(pipeline, 16),
        scaling_factor=scale,
        shift_factor=shift,
        force_upcast=False,
        use_quant_conv=shift is None,
        use_post_quant_conv=shift is None,
    )


def _clip(sizes: dict[str, Any], projection: int | None) -> Any:
    """Makes a text encoder of CLIP, which projects where that has a width."""
    config = CLIPTextConfig(
        **sizes,
        vocab_size=VOCABULARY,
        intermediate_size=2 * sizes["hidden_size"],
        num_attention_heads=4,
        max_position_embeddings=77,
        projection_dim=projection or sizes["hidden_size"],
        bos_token_id=VOCABULARY - 2,
        eos_token_id=VOCABULARY - 1,
        initializer_factor=4.0,
    )
    kind = CLIPTextModelWithProjection if projection else CLIPTextModel
    return kind(config).to(torch.float32)


def _t5() -> Any:
    config = transformers.T5Config(
        vocab_size=32128,
        d_model=LONG_WIDTH,
        d_kv=16,
        d_ff=48,
        num_layers=2,
        num_heads=2,
        feed_forward_proj="gated-gelu",
    )
    return transformers.T5EncoderModel(config).to(torch.float32)


class _Words:
    """Stands in for BERT's tokenizer, which published folders hold as a list of words."""

    def save_pretrained(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")


def _bert() -> Any:
    config = transformers.BertConfig(
        vocab_size=len(WORDS),
        hidden_size=WIDTHS[1],
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        initializer_range=0.2,
    )
    return transformers.BertModel(config).to(torch.float32)


def _language_model() -> Any:
    config = transformers.Qwen3Config(
        vocab_size=151936,
        hidden_size=LONG_WIDTH,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
    )
    return transformers.Qwen3Model(config).to(torch.float32)
