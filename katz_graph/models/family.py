"""Defines the declaration of a family of diffusion models, finds the family of a component, and
checks that components fit each other.

Must not know any family. Never imports torch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from katz_graph.core.errors import InputError
from katz_graph.core.graph import Link, NodeCall
from katz_graph.core.latent_space import LatentSpace, LinearMap
from katz_graph.core.patches import SkippedBlocks
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
    TextEncoderRecipe,
    TextLayout,
    VaeRecipe,
)
from katz_graph.models.configuration import config, config_value, expect_class
from katz_graph.models.loading.configurations import Shapes
from katz_graph.models.stages import Stage, named
from katz_graph.models.text.kinds import (
    EVERY,
    EncoderKind,
    called,
    kind_of,
    pooled_text_width,
    size_of,
    text_value,
    text_width,
    titles,
)
from katz_graph.models.vae.kinds import latent_space

if TYPE_CHECKING:
    from katz_graph.models.loading.contents import Contents

Configuration = dict[str, Any]
Complete = Callable[[ConditioningEntry, ModelRecipe, Mapping[str, Any], bool], ConditioningEntry]
"""Adds the model's conditioning inputs other than text to an entry, if unset. The mapping is the
sampled latent; the flag is true for positive conditioning.
"""
Nodes = dict[str, NodeCall]


@dataclass(frozen=True, slots=True)
class Control:
    """Holds a ControlNet's residuals in a region, in order."""

    control_net: ControlNetRecipe
    residuals: tuple[Link, ...]


Predict = Callable[
    [Nodes, str, ModelRecipe, Link, Conditioning, Sequence[Control], tuple[int, ...]], Link
]
"""Adds the operations of one prediction to a region, from a step, a conditioning and ControlNets.
Prefixes their names with the given name. Skips the blocks of the given numbers, which only families
with `chains` support.
"""
DrawControl = Callable[[Nodes, str, ModelRecipe, Link, Conditioning, ControlUse], tuple[Link, ...]]
"""Adds the operations of a model's ControlNet to a region, from a step and a conditioning. Prefixes
their names with the given name. Returns the links of the residuals.
"""


@dataclass(frozen=True, slots=True)
class Architecture:
    """Describes the inputs and outputs of a network or a ControlNet."""

    latent_channels: int  # of the prediction
    input_channels: int  # more than latent_channels if a mask or a picture is concatenated
    text_width: int  # of the text encoding's hidden state
    pooled_width: int | None  # of the pooled text; None if not an input
    # true if narrower text is padded with zeros
    pads_text: bool = field(default=False, kw_only=True)

    def takes_text(self, width: int) -> bool:
        """Returns whether a text [B, T, width] fits."""
        return width == self.text_width or (self.pads_text and width < self.text_width)

    @property
    def extra_channels(self) -> int:
        """Counts the input channels in addition to the latent's, 0 if nothing is concatenated. An
        edited or control picture adds as many as the latent has; inpainting adds more for the mask.
        """
        return self.input_channels - self.latent_channels


Chain = Literal["double", "single"]


@dataclass(frozen=True, slots=True)
class Network:
    """Declares the network of a family. Functions are named as `module:function`."""

    noun: str  # in messages
    part: str  # in pipelines and LoRA files
    class_name: str  # in diffusers
    architecture: Callable[[Component], Architecture]
    complete: Complete
    predict: Predict
    # the function that prepares a loaded network or ControlNet for its stages
    prepare: str
    # the class, as `module:class`, of a network that is made of several of diffusers' classes
    module: str = ""
    # the module that computes a transformer in parts, see `families.shared.transformer_stack.Stack`
    stack: str = ""
    # the function that returns the extra input channels, from the conditioning,
    # the number of channels, a latent of the same size, and the latent space
    channels: str = ""
    # the function that returns a module's skip connections: later -> earlier block number
    skips: str = ""
    # chains of skippable blocks, in order: kind, and the configuration key of the count
    chains: tuple[tuple[Chain, str], ...] = ()
    overflows: bool = False  # in float16
    # its layers can compute the active tokens of an edit only, see `models.active`
    active_tokens: bool = False
    references_apart: bool = False  # may attend to references only, see `ReferencesApart`
    token_multiple: int = 1  # tokens are padded to a multiple of this number
    # layers whose weights are float32 in every number format: words of their paths
    wide: tuple[str, ...] = ()
    # says, for a warning, which part of a conditioning has no effect; empty if all of it has
    unused: Callable[[ConditioningEntry], str] = lambda _: ""
    # counts the blocks, and the values of a token's keys and values in one, if no step changes the
    # tokens before the picture
    prefix: Callable[[Component], tuple[int, int]] | None = None
    # its stages' work is a sum of products of the sizes, with text and patches of 2 x 2 as one size
    # (`costs.formula`); False: it is counted at each size
    formulas: bool = True


