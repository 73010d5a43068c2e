"""Defines the declaration of a family of diffusion models, finds the family of a component, and
checks that components fit each other.

Must not know any family. Never imports torch.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from katz_graph.core.errors import InputError
from katz_graph.core.graph import Link, NodeCall
from katz_graph.core.latent_space import LatentSpace, LinearMap
from katz_graph.core.patches import PassedOver
from katz_graph.core.recipe import (
    DEFAULT_LAYOUT,
    ClipRecipe,
    Component,
    Conditioning,
    ConditioningEntry,
    ControlNetRecipe,
    ControlUse,
    Given,
    ModelRecipe,
    TextLayout,
    VaeRecipe,
)
from katz_graph.models.configuration import config, config_value, expect_class, latent_space
from katz_graph.models.loading.configurations import Shapes
from katz_graph.models.stages import Stage, named
from katz_graph.models.text.kinds import EncoderKind, pooled_text_width, text_width

if TYPE_CHECKING:
    from katz_graph.models.loading.contents import Contents

SAME_SCALE = 1e-4  # relative difference of scaling factors that are the same
Configuration = dict[str, Any]
Complete = Callable[[ConditioningEntry, ModelRecipe, Mapping[str, Any], bool], ConditioningEntry]
"""Adds to a conditioning entry what a model takes beside the text, where it is not set. The mapping
is the latent that is sampled; true means the positive side.
"""
Nodes = dict[str, NodeCall]


@dataclass(frozen=True, slots=True)
class Control:
    """Holds what a ControlNet gives in a region: its residuals, in order."""

    control_net: ControlNetRecipe
    residuals: tuple[Link, ...]


Predict = Callable[
    [Nodes, str, ModelRecipe, Link, Conditioning, Sequence[Control], tuple[int, ...]], Link
]
"""Adds the operations of one prediction to a region, under names that begin with the given one:
from a step, a text, and ControlNets, without the blocks of these numbers; of families with chains.
"""
DrawControl = Callable[[Nodes, str, ModelRecipe, Link, Conditioning, ControlUse], tuple[Link, ...]]
"""Adds the operations of a model's ControlNet to a region, under names that begin with the given
one: from a step and a text. Returns the links of its residuals.
"""


@dataclass(frozen=True, slots=True)
class Architecture:
    """Describes what a network or a ControlNet takes and gives."""

    latent_channels: int  # of the prediction
    input_channels: int  # more than latent_channels where a mask or a picture is concatenated
    text_width: int  # of the text encoding's hidden state
    pooled_width: int | None  # of the pooled text; None where it takes none
    # a narrower text is filled up with zeros
    pads_text: bool = field(default=False, kw_only=True)

    def takes_text(self, width: int) -> bool:
        """Tells if a text [B, T, width] fits."""
        return width == self.text_width or (self.pads_text and width < self.text_width)

    @property
    def extra_channels(self) -> int:
        """Counts the input channels beside the latent's, 0 where nothing is concatenated. For a
        picture alone, to edit by instruction or as control, they are as many as the latent's; for
        inpainting there are further ones for the mask.
        """
        return self.input_channels - self.latent_channels


Chain = Literal["double", "single"]


@dataclass(frozen=True, slots=True)
class Network:
    """Declares the network of a family: its `noun` in messages, its `part` in pipelines and LoRA
    files, and its class in diffusers.

    `prepare` names a function, as `module:function`, that makes a loaded network or ControlNet
    ready for its stages; `stack` a module that computes a transformer in parts, as
    `families.shared.transformer_stack.Stack` has them; `channels` a function that makes the input
    channels beside the latent, from what the conditioning says of them, their number, a latent of
    the same size and its space; `skips` a function from a module to a mapping from the blocks that
    also read what an earlier block gave to that block, both by number. `chains`: the blocks that
    may be passed over, in order: double or single, and what a configuration calls their number.
    `overflows`: float16 is too narrow for it. `fills_to`: tokens are filled up to multiples of so
    many.
    """

    noun: str
    part: str
    class_name: str
    architecture: Callable[[Component], Architecture]
    complete: Complete
    predict: Predict
    prepare: str
    stack: str = ""
    channels: str = ""
    skips: str = ""
    chains: tuple[tuple[Chain, str], ...] = ()
    overflows: bool = False
    fills_to: int = 1


@dataclass(frozen=True, slots=True)
class Layout:
    """Recognises a module in a safetensors file: under one of the prefixes, one of `names` is there
    and none of `besides`. `configure` derives its configuration from the shapes of its tensors and
    the name of the file; `told`: tensors of one number that the configuration holds too.
    """

    prefixes: tuple[str, ...]
    names: tuple[str, ...]
    configure: Callable[[Shapes, str], Configuration]
    besides: tuple[str, ...] = ()
    told: tuple[str, ...] = ()

    def prefix(self, shapes: Shapes) -> str | None:
        """Returns the prefix under which the module is there."""

        def holds(prefix: str, names: tuple[str, ...]) -> bool:
            return any(prefix + name in shapes for name in names)

        found = (one for one in self.prefixes if holds(one, self.names))
        return next((one for one in found if not holds(one, self.besides)), None)


@dataclass(frozen=True, slots=True)
class Controls:
    """Declares the ControlNets of a family: their classes in diffusers, and the layouts of their
    single files.
    `check` raises InputError when one does not fit a model of the family. `draw` adds the
    operations of one to a region. `reads`, of transformers: which of a ControlNet's residuals is
    added before each block of a network, or to what that reads of an earlier one, and before its
    head; `blocks`: how many a ControlNet has; `reads_tokens`: it begins with the tokens of the
    model's embedding, and embeds no latent of its own. `picture` names a function, as
    `module:function`, from a ControlNet's configuration and the pixels of a reference, in 0..1, to
    those that it reads.
    """

    class_names: tuple[str, ...]
    files: tuple[Layout, ...]
    check: Callable[[ControlNetRecipe, ModelRecipe], None]
    draw: DrawControl
    reads: Callable[[ControlNetRecipe, ModelRecipe], tuple[int | None, ...]] | None = None
    blocks: Callable[[Component], int] | None = None
    reads_tokens: Callable[[Component], bool] = lambda _: False
    picture: str = ""


@dataclass(frozen=True, slots=True)
class Files:
    """Declares how single files hold models of a family. The first prefix of `network` is that of
    checkpoints; `text_encoders`: the prefixes of theirs, in order -> what each is. Of those whose
    tokenizer the package does not bring: `pieces`, the tensor that holds it as sentencepiece's
    model, and `on_hub`, its folder on the Hugging Face hub, as `owner/name/folder`. `convert` names
    a function, as `module:function`, from tensors and configuration to the tensors as the module
    names them; it reads no values, which may be computed later.
    """

    network: Layout
    text_encoders: Mapping[str, EncoderKind]
    convert: str
    pieces: Mapping[str, str] = field(default_factory=dict)
    on_hub: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Training:
    """Declares what a network was trained with, for files that do not say it. `latent`: the space
    of its latents, and if half precision does not suffice for its VAE. `noise`: the configuration
    of a scheduler, of a network without one beside it; `scheduler` makes it of a single file that
    may say more, None where it cannot.
    `multiplier`: times the noise level is what a flow is told.
    """

    latent: Callable[[Component], LatentSpace]
    noise: Callable[[Component], Configuration]
    vae_overflows: Callable[[Component], bool] = lambda _: False
    scheduler: Callable[[Contents, Component], Component] | None = None
    multiplier: float = 1000.0

    def scheduler_of(self, network: Component, file: Contents | None = None) -> Component:
        """Returns a component in place of a scheduler's folder."""
        if file is not None and self.scheduler is not None:
            return self.scheduler(file, network)
        return Component(network.folder, network.files, json.dumps(self.noise(network)))


