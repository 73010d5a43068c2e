"""Resolves text encoder names in adapter files to a kind of encoder, independent of the position in
a model. Never imports torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

from katz_graph.core.recipe import Component, FileIdentity
from katz_graph.models.configuration import config
from katz_graph.models.fetching.file_cache import FileCache
from katz_graph.models.text.kinds import kind_of, pack_name

TextParts = tuple[str, ...]
"""Names the parts of adapter files that apply to one text encoder of a model."""

FIRST_CLIP = "clip"  # the first CLIP of a model, of any size
CLIP_L, CLIP_G, CLIP_H = "clip_l", "clip_g", "clip_h"
T5 = "t5"  # any T5 architecture
TITLES = {
    FIRST_CLIP: "CLIP",
    CLIP_L: "CLIP-L",
    CLIP_G: "CLIP-G",
    CLIP_H: "CLIP-H",
    T5: "T5",
    "t5xxl": "T5",
    "mt5xl": "mT5",
    "qwen3": "Qwen3",
    "qwen3_4b": "Qwen3",
    "bert": "BERT",
    "hydit_clip": "BERT",
}
"""Maps parts for text encoders to the encoder names used in messages."""

# by the encoder's position in its training pipeline: diffusers, PEFT, kohya, LyCORIS
BY_PLACE = re.compile(r"((?:lora_te|text_encoder_?)([123]?))[._](.+)")
# by the kind of encoder: ComfyUI, and OneTrainer's OMI
BY_KIND = re.compile(r"(?:text_encoders\.(\w+)|(clip_[lgh]|t5))\.(?:transformer\.)?(.+)")
BY_LAYER = re.compile(r"text_encoders\.transformer\.(.+)")  # ComfyUI, with one encoder
LAYERS: Mapping[str, re.Pattern[str]] = {
    FIRST_CLIP: re.compile(
        "text_model_|text_projection|encoder_layers_|final_layer_norm"
        "|embeddings_(token|position)_embedding(?!s)"
    ),
    T5: re.compile("encoder_block_|encoder_final_layer_norm|shared"),
    "bert": re.compile("bert_|encoder_layer_|embeddings_|pooler_"),
    "qwen3": re.compile("model_|layers_|embed_tokens|norm"),
}
"""Maps architectures to patterns for the start of layer names, with underscores for dots."""
BARE = ("text_model.", "encoder.block.")  # PEFT's names in a file of one text encoder
FILES_KNOWN = 256


def text_name(name: str) -> tuple[str, str, str] | None:
    """Splits a text encoder tensor's name into part of the file, name in the encoder, and encoder's
    name in diffusers' metadata. Returns None for other names.
    """
    if match := BY_LAYER.fullmatch(name):
        scope, place, layer = "", "", match[1]
    elif match := BY_KIND.fullmatch(name):
        return match[1] or match[2], match[3], ""
    elif match := BY_PLACE.fullmatch(name):
        scope, place, layer = match[1], match[2], match[3].removeprefix(WRAPPED)
    elif name.startswith(BARE):
        scope, place, layer = "", "", name
    else:
        return None
    flat = layer.replace(".", "_")
    kind = next((kind for kind, names in LAYERS.items() if names.match(flat)), "")
    if kind == FIRST_CLIP and place == "2":
        kind = CLIP_G
    return (kind, layer, scope) if kind and (kind, place) != (FIRST_CLIP, "3") else None


def text_parts(encoders: Iterable[Component]) -> Iterator[TextParts]:
    """Yields, for each text encoder, the parts of adapter files that apply to it."""
    first: TextParts = (FIRST_CLIP,)
    for encoder in encoders:
        kind = kind_of(encoder)
        if not kind.rows:
            # mT5 has the architecture of T5
            yield T5 if kind.width == "d_model" else kind.name, pack_name(encoder)
            continue
        open_clip = config(encoder).get("hidden_act", "quick_gelu") == "gelu"
        if not first:  # models with two CLIPs have CLIP-L and CLIP-G, in this order
            own = CLIP_G
        elif open_clip:
            own = CLIP_G if kind.projects else CLIP_H
        else:
            own = CLIP_L
        yield *first, own
        first = ()


@lru_cache(maxsize=FILES_KNOWN)
def taken_by_texts(file: FileIdentity) -> bool:
    """Returns whether a LoRA file's header lists tensors for text encoders."""
    return any(map(is_for_text, FileCache.of_this_machine().entries(file)))


def is_for_text(key: str) -> bool:
    """Returns whether a tensor is for a text encoder of any kind."""
    return text_name(key.removeprefix(WRAPPED)) is not None


WRAPPED = "base_model.model."  # PEFT's prefix for wrapped modules