@dataclass(frozen=True, slots=True)
class Layout:
    """Recognises a module in a safetensors file by its tensors under a prefix: one of `names`, and
    none of `absent`.
    """

    prefixes: tuple[str, ...]
    names: tuple[str, ...]
    # derives the configuration from tensor shapes and the file's name
    configure: Callable[[Shapes, str], Configuration]
    absent: tuple[str, ...] = ()
    configuration_tensors: tuple[str, ...] = ()  # scalar tensors with values for the configuration

    def prefix(self, shapes: Shapes) -> str | None:
        """Returns the prefix of the module in a file with these shapes; None without one."""

        def holds(prefix: str, names: tuple[str, ...]) -> bool:
            return any(prefix + name in shapes for name in names)

        found = (one for one in self.prefixes if holds(one, self.names))
        return next((one for one in found if not holds(one, self.absent)), None)


@dataclass(frozen=True, slots=True)
class Controls:
    """Declares the ControlNets of a family."""

    class_names: tuple[str, ...]  # in diffusers, or in `modules`
    files: tuple[Layout, ...]  # layouts of single files
    # raises InputError if a ControlNet does not fit a model of the family
    check: Callable[[ControlNetRecipe, ModelRecipe], None]
    draw: DrawControl
    # transformers: the number of the residual added before each block of a network (or to the
    # block's skip input) and before the head; None: no residual
    reads: Callable[[ControlNetRecipe, ModelRecipe], tuple[int | None, ...]] | None = None
    blocks: Callable[[Component], int] | None = None  # counts a ControlNet's blocks
    # true for a ControlNet that reads the model's embedded tokens and embeds no latent
    reads_tokens: Callable[[Component], bool] = lambda _: False
    # the function, as `module:function`, that converts a reference's pixels, in 0..1, to the pixels
    # that a ControlNet of a given configuration reads
    picture: str = ""
    # true for a ControlNet that reads a mask of the visible part as the last channel of its latent
    reads_mask: Callable[[Component], bool] = lambda _: False
    # the factor of a ControlNet's residuals, from its strength
    strength: Callable[[Component, float], float] = lambda _, value: value
    # classes that diffusers does not have, as `module:class`
    modules: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Files:
    """Declares the single files of a family's models.

    `pieces` and `on_hub` are for text encoders whose tokenizer the package does not ship.
    """

    network: Layout  # the first prefix is the one in checkpoints
    text_encoders: Mapping[str, EncoderKind]  # by prefix in checkpoints, in order
    # the function, as `module:function`, from tensors and configuration to tensors with the
    # module's names; reads no tensor values, because these may be deferred
    convert: str
    # the tensor that holds the tokenizer as a sentencepiece model
    pieces: Mapping[str, str] = field(default_factory=dict)
    # the tokenizer's folder on the Hugging Face hub, as `owner/name/folder`
    on_hub: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Training:
    """Declares how a network was trained, for files without this information."""

    latent: Callable[[Component], LatentSpace]
    # the scheduler configuration of a network without a scheduler's folder
    noise: Callable[[Component], Configuration]
    # true if float16 is too narrow for the VAE
    vae_overflows: Callable[[Component], bool] = lambda _: False
    # derives the scheduler from a single file; None: files never specify it
    scheduler: Callable[[Contents, Component], Component] | None = None
    multiplier: float = 1000.0  # a flow model's timestep input is the noise level times this
    # true if a folder's scheduler, which shifts levels by picture size, is not used: the ecosystem
    # samples the family's models with the levels of `noise` at every size
    own_levels: bool = False

    def scheduler_of(self, network: Component, file: Contents | None = None) -> Component:
        """Returns the scheduler component of a network without a scheduler's folder."""
        if file is not None and self.scheduler is not None:
            return self.scheduler(file, network)
        return Component(network.folder, network.files, json.dumps(self.noise(network)))