@dataclass(frozen=True, slots=True)
class LoraNames:
    """Declares how LoRA files name the modules of a network: behind one of `prefixes` with
    underscores for dots, or by paths, which begin with one of `roots`, diffusers' or the original
    code's. `renaming` maps diffusers' names of tensors to PEFT's; `originals` names the function
    from the names of all parameters to those in the original code, each with the parameters whose
    rows are its own, none where files have diffusers' names alone. Both as `module:name`.
    """

    prefixes: tuple[str, ...]
    roots: tuple[str, ...]
    renaming: str
    originals: str = ""


@dataclass(frozen=True, slots=True)
class TextSet:
    """Declares text encoders that make a set: `type`, what CLIP loaders call it, and the names of
    their kinds, in order.
    """

    type: str
    kinds: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ModelFamily:
    """Declares a kind of diffusion model, which is all that the rest of the program knows of it.
    `title`, `short`: its models, in messages. `text_sets`: the sets of text encoders that it may
    have, as files of their own; `text_layout`: how it reads them. `files`: None where it is read
    from diffusers' folders alone. `stages`: its own, beside those of several families. `previews`:
    the colours of latents, by their channels and scaling factor.
    """

    title: str
    short: str
    network: Network
    files: Files | None
    training: Training
    lora: LoraNames
    controls: Controls | None = None
    text_sets: tuple[TextSet, ...] = ()
    text_layout: TextLayout = DEFAULT_LAYOUT
    stages: tuple[Stage, ...] = ()
    previews: Mapping[tuple[int, float], LinearMap] = field(default_factory=dict)

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.network.class_name, *(self.controls.class_names if self.controls else ())

    def prepared(self, module: Any) -> Any:
        """Makes a loaded network or ControlNet ready for its stages. Returns it."""
        named(self.network.prepare)(module)
        return module


