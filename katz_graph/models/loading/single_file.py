"""Identifies the contents of one safetensors file, in either layout: whole checkpoints, networks,
text encoders, VAEs and ControlNets.

Reads the header only. Refuses other files with an error that names their kind. Never imports torch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from katz_graph.core.errors import InputError
from katz_graph.core.latent_space import DEFAULT_LATENT_SPACE, LatentSpace
from katz_graph.core.recipe import Component, FileIdentity, TextEncoderRecipe
from katz_graph.models.family import (
    Configuration,
    Layout,
    a_network,
    all_controls,
    all_files,
    families,
    known,
    supported,
)
from katz_graph.models.loading.configurations import (
    Shapes,
    bert_configuration,
    language_configuration,
    mt5_configuration,
    t5_configuration,
    text_configuration,
)
from katz_graph.models.loading.contents import Contents, read_number
from katz_graph.models.loading.identity import (
    header,
)
from katz_graph.models.loading.quantised import stored_weights
from katz_graph.models.text.kinds import BERT, CLIP, EVERY, MT5, QWEN3, T5, EncoderKind, kind_of
from katz_graph.models.text.vocabularies import in_file, on_hub, text_encoder
from katz_graph.models.vae.kinds import KINDS as VAES
from katz_graph.models.vae.kinds import VaeKind

VAE_PREFIXES = ("first_stage_model.", "vae.", "")
CLIP_NAMES = (
    "text_model.encoder.layers.0.mlp.fc1.weight",
    "encoder.layers.0.mlp.fc1.weight",
    "transformer.resblocks.0.mlp.c_fc.weight",
)
LANGUAGE_PREFIXES = (
    "model.",
    "",
    "model.language_model.",
    "language_model.",
    "language_model.model.",
)
TEXT_ENCODERS = {
    CLIP: Layout(("",), CLIP_NAMES, lambda shapes, _: text_configuration(shapes)),
    T5: Layout(
        ("",),
        ("encoder.block.0.layer.0.SelfAttention.q.weight",),
        lambda shapes, _: t5_configuration(shapes),
    ),
    QWEN3: Layout(  # or another language model
        ("",),
        tuple(f"{before}layers.0.self_attn.q_proj.weight" for before in LANGUAGE_PREFIXES),
        lambda shapes, _: language_configuration(shapes),
    ),
}
"""Layouts of text encoders in separate files; a CLIP's width decides whether it projects."""
CONFIGURATIONS: Mapping[EncoderKind, Callable[[Shapes], Configuration]] = {
    T5: t5_configuration,
    MT5: mt5_configuration,
    BERT: bert_configuration,
    **{kind: language_configuration for kind in EVERY if kind.causal},
}
"""Configurations of text encoders in checkpoints, by kind; `text_configuration` is for CLIP."""
UNSUPPORTED_FAMILIES = {  # patterns of tensor names -> unsupported families
    r"txt_in\.individual_token_": "HunyuanVideo",
    r"distilled_guidance_layer\.": "Chroma",
    r"(^|\.)double_layers\.": "AuraFlow",
    r"\.time_stack\.": "Stable Video Diffusion",
    r"(^|\.)clip_txt_mapper\.|\.channelwise\.": "Stable Cascade",
    r"(^|\.)head\.modulation$": "Wan",
    r"(^|\.)patchify_proj\.": "LTX-Video",
    r"(^|\.)adaln_single\.": "PixArt",
    r"(?s)\A(?!.*(^|\.)llm_adapter\.)(?=.*(^|\.)x_embedder\.proj\.1\.)": "Cosmos",
    r"(^|\.)t5_yproj\.": "Mochi",
    r"(^|\.)patch_embed\.text_proj\.|(^|\.)attention\.query_key_value\.": "CogVideoX",
    r"(^|\.)double_stream_blocks\.": "HiDream",
    r"(^|\.)visual_transformer_blocks\.": "Kandinsky 5",
    r"^edm_mean$": "Playground 2.5",
    r"^edm_vpred\.": "EDM",
}
KINDS = {
    r"lora_controlnet": ("Control-LoRA", "which is not supported: use the whole ControlNet"),
    r"lora_|_lora\d?\.|\.lora\.|hada_|lokr_|\.dora_scale": ("LoRA", "load it with LoraLoader"),
    r"motion_modules\.": ("AnimateDiff motion module", "which is not supported"),
    r"^(adapter\.)?body\.\d+\.(block1|resnets|in_conv)": (
        "T2I-adapter",
        "which is not supported: use a ControlNet",
    ),
    r"ip_adapter": ("IP-Adapter", "which is not supported"),
    r"^controlnet_blocks\.0\.linear\.": (
        "MistoLine ControlNet",
        "which is not supported: use another ControlNet",
    ),
    r"input_hint_block\.|controlnet_cond_embedding\.|controlnet_x_embedder\.|^control_blocks\.": (
        "ControlNet",
        "load it with ControlNetLoader",
    ),
    r"^(emb_params|clip_[lg]|string_to_param.*)$": (
        "textual inversion",
        "put it into models/embeddings, and write embedding:NAME in a prompt",
    ),
    r"vision_model\.": ("CLIP vision encoder", "which is not supported"),
}
PIPELINE_PARTS = {
    r"(encoder\.layers|transformer\.resblocks)\.0\.|SelfAttention\.|\.self_attn\.q_proj\.": (
        "text encoder",
        "load it with CLIPLoader",
    ),
    r"(de|en)coder\.(conv_in\.weight$|middle\.0\.)": ("VAE", "load it with VAELoader"),
    r"^(conv_first|model\.0|body\.0)\.": ("upscale model", "load it with UpscaleModelLoader"),
}