@dataclass(frozen=True, slots=True)
class LoraNames:
    """Declares the names of a network's modules in LoRA files."""

    prefixes: tuple[str, ...]  # of names with underscores for dots
    roots: tuple[str, ...]  # first words of paths, in diffusers or the original code
    renaming: str  # the mapping from diffusers' tensor names to PEFT's, as `module:name`
    # the function, as `module:name`, from all parameter names to the original code's names, each
    # with its rows in the parameters; empty if files only have diffusers' names
    originals: str = ""
    # prefixes of layers whose weights library functions read, so LoRAs there are always merged
    merged: tuple[str, ...] = ()
    # parts of paths that only this family has, where roots and shapes equal another family's
    marks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TextSet:
    """Declares a set of text encoders. Sets of several families may have one type."""

    type: str  # the set's name in CLIP loaders
    kinds: tuple[str, ...]  # names of the encoders' kinds, in order
    # of the published encoder, as in `EncoderKind.sizes`, if sets of its kind differ by size
    sizes: tuple[str, ...] = ()
    layout: TextLayout | None = None  # how the network reads this set; None: as the family's


@dataclass(frozen=True, slots=True)
class ModelFamily:
    """Declares a family of diffusion models. Other code only knows this declaration."""

    title: str  # of its models, in messages
    short: str  # shorter title
    network: Network
    files: Files | None  # None if models are only read from diffusers' folders
    training: Training
    lora: LoraNames
    controls: Controls | None = None
    text_sets: tuple[TextSet, ...] = ()  # sets of text encoders in separate files
    text_layout: TextLayout = DEFAULT_LAYOUT  # how the network reads the encoders' outputs
    stages: tuple[Stage, ...] = ()  # in addition to stages shared by families
    # the map from latents to colours, by their space
    previews: Mapping[LatentSpace, LinearMap] = field(default_factory=dict)
    # values in a pipeline's index that the family requires, if the index has them
    index: Mapping[str, Any] = field(default_factory=dict)

    def layout_of(self, encoders: Iterable[TextEncoderRecipe]) -> TextLayout:
        """Returns how the network reads text encoders of these kinds."""
        names = sorted(kind_of(one.encoder).name for one in encoders)
        own = (one.layout for one in self.text_sets if sorted(one.kinds) == names)
        return next(own, None) or self.text_layout

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.network.class_name, *(self.controls.class_names if self.controls else ())

    @property
    def modules(self) -> Mapping[str, str]:
        """Maps the classes that diffusers lacks to `module:class`."""
        own = {self.network.class_name: self.network.module} if self.network.module else {}
        return {**own, **(self.controls.modules if self.controls else {})}

    def prepared(self, module: Any) -> Any:
        """Prepares a loaded network or ControlNet for its stages, and returns it."""
        named(self.network.prepare)(module)
        return module


@lru_cache(maxsize=1)
def families() -> list[ModelFamily]:
    """Returns all families. Only `register_family` changes the list."""
    from katz_graph.models.families import FAMILIES

    return [import_module(f"katz_graph.models.families.{name}.family").FAMILY for name in FAMILIES]


def known(words: Callable[[ModelFamily], str]) -> str:
    """Lists all families for messages, each described by `words`."""
    *others, last = dict.fromkeys(map(words, families()))
    return f"{', '.join(others)} or {last}" if others else last


def supported() -> str:
    """Lists the supported models, for messages."""
    return known(lambda family: family.title)