@lru_cache(maxsize=1)
def families() -> list[ModelFamily]:
    """Returns all families. Only `register_family` changes the list."""
    from katz_graph.models.families import FAMILIES

    return [import_module(f"katz_graph.models.families.{name}.family").FAMILY for name in FAMILIES]


def known(words: Callable[[ModelFamily], str]) -> str:
    """Lists all families in the words that are taken of each, for messages."""
    *others, last = dict.fromkeys(map(words, families()))
    return f"{', '.join(others)} or {last}" if others else last


def supported() -> str:
    """Lists the models that run, for messages."""
    return known(lambda family: family.title)


def a_network() -> str:
    """Lists what the networks are called, for messages."""
    return known(lambda family: f"a {family.network.noun}")


def text_sets(encoders: int) -> dict[str, tuple[ModelFamily, TextSet]]:
    """Returns what CLIP loaders call so many text encoders -> the family, and the set."""
    return {
        one.type: (family, one)
        for family in families()
        for one in family.text_sets
        if len(one.kinds) == encoders
    }


def linear_map(scale: float, channels: int) -> LinearMap | None:
    """Returns the colours of latents with this scaling factor; None where they are not known."""
    known = (one for family in families() for one in family.previews.items())
    return next(
        (
            colours
            for (count, factor), colours in known
            if count == channels and math.isclose(scale, factor, rel_tol=SAME_SCALE)
        ),
        None,
    )


def all_controls() -> list[Controls]:
    return [family.controls for family in families() if family.controls is not None]


def all_files() -> list[Files]:
    return [family.files for family in families() if family.files is not None]


def family_of_class(name: str | None) -> ModelFamily | None:
    """Returns the family whose network or ControlNet has this class in diffusers."""
    return next((family for family in families() if name in family.class_names), None)


def family_of(part: Component) -> ModelFamily:
    """Returns the family of a network or ControlNet. InputError for the class of no family."""
    family = family_of_class(config(part).get("_class_name"))
    if family is None:
        expect_class(part, *(name for family in families() for name in family.class_names))
        raise AssertionError  # `expect_class` knows no more classes than families
    return family


def architecture(part: Component) -> Architecture:
    """Describes a network or ControlNet. InputError when it is of a kind that cannot be run."""
    return family_of(part).network.architecture(part)


def check_controlnet(control: ControlNetRecipe, model: ModelRecipe) -> None:
    """Raises InputError, naming what differs, when a ControlNet does not fit the model."""
    ours, theirs = family_of(control.control_net), family_of(model.network)
    if ours is not theirs or ours.controls is None:
        noun = theirs.network.noun
        raise InputError(
            f"{control.control_net.folder}: the ControlNet does not fit the {noun}: it is made for "
            f"{ours.title}, the {noun} in {model.network.folder} is of {theirs.title}"
        )
    ours.controls.check(control, model)


