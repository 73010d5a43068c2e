"""Makes recipes from what users name: a pipeline's folder or hub id, a single file, or a part in a
file or folder of its own.

Never imports torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from katz_graph.errors import InputError
from katz_graph.files.folders import HUB_ID
from katz_graph.messages import first_line
from katz_graph.models.configuration import (
    config,
    config_value,
    expect_class,
    latent_space,
    prediction_type,
    projects,
)
from katz_graph.models.family import (
    a_network,
    all_controls,
    architecture,
    check_pipeline,
    families,
    family_of,
    known,
    supported,
)
from katz_graph.models.loading.identity import Kind, component, read_json, resolve
from katz_graph.models.loading.single_file import (
    check_checkpoint,
    contents,
    controlnet_component,
    network_component,
    text_encoders,
    tokenizer_component,
    vae_component,
)
from katz_graph.recipe import (
    ClipRecipe,
    Component,
    ControlNetRecipe,
    MergedComponent,
    ModelRecipe,
    Pooling,
    TextEncoderRecipe,
    VaeRecipe,
)

HUB_FILES = (
    "model_index.json",
    "config.json",
    "diffusion_pytorch_model*.safetensors",
    "*/*.json",
    "*/*.txt",
    "*/*.safetensors",
)
HUB_LEFT_OUT = ("*.non_ema.*", "safety_checker/*", "feature_extractor/*")
DIFFERENCES = "difference"  # an empty tensor that says so by its name


def pipeline_recipes(source: str | Path) -> tuple[ModelRecipe, ClipRecipe, VaeRecipe]:
    """Returns the recipes of a pipeline: a single file, a folder in diffusers' layout, or a hub id
    (`owner/name`), which is fetched.

    InputError when it is a pipeline of no known family, or its parts do not fit each other.
    """
    place = _local(source)
    model, clip, vae = _of_folder(place) if place.is_dir() else _of_file(place)
    _check_network(model.network)
    check_pipeline(model, clip, vae)
    prediction_type(model)
    return model, clip, vae


def network_recipe(source: str | Path, rounding: str | None = None) -> ModelRecipe:
    """Returns the recipe of a network alone: a single file in either layout, a whole checkpoint, or
    a folder as diffusers saves it.

    rounding: the number format that its weights are rounded to.
    """
    place = _local(source)
    if place.is_dir():
        network = replace(
            component(place, "network", known(lambda family: family.network.noun)),
            rounding=rounding,
        )
        _check_network(network)
        training = family_of(network).training
        return ModelRecipe(
            network,
            Component(network.folder, network.files, json.dumps(training.noise)),
            training.latent(network),
        )
    file = contents(place)
    network = network_component(file, rounding)
    training = family_of(network).training
    return ModelRecipe(network, training.scheduler(file, network), training.latent(network))


def clip_recipe(sources: Sequence[str | Path], pooling: Pooling = "last") -> ClipRecipe:
    """Returns the recipe of text encoders: one file, or two in whatever order, of which the one
    that projects comes last, the wider one if both do. `pooling`: as the recipe has it.
    """
    encoders = [encoder for source in sources for encoder in _encoders(_local(source))]
    projecting = [encoder for encoder in encoders if projects(encoder.encoder)]
    ordered = sorted(encoders, key=lambda one: (one in projecting, _width(one)))
    # where each gives pooled text, the first may hold a projection that is not used
    alone = len(projecting) == 1 or (pooling == "joined" and projecting)
    if len(sources) > 1 and (len(ordered) != 2 or not alone):
        names = " and ".join(str(source) for source in sources)
        raise InputError(
            f"{names}: not the two text encoders of one model: expected CLIP-L (of width 768) and "
            "OpenCLIP's bigG (of width 1280)"
        )
    return ClipRecipe(tuple(ordered), pooling=pooling)


def vae_recipe(source: str | Path) -> VaeRecipe:
    """Returns the recipe of a VAE: a single file in either layout, a whole checkpoint, a folder as
    diffusers saves it, or a hub id.
    """
    place = _local(source)
    recipe = VaeRecipe(
        component(place, "vae") if place.is_dir() else vae_component(contents(place))
    )
    latent_space(recipe)
    return recipe


def controlnet_recipe(source: str | Path, base: Component | None = None) -> ControlNetRecipe:
    """Returns the recipe of a ControlNet: a single file in either layout, a folder as diffusers
    saves it, or a hub id.

    base: the network that a file of differences is added to. InputError for such a file without it.
    """
    place = _local(source)
    if place.is_dir():
        recipe = ControlNetRecipe(component(place, "controlnet"))
    else:
        file = contents(place)
        if DIFFERENCES in file.shapes and base is None:
            raise InputError(
                f"{file.path}: holds only what a ControlNet differs by from {a_network()}: load it "
                "with DiffControlNetLoader"
            )
        if DIFFERENCES in file.shapes and isinstance(base, MergedComponent):
            raise InputError(
                f"{file.path}: holds differences to {a_network()} of one file, the model is merged "
                "of two: link one that is not merged"
            )
        recipe = ControlNetRecipe(
            controlnet_component(file), base=base if DIFFERENCES in file.shapes else None
        )
    expect_class(
        recipe.control_net, *(name for controls in all_controls() for name in controls.class_names)
    )
    architecture(recipe.control_net)
    return recipe


def _of_folder(folder: Path) -> tuple[ModelRecipe, ClipRecipe, VaeRecipe]:
    index = folder / "model_index.json"
    if not index.exists():
        raise InputError(
            f"{folder}: model_index.json is missing: expected a pipeline folder in diffusers' "
            "layout, or a single file"
        )
    parts = read_json(index)

    def part(name: str, kind: Kind, called: str = "") -> Component:
        if not _present(parts, name) or not (folder / name).is_dir():
            raise InputError(
                f"{folder}: the pipeline has no {name}: expected a {supported()} pipeline in "
                "diffusers' layout"
            )
        return component(folder / name, kind, called)

    family = next((one for one in families() if _present(parts, one.network.part)), families()[0])
    network = family.network
    if _present(parts, "text_encoder_3"):
        raise InputError(
            f"{folder}: text_encoder_3 (T5) is not supported yet: set it and tokenizer_3 to "
            "[null, null] in model_index.json to go without it"
        )
    suffixes = [suffix for suffix in ("", "_2") if _present(parts, f"text_encoder{suffix}")] or [""]
    encoders = tuple(
        TextEncoderRecipe(
            part(f"text_encoder{s}", "text_encoder"), part(f"tokenizer{s}", "tokenizer")
        )
        for s in suffixes
    )
    vae = VaeRecipe(part("vae", "vae"))
    model = ModelRecipe(
        part(network.part, "network", network.noun),
        part("scheduler", "scheduler"),
        latent_space(vae),
    )
    return model, ClipRecipe(encoders, pooling=family.text_pooling), vae


def _of_file(path: Path) -> tuple[ModelRecipe, ClipRecipe, VaeRecipe]:
    file = contents(path)
    check_checkpoint(file)
    network = network_component(file)
    training = family_of(network).training
    trained = training.latent(network)
    vae = VaeRecipe(vae_component(file, trained.scale, training.vae_overflows(network)))
    space = replace(latent_space(vae), shift=trained.shift)
    model = ModelRecipe(network, training.scheduler(file, network), space)
    pooling = family_of(network).text_pooling
    return model, ClipRecipe(text_encoders(file), pooling=pooling), vae


def _encoders(place: Path) -> tuple[TextEncoderRecipe, ...]:
    if not place.is_dir():
        return text_encoders(contents(place))
    encoder = component(place, "text_encoder")
    return (
        TextEncoderRecipe(
            encoder, tokenizer_component(config(encoder).get("hidden_act", "quick_gelu"))
        ),
    )


def _width(encoder: TextEncoderRecipe) -> int:
    return int(config_value(encoder.encoder, "hidden_size", int))


def _check_network(network: Component) -> None:
    expect_class(network, *(family.network.class_name for family in families()))


def _present(parts: Mapping[str, Any], name: str) -> bool:
    entry = parts.get(name)
    return isinstance(entry, list) and bool(entry) and entry[-1] is not None


def _local(source: str | Path) -> Path:
    """Returns the local folder or file of `source`, fetched from the hub when there is none and the
    name can be a hub id.
    """
    if Path(source).expanduser().exists() or not HUB_ID.fullmatch(str(source)):
        return resolve(source)
    from huggingface_hub import HfApi, snapshot_download

    name = str(source)
    try:
        present = {file.rfilename for file in HfApi().model_info(name, timeout=10).siblings or ()}
        doubled = [
            file for file in present if ".fp16." in file and file.replace(".fp16.", ".") in present
        ]
        return Path(
            snapshot_download(
                name, allow_patterns=list(HUB_FILES), ignore_patterns=[*HUB_LEFT_OUT, *doubled]
            )
        )
    # the hub's client lets errors of several network libraries through
    except Exception as problem:
        reason = first_line(problem)
    try:
        return Path(snapshot_download(name, allow_patterns=list(HUB_FILES), local_files_only=True))
    except Exception:
        raise InputError(
            f"{name}: no such local folder, and it could not be fetched from the Hugging Face "
            f"hub: {reason}"
        ) from None