def a_network() -> str:
    """Lists the nouns of all networks, for messages."""
    return known(lambda family: f"a {family.network.noun}")


def text_sets(encoders: int = 0) -> list[tuple[ModelFamily, TextSet]]:
    """Returns all sets, or those of `encoders` text encoders, with their families."""
    return [
        (family, one)
        for family in families()
        for one in family.text_sets
        if encoders in (0, len(one.kinds))
    ]


def text_set(type: str, encoders: Sequence[Component]) -> tuple[ModelFamily, TextSet]:
    """Returns the set of a type in CLIP loaders that encoders belong to. Like in ComfyUI, a single
    encoder that belongs to another type goes by its kind and size. Raises InputError if no set has
    encoders of these kinds.
    """
    kinds = [kind_of(one) for one in encoders]
    names, size = sorted(kind.name for kind in kinds), size_of(encoders[0])
    every = text_sets()
    fitting = [pair for pair in every if sorted(pair[1].kinds) == names]
    of_type = [pair for pair in every if pair[1].type == type]
    if len(encoders) > 1:
        fitting = [pair for pair in fitting if pair in of_type]
    if not fitting:
        files = " and ".join(dict.fromkeys(one.folder for one in encoders))
        as_many = [pair for pair in of_type if len(pair[1].kinds) == len(encoders)]
        wanted = " or ".join(dict.fromkeys(titles(one.kinds) for _, one in as_many or of_type))
        raise InputError(
            f"{files}: not the text encoders of one model: expected {wanted}, got "
            f"{' and '.join(sorted(map(called, encoders)))}"
        )
    return max(fitting, key=lambda pair: (size in pair[1].sizes, pair[1].type == type))


def linear_map(space: LatentSpace) -> LinearMap | None:
    """Returns the preview colours of latents of a space; None if unknown."""
    known = (one for family in families() for one in family.previews.items())
    return next((colours for shown, colours in known if shown.equals(space)), None)


def all_controls() -> list[Controls]:
    return [family.controls for family in families() if family.controls is not None]


def all_files() -> list[Files]:
    return [family.files for family in families() if family.files is not None]


def family_of_class(name: str | None) -> ModelFamily | None:
    """Returns the family with this diffusers class of a network or ControlNet; None if unknown."""
    return next((family for family in families() if name in family.class_names), None)


def family_of(part: Component) -> ModelFamily:
    """Returns the family of a network or ControlNet. Raises InputError for an unknown class."""
    family = family_of_class(config(part).get("_class_name"))
    if family is None:
        expect_class(part, *(name for family in families() for name in family.class_names))
        raise AssertionError  # `expect_class` raises for a class of no family
    return family


def architecture(part: Component) -> Architecture:
    """Describes a network or ControlNet. Raises InputError for an unsupported kind."""
    return family_of(part).network.architecture(part)


def check_controlnet(control: ControlNetRecipe, model: ModelRecipe) -> None:
    """Raises InputError, naming the difference, if a ControlNet does not fit the model."""
    ours, theirs = family_of(control.control_net), family_of(model.network)
    if ours is not theirs or ours.controls is None:
        noun = theirs.network.noun
        raise InputError(
            f"{control.control_net.folder}: the ControlNet does not fit the {noun}: it is made for "
            f"{ours.title}, the {noun} in {model.network.folder} is of {theirs.title}"
        )
    ours.controls.check(control, model)


def reads_mask(control: ControlNetRecipe) -> bool:
    """Returns whether a ControlNet reads the mask of the visible part."""
    controls = family_of(control.control_net).controls
    return controls is not None and controls.reads_mask(control.control_net)


def block_numbers(text: str) -> tuple[int, ...]:
    """Parses comma-separated block numbers. Returns them sorted, each once. Raises InputError for
    other text.
    """
    if not re.fullmatch(r"[\d\s,]*", text, re.ASCII):
        raise InputError(f"{text!r}: expected numbers of blocks, separated by commas: 7, 8, 9")
    return tuple(sorted({int(number) for number in re.findall(r"\d+", text)}))