def block_numbers(text: str) -> tuple[int, ...]:
    """Reads numbers of blocks, separated by commas, in order and each once. InputError for other
    text.
    """
    if not re.fullmatch(r"[\d\s,]*", text, re.ASCII):
        raise InputError(f"{text!r}: expected numbers of blocks, separated by commas: 7, 8, 9")
    return tuple(sorted({int(number) for number in re.findall(r"\d+", text)}))


def passed_over(blocks: PassedOver, model: ModelRecipe) -> tuple[int, ...]:
    """Returns the numbers of the blocks that a patch names among all of the network. InputError
    where it has no such chain, or fewer blocks.
    """
    family, folder = family_of(model.network), model.network.folder
    asked = {"double": blocks.double, "single": blocks.single}
    found: list[int] = []
    first = 0
    for kind, name in family.network.chains:
        count = config_value(model.network, name, int)
        beyond = [number for number in asked[kind] if number >= count]
        if beyond:
            raise InputError(
                f"{folder}: has {kind} blocks 0 to {count - 1}, SkipLayerGuidance is to pass over "
                f"{', '.join(map(str, beyond))}"
            )
        found += [first + number for number in asked[kind]]
        first += count
    if not found:
        kinds = " and ".join(kind for kind, _ in family.network.chains)
        has = f"has {kinds} blocks alone" if kinds else "has no double or single blocks"
        raise InputError(
            f"{folder}: {has}, so that SkipLayerGuidance has nothing to pass over: name some of "
            "its blocks, or take the patch off"
        )
    return tuple(found)


def check_text(clip: ClipRecipe, model: ModelRecipe) -> None:
    """Raises InputError, naming both numbers, when the text encoders are for another network."""
    wanted, noun = architecture(model.network), family_of(model.network).network.noun
    width, pooled = text_width(clip), pooled_text_width(clip)
    if not wanted.takes_text(width) or pooled != wanted.pooled_width:
        raise InputError(
            f"{clip.encoders[0].encoder.folder}: the text encoders do not fit the {noun}: "
            f"they give text of width {width} (pooled {pooled}), "
            f"the {noun} in {model.network.folder} takes {wanted.text_width} "
            f"(pooled {wanted.pooled_width}); take CLIP and MODEL from one checkpoint"
        )


def check_given(given: Given, model: ModelRecipe) -> None:
    """Raises InputError when an encoding that somebody made is not as wide as the model's texts."""
    wanted, noun = architecture(model.network), family_of(model.network).network.noun
    width, pooled = given.hidden.shape[-1], given.pooled
    other = pooled is not None and wanted.pooled_width not in (None, pooled.shape[-1])
    if not wanted.takes_text(width) or other:
        gives = f"{width} (pooled {None if pooled is None else pooled.shape[-1]})"
        raise InputError(
            f"a conditioning that a pack made has text of width {gives}, the {noun} in "
            f"{model.network.folder} takes {wanted.text_width} (pooled {wanted.pooled_width})"
        )


def check_pipeline_text(model: ModelRecipe, clip: ClipRecipe) -> None:
    """Raises InputError when the network of a pipeline does not read its text encoders."""
    wanted, noun = architecture(model.network), family_of(model.network).network.noun
    takes, gives = f"{model.network.folder}: the {noun} takes", "text encoders give"
    width, pooled = text_width(clip), pooled_text_width(clip)
    if not wanted.takes_text(width):
        raise InputError(
            f"{takes} text of width {wanted.text_width}, the pipeline's {gives} {width}"
        )
    if pooled != wanted.pooled_width:
        given = f"the pipeline's {len(clip.encoders)} {gives} {pooled}"
        raise InputError(f"{takes} pooled text of width {wanted.pooled_width}, {given}")


def check_pipeline_latents(model: ModelRecipe, vae: VaeRecipe) -> None:
    """Raises InputError when the network of a pipeline has other latents than its VAE."""
    wanted, noun = architecture(model.network), family_of(model.network).network.noun
    channels = latent_space(vae).channels
    if channels != wanted.latent_channels:
        raise InputError(
            f"{model.network.folder}: the {noun} takes {wanted.latent_channels} latent channels, "
            f"the VAE has {channels}"
        )
