"""Makes recipes from sources given by users: a pipeline's folder or hub id, a single file, or a
part in a separate file or folder.

Never imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from katz_graph.core.errors import InputError
from katz_graph.core.messages import first_line
from katz_graph.core.recipe import (
    DEFAULT_LAYOUT,
    ClipRecipe,
    Component,
    ControlNetRecipe,
    FileIdentity,
    MergedComponent,
    MissingComponent,
    ModelRecipe,
    TextEncoderRecipe,
    TextLayout,
    VaeRecipe,
)
from katz_graph.files.folders import HUB_ID
from katz_graph.models.configuration import (
    expect_class,
    prediction_type,
)
from katz_graph.models.family import (
    ModelFamily,
    a_network,
    all_controls,
    architecture,
    check_pipeline_latents,
    check_pipeline_text,
    families,
    family_of,
    known,
    supported,
    text_set,
)
from katz_graph.models.loading.component import SENTENCE_PIECES, Kind, component, has_vocabulary
from katz_graph.models.loading.contents import contents
from katz_graph.models.loading.identity import file_identity, read_json, resolve
from katz_graph.models.loading.single_file import (
    check_checkpoint,
    controlnet_component,
    holds_text_encoders,
    holds_vae,
    network_component,
    text_encoders,
    vae_component,
)
from katz_graph.models.text.kinds import kind_of, split, titles, width_of
from katz_graph.models.text.vocabularies import text_encoder
from katz_graph.models.vae.kinds import kind_of as vae_kind_of
from katz_graph.models.vae.kinds import latent_space

HUB_FILES = (
    "model_index.json",
    "config.json",
    "diffusion_pytorch_model*.safetensors",
    "*/*.json",
    "*/*.txt",
    "*/*.safetensors",
    f"*/{SENTENCE_PIECES}",
)
HUB_LEFT_OUT = ("*.non_ema.*", "safety_checker/*", "feature_extractor/*")
TEXT_LOADERS = "use CLIPLoader, DualCLIPLoader or TripleCLIPLoader"
TOKENIZERS = "tokenizer", "processor"
"""Folders of a pipeline with a tokenizer; a processor has one of texts with pictures."""
DIFFERENCES = "difference"  # empty tensor that marks a file of differences


def pipeline_recipes(source: str | Path) -> tuple[ModelRecipe, ClipRecipe, VaeRecipe]:
    """Returns the recipes of a pipeline: a single file, a folder in diffusers' layout, or a hub id
    (`owner/name`), which is fetched. Text encoders and VAE may be missing; their later use is
    refused. Defaults replace a folder's missing scheduler and tokenizers.

    Raises InputError if no family is known or the parts do not fit each other.
    """
    place = _local(source)
    model, clip, vae = _of_folder(place) if place.is_dir() else _of_file(place)
    _check_network(model.network)
    if not clip.missing:
        clip = _fitting(clip, model)
    if not vae.missing:
        check_pipeline_latents(model, vae)
    prediction_type(model)
    return model, clip, vae


def network_recipe(source: str | Path, rounding: str | None = None) -> ModelRecipe:
    """Returns the recipe of a network alone: a single file in either layout, a whole checkpoint, or
    a folder in diffusers' layout.

    rounding: the dtype to round the weights to.
    """
    place = _local(source)
    if place.is_dir():
        network = replace(
            component(place, "network", known(lambda family: family.network.noun)),
            rounding=rounding,
        )
        _check_network(network)
        training = family_of(network).training
        return ModelRecipe(network, training.scheduler_of(network), training.latent(network))
    file = contents(place)
    network = network_component(file, rounding)
    training = family_of(network).training
    return ModelRecipe(network, training.scheduler_of(network, file), training.latent(network))


def clip_recipe(
    sources: Sequence[str | Path], kinds: Sequence[str] = (), layout: TextLayout = DEFAULT_LAYOUT
) -> ClipRecipe:
    """Returns the recipe of text encoders: one file, or several in any order. `kinds`: names of the
    kinds in the model's order, optional for one file. A CLIP with a projection comes after one
    without; if both have one, the wider is last. `layout`: the text layout.

    Raises InputError if the kinds differ.
    """
    encoders = _encoders(sources)
    names = [kind_of(one.encoder).name for one in encoders]
    kinds = kinds or (["clip", "clip"] if len(sources) > 1 else names)
    if sorted(names) != sorted(kinds):
        raise InputError(
            f"{_called(sources)}: not the text encoders of one model: expected {titles(kinds)}, "
            f"got {titles(names)}"
        )
    return _in_order(sources, encoders, kinds, layout)


def typed_clip_recipe(sources: Sequence[str | Path], type: str) -> ClipRecipe:
    """Returns the recipe of text encoders for models of a type in CLIP loaders, in any order.
    Raises InputError if the kinds differ, see `text_set`.
    """
    encoders = _encoders(sources)
    family, one = text_set(type, [each.encoder for each in encoders])
    return _in_order(sources, encoders, one.kinds, one.layout or family.text_layout)


def _in_order(
    sources: Sequence[str | Path],
    encoders: Sequence[TextEncoderRecipe],
    kinds: Sequence[str],
    layout: TextLayout,
) -> ClipRecipe:
    """Returns the recipe of text encoders of these kinds, which give the order."""
    ordered = sorted(
        encoders,
        key=lambda one: (
            kinds.index(kind_of(one.encoder).name),
            kind_of(one.encoder).projects,
            width_of(one.encoder),
        ),
    )
    clip, _ = split(ordered)
    projecting = [one for one in clip if kind_of(one).projects]
    # if every encoder outputs pooled text, the first may have an unused projection
    alone = len(projecting) == 1 or (layout.pooled == "joined" and projecting)
    if len(sources) > 1 and len(clip) == 2 and not alone:
        raise InputError(
            f"{_called(sources)}: not the two text encoders of one model: expected CLIP-L (of "
            "width 768) and OpenCLIP's bigG (of width 1280)"
        )
    return ClipRecipe(tuple(ordered), layout=layout)


def _called(sources: Sequence[str | Path]) -> str:
    return " and ".join(map(str, sources))


def vae_recipe(source: str | Path) -> VaeRecipe:
    """Returns the recipe of a VAE: a single file in either layout, a whole checkpoint, a folder in
    diffusers' layout, or a hub id.
    """
    place = _local(source)
    recipe = VaeRecipe(
        component(place, "vae") if place.is_dir() else vae_component(contents(place))
    )
    latent_space(recipe)
    return recipe


def controlnet_recipe(source: str | Path, base: Component | None = None) -> ControlNetRecipe:
    """Returns the recipe of a ControlNet: a single file in either layout, a folder in diffusers'
    layout, or a hub id.

    base: the network to which a file of differences is added; InputError without it.
    """
    place = _local(source)
    if place.is_dir():
        recipe = ControlNetRecipe(component(place, "controlnet"))
    else:
        file = contents(place)
        if DIFFERENCES in file.shapes and base is None:
            raise InputError(
                f"{file.path}: has only a ControlNet's differences from {a_network()}: load it "
                "with DiffControlNetLoader"
            )
        if DIFFERENCES in file.shapes and isinstance(base, MergedComponent):
            raise InputError(
                f"{file.path}: needs {a_network()} from a single file, but the model is merged "
                "from two: link an unmerged model"
            )
        recipe = ControlNetRecipe(
            controlnet_component(file), base=base if DIFFERENCES in file.shapes else None
        )
    expect_class(
        recipe.control_net, *(name for controls in all_controls() for name in controls.class_names)
    )
    architecture(recipe.control_net)
    return recipe


def controlnet_files(source: str | Path) -> tuple[FileIdentity, ...]:
    """Returns the files of a ControlNet, also if they hold differences to a network."""
    place = _local(source)
    return component(place, "controlnet").files if place.is_dir() else (file_identity(place),)


def _of_folder(folder: Path) -> tuple[ModelRecipe, ClipRecipe, VaeRecipe]:
    index = folder / "model_index.json"
    if not index.exists():
        raise InputError(
            f"{folder}: model_index.json is missing: expected a pipeline folder in diffusers' "
            "layout, or a single file"
        )
    parts = read_json(index)

    def holds(name: str) -> bool:
        return _present(parts, name) and (folder / name).is_dir()

    def part(name: str, kind: Kind, called: str = "") -> Component:
        if not holds(name):
            raise InputError(
                f"{folder}: the pipeline has no {name}: expected a {supported()} pipeline in "
                "diffusers' layout"
            )
        return component(folder / name, kind, called)

    family = _family_in(parts)
    for name, wanted in family.index.items():
        if (found := parts.get(name)) not in (None, wanted):
            raise InputError(f"{index}: {name} is {found}, expected {wanted}")
    network = family.network
    encoders = tuple(
        text_encoder(
            part(f"text_encoder{s}", "text_encoder"),
            next((part(f"{w}{s}", "tokenizer") for w in TOKENIZERS if holds(f"{w}{s}")), None),
        )
        for s in ("", "_2", "_3")
        if holds(f"text_encoder{s}")
    )
    clip = _no_text(folder)
    if encoders:
        clip = ClipRecipe(encoders, layout=family.layout_of(encoders))
    vae = VaeRecipe(part("vae", "vae")) if holds("vae") else _no_vae(folder)
    loaded = part(network.part, "network", network.noun)
    trained = family.training.latent(loaded)
    model = ModelRecipe(
        loaded,
        part("scheduler", "scheduler")
        if holds("scheduler") and not family.training.own_levels
        else family.training.scheduler_of(loaded),
        trained if vae.missing else replace(latent_space(vae), frames=trained.frames),
    )
    return model, clip, vae


def _family_in(parts: Mapping[str, Any]) -> ModelFamily:
    """Returns the family of a pipeline's index: by the network's class, else by the network's part
    name, else the first.
    """
    named = [one for one in families() if _present(parts, one.network.part)]
    of_class = [one for one in named if parts[one.network.part][-1] == one.network.class_name]
    return (of_class or named or families())[0]


def _of_file(path: Path) -> tuple[ModelRecipe, ClipRecipe, VaeRecipe]:
    file = contents(path)
    check_checkpoint(file)
    network = network_component(file)
    training = family_of(network).training
    trained = space = training.latent(network)
    vae, clip = _no_vae(path), _no_text(path)
    if holds_vae(file):
        vae = VaeRecipe(vae_component(file, trained, training.vae_overflows(network)))
        space = replace(latent_space(vae), frames=trained.frames)
        if vae_kind_of(vae.vae).scaled_by_network:
            space = replace(space, shift=trained.shift)
    if holds_text_encoders(file):
        inside = text_encoders(file)
        clip = ClipRecipe(inside, layout=family_of(network).layout_of(inside))
    return ModelRecipe(network, training.scheduler_of(network, file), space), clip, vae


def _no_vae(place: Path) -> VaeRecipe:
    return VaeRecipe(_missing(place, "has no VAE: use VAELoader"))


def _no_text(place: Path) -> ClipRecipe:
    part = _missing(place, f"has no text encoders: {TEXT_LOADERS}")
    return ClipRecipe((TextEncoderRecipe(part, part),))


def _missing(place: Path, reason: str) -> MissingComponent:
    return MissingComponent(str(place), (), reason=f"{place}: {reason}")


def _fitting(clip: ClipRecipe, model: ModelRecipe) -> ClipRecipe:
    """Returns a pipeline's text encoders. Marks them as missing if they do not fit the network, so
    that text encode nodes refuse them.
    """
    try:
        check_pipeline_text(model, clip)
    except InputError as problem:
        part = MissingComponent(model.network.folder, (), reason=f"{problem}: {TEXT_LOADERS}")
        return ClipRecipe((TextEncoderRecipe(part, part),))
    return clip


def _encoders(sources: Sequence[str | Path]) -> list[TextEncoderRecipe]:
    return [encoder for source in sources for encoder in _encoders_in(_local(source))]


def _encoders_in(place: Path) -> tuple[TextEncoderRecipe, ...]:
    if not place.is_dir():
        return text_encoders(contents(place))
    own = _pipelines_tokenizer(place)
    tokenizer = None if own is None else component(own, "tokenizer")
    return (text_encoder(component(place, "text_encoder"), tokenizer),)


def _pipelines_tokenizer(folder: Path) -> Path | None:
    """Returns the folder of a text encoder's tokenizer: the encoder's own, or a neighbour in a
    pipeline (`tokenizer_2` of `text_encoder_2`). None without either.
    """
    names = [folder.name.replace("text_encoder", one) for one in TOKENIZERS]
    neighbours = [folder.with_name(name) for name in names]
    places = [one for one in dict.fromkeys((folder, *neighbours)) if has_vocabulary(one)]
    return places[0] if places else None


def _check_network(network: Component) -> None:
    expect_class(network, *(family.network.class_name for family in families()))


def _present(parts: Mapping[str, Any], name: str) -> bool:
    entry = parts.get(name)
    return isinstance(entry, list) and bool(entry) and entry[-1] is not None


def _local(source: str | Path) -> Path:
    """Returns the local folder or file of `source`. If none exists and the name can be a hub id,
    fetches from the hub.
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
    # the hub's client raises errors of several network libraries
    except Exception as problem:
        reason = first_line(problem)
    try:
        return Path(snapshot_download(name, allow_patterns=list(HUB_FILES), local_files_only=True))
    except Exception:
        raise InputError(
            f"{name}: no such local folder, and it could not be fetched from the Hugging Face "
            f"hub: {reason}"
        ) from None
