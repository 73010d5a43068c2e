"""Finds a text encoder's tokenizer: next to it, in the package, in a tensor of the same file, or in
a folder of the hub, fetched once. Never imports torch.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from katz_graph.core.errors import InputError
from katz_graph.core.messages import first_line
from katz_graph.core.recipe import Component, FileIdentity, TextEncoderRecipe
from katz_graph.models.configuration import config
from katz_graph.models.loading.component import TOKENIZER_FILES, component
from katz_graph.models.loading.configurations import text_prefix
from katz_graph.models.loading.contents import contents_of
from katz_graph.models.loading.identity import configuration_identity
from katz_graph.models.text.kinds import QWEN2_5_VL, QWEN3, QWEN3_VL, T5, kind_of, row_of

TOKENIZERS = Path(__file__).parents[1]
SHIPPED = {T5: "t5_tokenizer"} | dict.fromkeys((QWEN3, QWEN3_VL, QWEN2_5_VL), "qwen_tokenizer")
"""Maps kinds to folders of whole tokenizers."""
PADDING = {"quick_gelu": "<|endoftext|>", "gelu": "!"}  # CLIP, OpenCLIP


def text_encoder(encoder: Component, own: Component | None = None) -> TextEncoderRecipe:
    """Returns a text encoder with its own tokenizer, else with a tokenizer of the package. Raises
    InputError if neither exists.
    """
    kind = kind_of(encoder)
    if kind.causal:
        encoder = _text_part(encoder)
    if own is not None:
        return TextEncoderRecipe(encoder, own)
    if kind in SHIPPED:
        folder = TOKENIZERS / SHIPPED[kind]
        whole = configuration_identity(folder / "tokenizer.json")
        return TextEncoderRecipe(encoder, Component(str(folder), (whole,)))
    if not kind.rows:
        tensor = f", or in a file's tensor {kind.vocabulary}" if kind.vocabulary else ""
        raise InputError(
            f"{encoder.folder}: a {kind.title} has no tokenizer: expected one in its folder, or "
            f"in the pipeline's next to it{tensor}"
        )
    folder = TOKENIZERS / "clip_tokenizer"
    files = tuple(configuration_identity(folder / name) for name in ("vocab.json", "merges.txt"))
    # CLIP and OpenCLIP pad rows with different tokens
    padding = PADDING[config(encoder).get("hidden_act", "quick_gelu")]
    settings = {"pad_token": padding, "model_max_length": row_of(encoder)}
    return TextEncoderRecipe(encoder, Component(str(folder), files, json.dumps(settings)))


def _text_part(encoder: Component) -> Component:
    """Returns a language model without the other tensors of its files, such as those that see
    pictures or predict words, which are neither counted nor read.
    """
    names = [
        name
        for file in encoder.weight_files
        for name in contents_of(file).shapes
        if name.startswith(encoder.prefix)
    ]
    try:
        prefix = text_prefix(names)
    except KeyError:
        return encoder  # reported when it is loaded
    others = any(not name.startswith(prefix) for name in names)
    return replace(encoder, prefix=prefix) if others else encoder


def in_file(file: FileIdentity, tensor: str) -> Component:
    """Returns a tokenizer stored in a tensor of a file, as a sentencepiece or tekken model."""
    return Component(file.path, (file,), prefix=tensor)


def on_hub(place: str, whose: str) -> Component:
    """Returns the tokenizer in a folder of the Hugging Face hub (`owner/name/folder`), and fetches
    it if not cached. Raises InputError, which names `whose` tokenizer it is, if that fails.
    """
    from huggingface_hub import snapshot_download

    repository, _, folder = place.rpartition("/")
    wanted = [f"{folder}/{name}" for name in TOKENIZER_FILES]
    try:
        there = snapshot_download(repository, allow_patterns=wanted, local_files_only=True)
        return component(Path(there) / folder, "tokenizer")
    except (InputError, OSError):
        pass  # not fetched yet, or only in part
    try:
        return component(
            Path(snapshot_download(repository, allow_patterns=wanted)) / folder, "tokenizer"
        )
    # the hub's client raises errors of several network libraries
    except Exception as problem:
        raise InputError(
            f"{whose} has its tokenizer in {place} on the Hugging Face hub, from where it could "
            f"not be fetched: {first_line(problem)}: load the file once with a network connection"
        ) from None