def network_component(file: Contents, rounding: str | None = None) -> Component:
    """Returns the network of a checkpoint or separate file. Raises InputError for other files."""
    return _component(file, [files.network for files in all_files()], a_network(), rounding)


def vae_component(
    file: Contents, trained: LatentSpace = DEFAULT_LATENT_SPACE, overflows: bool = False
) -> Component:
    """Returns the VAE of a checkpoint or of a separate file. `trained`, the latent space of the
    network, and `overflows`, whether half precision overflows, are not stored in files.
    """
    return _component(file, [_vae_layout(kind, trained, overflows) for kind in VAES], "a VAE")


def _vae_layout(kind: VaeKind, trained: LatentSpace, overflows: bool) -> Layout:
    return Layout(
        VAE_PREFIXES, kind.names, lambda shapes, _: kind.configure(shapes, trained, overflows)
    )


def controlnet_component(file: Contents) -> Component:
    """Returns a ControlNet or union ControlNet in either layout."""
    layouts = [layout for controls in all_controls() for layout in controls.files]
    return _component(file, layouts, "a ControlNet")


def text_encoders(file: Contents) -> tuple[TextEncoderRecipe, ...]:
    """Returns a checkpoint's text encoders, in order, or the one in a separate file."""
    inside = [(prefix, kind) for prefix, kind in _text_prefixes().items() if file.under(prefix)]
    if inside:
        return tuple(
            text_encoder(
                _configured(file, prefix, _text_layout(kind)), _tokenizer(file, prefix, kind)
            )
            for prefix, kind in inside
        )
    alone = _component(file, list(TEXT_ENCODERS.values()), "a text encoder")
    words = kind_of(alone).vocabulary
    own = in_file(file.identity, words) if words and words in file.shapes else None
    return (text_encoder(alone, own),)


def check_checkpoint(file: Contents) -> None:
    """Raises InputError with the file's kind if it has no network."""
    _refuse_others(file)
    if any(
        file.under(one.network.prefixes[0]) or one.network.prefix(file.shapes) is not None
        for one in all_files()
    ):
        return
    parts = {"CLIPLoader": holds_text_encoders(file), "VAELoader": holds_vae(file)}
    loaders = [loader for loader, there in parts.items() if there]
    if not loaders:
        raise _other(file, "a checkpoint")
    raise InputError(
        f"{file.path}: a checkpoint without {a_network()}: load its parts with "
        f"{' and '.join(loaders)}, and a network from another file"
    )


def holds_text_encoders(file: Contents) -> bool:
    return any(file.under(prefix) for prefix in _text_prefixes())