def skipped_blocks(blocks: SkippedBlocks, model: ModelRecipe) -> tuple[int, ...]:
    """Returns the blocks to skip, numbered among all blocks of the network. Raises InputError if
    the network has no such chain or fewer blocks.
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
                f"{folder}: has {kind} blocks 0 to {count - 1}, SkipLayerGuidance cannot skip "
                f"{', '.join(map(str, beyond))}"
            )
        found += [first + number for number in asked[kind]]
        first += count
    if not found:
        kinds = " and ".join(kind for kind, _ in family.network.chains)
        has = f"has {kinds} blocks only" if kinds else "has no double or single blocks"
        raise InputError(
            f"{folder}: {has}, so SkipLayerGuidance has nothing to skip: name some of its blocks, "
            "or remove the patch"
        )
    return tuple(found)


def only_all_tokens(model: ModelRecipe, references: bool = False) -> str:
    """Returns the reason if the layers of a model cannot compute the active tokens of an edit only;
    an empty string if they can. `references`: the network reads tokens of reference pictures.
    """
    family = family_of(model.network)
    if not family.network.active_tokens:
        able = [one.short for one in families() if one.network.active_tokens]
        return f"{family.short} computes all tokens, unlike {', '.join(able)}"
    return "all tokens of reference pictures are computed" if references else ""


def check_text(clip: ClipRecipe, model: ModelRecipe) -> None:
    """Raises InputError, naming both widths, if the text encoders do not fit the network."""
    wanted, noun = architecture(model.network), family_of(model.network).network.noun
    width, pooled = text_width(clip), pooled_text_width(clip)
    first = clip.encoders[0].encoder
    if not wanted.takes_text(width) or pooled != wanted.pooled_width:
        use = " or ".join(_encoders_for(model)) or "CLIP and MODEL from one checkpoint"
        raise InputError(
            f"{first.folder}: the text encoders do not fit the {noun}: they give text of width "
            f"{width} (pooled {pooled}), the {noun} in {model.network.folder} takes "
            f"{wanted.text_width} (pooled {wanted.pooled_width}); use {use}"
        )
    deepest = max(clip.layout.states, default=0)
    if deepest and (layers := text_value(first, "num_hidden_layers")) < deepest:
        raise InputError(
            f"{first.folder}: a {called(first)} of {layers} layers, the {noun} in "
            f"{model.network.folder} reads the output of layer {deepest}"
        )


def _encoders_for(model: ModelRecipe) -> Iterator[str]:
    """Yields the published single text encoders whose text fits a model."""
    family, takes = family_of(model.network), architecture(model.network).takes_text
    for one in family.text_sets:
        layout = one.layout or family.text_layout
        for kind in EVERY:
            for width, size in kind.sizes:
                if one.kinds == (kind.name,) and takes(width * layout.state_count):
                    yield f"{kind.title} {size}"


def check_given(given: Given, model: ModelRecipe) -> None:
    """Raises InputError if the width of an encoding made by a pack does not fit the model."""
    wanted, noun = architecture(model.network), family_of(model.network).network.noun
    width, pooled = given.hidden.shape[-1], given.pooled
    other = pooled is not None and wanted.pooled_width not in (None, pooled.shape[-1])
    if not wanted.takes_text(width) or other:
        gives = f"{width} (pooled {None if pooled is None else pooled.shape[-1]})"
        raise InputError(
            f"a conditioning of a pack or a file has text of width {gives}, the {noun} in "
            f"{model.network.folder} takes {wanted.text_width} (pooled {wanted.pooled_width})"
        )


def check_pipeline_text(model: ModelRecipe, clip: ClipRecipe) -> None:
    """Raises InputError if the network and the text encoders of a pipeline do not fit."""
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
    """Raises InputError if the latents of a pipeline's network and VAE differ."""
    wanted, noun = architecture(model.network), family_of(model.network).network.noun
    channels = latent_space(vae).channels
    if channels != wanted.latent_channels:
        raise InputError(
            f"{model.network.folder}: the {noun} takes {wanted.latent_channels} latent channels, "
            f"the VAE has {channels}"
        )