def holds_vae(file: Contents) -> bool:
    return any(file.under(prefix) for prefix in VAE_PREFIXES[:-1])


def _tokenizer(file: Contents, prefix: str, kind: EncoderKind) -> Component | None:
    """Returns the tokenizer that the family declares for a checkpoint's text encoder, if any."""
    for files in all_files():
        if (tensor := files.pieces.get(prefix)) is not None:
            if tensor not in file.shapes:
                raise InputError(
                    f"{file.path}: incomplete: {tensor}, the tokenizer of its {kind.title}, is "
                    "missing: download it again"
                )
            return in_file(file.identity, tensor)
        if (place := files.on_hub.get(prefix)) is not None:
            return on_hub(place, f"{file.path}: its {kind.title}")
    return None


def _text_layout(kind: EncoderKind) -> Layout:
    if kind.rows:
        return Layout(("",), (), lambda shapes, _: text_configuration(shapes, kind.projects))
    return Layout(("",), (), lambda shapes, _: CONFIGURATIONS[kind](shapes))


def _text_prefixes() -> dict[str, EncoderKind]:
    return {prefix: kind for files in all_files() for prefix, kind in files.text_encoders.items()}


def _component(
    file: Contents, layouts: Sequence[Layout], wanted: str, rounding: str | None = None
) -> Component:
    """Returns the module in the first matching layout. `wanted`: the module's kind in messages."""
    _refuse_others(file)
    for layout in layouts:
        if (prefix := layout.prefix(file.shapes)) is not None:
            return _configured(file, prefix, layout, rounding)
    raise _other(file, wanted)


def _configured(
    file: Contents, prefix: str, layout: Layout, rounding: str | None = None
) -> Component:
    _check_weights(file.identity)
    try:
        values = layout.configure(file.under(prefix), Path(file.path).stem)
    except InputError as error:
        raise InputError(f"{file.path}: this is {error}") from None
    except KeyError as error:
        raise InputError(
            f"{file.path}: incomplete: {prefix}{error.args[0]} is missing: download it again"
        ) from None
    except (ValueError, IndexError):
        raise InputError(
            f"{file.path}: the shapes of its tensors are not those of {supported()}"
        ) from None
    for name in layout.configuration_tensors:
        if prefix + name in file.shapes:
            values[name] = read_number(file.identity, prefix + name)
    return Component(file.path, (file.identity,), json.dumps(values), prefix, rounding)


@lru_cache(maxsize=64)
def _check_weights(identity: FileIdentity) -> None:
    """Raises InputError for weights in an unsupported format."""
    stored_weights(header(Path(identity.path)))


def _refuse_others(file: Contents) -> None:
    names = "\n".join(file.shapes)
    stranger = next(
        (
            stranger
            for mark, stranger in UNSUPPORTED_FAMILIES.items()
            if re.search(mark, names, re.MULTILINE)
        ),
        None,
    )
    if stranger is not None:
        raise InputError(f"{file.path}: this is a {stranger} checkpoint; {_runs()}")


def _other(file: Contents, wanted: str) -> InputError:
    names = "\n".join(file.shapes)
    for mark, kind, way in _kinds():
        if re.search(mark, names, re.MULTILINE):
            return InputError(
                f"{file.path}: this is a {kind}, expected {wanted}; {way.format(runs=_runs())}"
            )
    some = ", ".join(sorted(file.shapes)[:3]) or "none"
    return InputError(
        f"{file.path}: not {wanted} of {supported()}: its tensors are called {some} ..."
    )


def _kinds() -> Iterator[tuple[str, str, str]]:
    """Yields (pattern of tensor names, kind, advice) for the other kinds of files."""
    for mark, (kind, way) in KINDS.items():
        yield mark, kind, way
    for family in families():
        if family.files is None:
            continue
        yield (
            rf"(^|\.)({'|'.join(map(re.escape, family.files.network.names))})$",
            family.network.noun,
            "load it with UNETLoader",
        )
    for mark, (kind, way) in PIPELINE_PARTS.items():
        yield mark, kind, way


def _runs() -> str:
    return f"Katz Graph runs {known(lambda family: family.short)}"
