"""Defines recipes: frozen descriptions of how to get a model, a text encoding or an image. They
flow on wires instead of live weights.

Nothing here loads anything. Two equal recipes mean the same weights and the same numbers, so a
recipe's digest is a cache key.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from katz_graph.core.latent_space import DEFAULT_LATENT_SPACE, LatentSpace
from katz_graph.core.patches import Patch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """Identifies a file as it was when it was named: a replaced file is another identity, hence
    another recipe. One that a URL names need not have been fetched.
    """

    path: str  # or the URL, with what it needs to be fetched: show it by `files.urls.shown`
    size: int  # bytes
    modified_ns: int  # 0 for a URL
    header: str  # SHA-256 of a safetensors header, or of the whole file for configurations
    version: str = ""  # of a URL: what its server says that the file is, where it says something
    # the files in its folder that say how to read it
    companions: tuple[FileIdentity, ...] = ()
    # of a URL: words of the rule that it was named under (`FetchRule`)
    fetch: tuple[str, ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Component:
    """One module: its configuration and safetensors files in diffusers' folder layout, a
    tokenizer's files, or a part of a single file.

    A part of a single file is the tensors whose names begin with `prefix`; its configuration, told
    from them, is carried along, for nothing beside the file says it. `rounding` is the number
    format that weights are rounded to before they are used.
    """

    folder: str  # or the single file
    files: tuple[FileIdentity, ...]
    configuration: str | None = None  # JSON
    prefix: str = ""
    rounding: str | None = None

    @property
    def weight_files(self) -> tuple[FileIdentity, ...]:
        """Returns the files that hold its tensors: all but a folder's configuration and index."""
        return tuple(file for file in self.files if not file.path.lower().endswith(".json"))


@dataclass(frozen=True, slots=True)
class MissingComponent(Component):
    """Stands for a module that a checkpoint does not hold, as far as nothing uses it. `reason`:
    what the error of a user says.
    """

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Lora:
    """One LoRA file at a strength. Its place in a recipe's tuple is its place in the graph."""

    file: FileIdentity
    strength: float


@dataclass(frozen=True, slots=True)
class MergedComponent(Component):
    """A module whose weights are computed from two modules of one shape, each with its LoRAs; its
    fields as a Component are those of the first.

    `scales` are (beginning of a weight's name, factor of the first, factor of the second); of
    several that fit, the first counts.
    """

    sources: tuple[tuple[Component, tuple[Lora, ...]], ...] = ()
    scales: tuple[tuple[str, float, float], ...] = ()


@dataclass(frozen=True, slots=True)
class ModelRecipe:
    """A network with LoRAs and patches; `scheduler` holds the noise table and the kind of
    prediction it was trained for, `latent` the latents that it takes. `controls` act on all that it
    is told, beside those that a conditioning carries.
    """

    network: Component
    scheduler: Component
    latent: LatentSpace = DEFAULT_LATENT_SPACE
    loras: tuple[Lora, ...] = ()
    patches: tuple[Patch, ...] = ()
    controls: tuple[ControlUse, ...] = ()

    @property
    def weights(self) -> tuple[Component, tuple[Lora, ...]]:
        """Returns the network and what is to be merged into its weights."""
        return self.network, tuple(lora for lora in self.loras if lora.strength)

    def with_lora(self, lora: Lora) -> ModelRecipe:
        return replace(self, loras=(*self.loras, lora))

    def with_patch(self, patch: Patch) -> ModelRecipe:
        return replace(self, patches=(*self.patches, patch))

    def with_control(self, use: ControlUse) -> ModelRecipe:
        return replace(self, controls=(*self.controls, use))


@dataclass(frozen=True, slots=True)
class TextEncoderRecipe:
    encoder: Component
    tokenizer: Component


@dataclass(frozen=True, slots=True)
class LearnedWords:
    """A textual inversion under the name that prompts call it by."""

    name: str
    file: FileIdentity


Pooling = Literal["last", "joined", "plain"]


@dataclass(frozen=True, slots=True)
class TextLayout:
    """Says how a model reads its text encoders: rows of CLIP's side by side, unless `clip_rows` is
    false, and behind them those of an encoder of long texts, the narrower filled up with zeros.

    `pooled`: the pooled text is that of the last CLIP encoder, if it projects, or of all side by
    side, of which the last projects its own (`joined`) or none does (`plain`). Of an encoder of
    long texts: `padding` tokens that fill any text up, and `least` that a text is then filled up
    to; `template`, written around a text, whose
    weights do not count then; and which hidden state is read, `from_end` 1 being the last, with the
    final norm. `lengths`: the tokens of each encoder's text, which is cut or filled up to so many;
    what fills it up is masked.
    """

    pooled: Pooling = "last"
    clip_rows: bool = True
    padding: int = 0
    least: int = 1
    template: str = ""
    from_end: int = 1
    lengths: tuple[int, ...] = ()

    def length(self, encoder: int) -> int:
        """Returns how long the n-th text encoder's text is, 0 where it may be of any length."""
        return self.lengths[encoder] if self.lengths else 0

    def filled(self, tokens: int, length: int) -> int:
        """Returns how long a long text of so many tokens becomes, at least `length`."""
        return max(tokens + self.padding, self.least, length)


DEFAULT_LAYOUT = TextLayout()


@dataclass(frozen=True, slots=True)
class ClipRecipe:
    """The text encoders of a model, with LoRAs and the textual inversions that a prompt names.

    `last_layer` is ComfyUI's stop_at_clip_layer; None is the family's own.
    """

    encoders: tuple[TextEncoderRecipe, ...]
    loras: tuple[Lora, ...] = ()
    last_layer: int | None = None
    learned: tuple[LearnedWords, ...] = ()
    layout: TextLayout = DEFAULT_LAYOUT

    @property
    def missing(self) -> MissingComponent | None:
        """Returns what stands for text encoders that a checkpoint does not hold."""
        first = self.encoders[0].encoder if self.encoders else None
        return first if isinstance(first, MissingComponent) else None

    def with_lora(self, lora: Lora) -> ClipRecipe:
        return replace(self, loras=(*self.loras, lora))


@dataclass(frozen=True, slots=True)
class VaeRecipe:
    vae: Component

    @property
    def missing(self) -> MissingComponent | None:
        """Returns what stands for a VAE that a checkpoint does not hold."""
        return self.vae if isinstance(self.vae, MissingComponent) else None


@dataclass(frozen=True, slots=True)
class ControlNetRecipe:
    """A ControlNet. `types`: the kinds of reference that one for several kinds is told it gets.
    `base`: the network that the file's weights are differences to.
    """

    control_net: Component
    types: tuple[int, ...] = ()
    base: Component | None = None


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture (or mask, or latent) inside a recipe: equal when its bytes are equal."""

    digest: str
    pixels: Tensor = field(compare=False, repr=False)  # float32; a picture is [B, H, W, C], 0..1

    @classmethod
    def of(cls, pixels: Tensor) -> Picture:
        return cls(tensor_digest(pixels), pixels.detach().cpu().contiguous())


@dataclass(frozen=True, slots=True)
class ControlUse:
    """One ControlNet applied to a conditioning: reference image, strength and the window of the
    schedule (fractions) it acts in.

    `spreads`: it acts on the other side of guidance too, where that has no ControlNet of its own.
    `vae` encodes the image for a ControlNet that reads latents.
    """

    control_net: ControlNetRecipe
    image: Picture
    strength: float = 1.0
    start_percent: float = 0.0
    end_percent: float = 1.0
    spreads: bool = False
    vae: VaeRecipe | None = None


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text for all text encoders; `further`: for the second, the third, where they are others.
    `absent`: the numbers of those that read none: their part of the encoding is zeros, or left out.
    """

    clip: ClipRecipe
    text: str
    further: tuple[str, ...] = ()
    absent: tuple[int, ...] = ()

    def text_of(self, encoder: int) -> str:
        """Returns the text for the n-th text encoder."""
        return self.further[encoder - 1] if 0 < encoder <= len(self.further) else self.text


@dataclass(frozen=True, slots=True)
class Joined:
    """Two encodings, one after the other along the tokens; the pooled text is the first's."""

    first: Encoding
    second: Encoding


@dataclass(frozen=True, slots=True)
class Averaged:
    """`share` of the first encoding and the rest of the second, which is cut or filled up to the
    first's length.
    """

    first: Encoding
    second: Encoding
    share: float


@dataclass(frozen=True, slots=True)
class Zeroed:
    """Zeros in the shape of an encoding."""

    encoding: Encoding


@dataclass(frozen=True, slots=True)
class Given:
    """An encoding that somebody made: equal when its bytes are equal."""

    digest: str
    hidden: Tensor = field(compare=False, repr=False)  # [1, T, D]
    pooled: Tensor | None = field(compare=False, repr=False)  # [1, P]

    @classmethod
    def of(cls, hidden: Tensor, pooled: Tensor | None) -> Given:
        parts = [tensor_digest(tensor) for tensor in (hidden, pooled) if tensor is not None]
        return cls(" ".join(parts), hidden, pooled)


Encoding = Prompt | Joined | Averaged | Zeroed | Given
"""Recipe of a text encoding; computed when a sampler needs it."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The picture sizes that some models are told, in pixels; None is the size that is sampled. A
    refiner is told a score, no target.
    """

    height: int | None = None
    width: int | None = None
    crop_top: int = 0
    crop_left: int = 0
    target_height: int | None = None
    target_width: int | None = None
    aesthetic_score: float | None = None


@dataclass(frozen=True, slots=True)
class Area:
    """A part of the picture: in latent cells, or `relative`, in parts of its sides."""

    top: float
    left: float
    height: float
    width: float
    relative: bool = False


@dataclass(frozen=True, slots=True)
class MaskUse:
    """Limits a conditioning to a mask, at a strength. `bounds`: the model sees only the box around
    the mask.
    """

    mask: Picture  # [B, H, W]
    strength: float = 1.0
    bounds: bool = False


@dataclass(frozen=True, slots=True)
class Concatenated:
    """The input of a model with more channels beside the noisy latent: a latent (as on wires) and,
    for inpainting, a mask (1 = repaint).

    Without a mask an inpainting model sees a blank picture, all of it to be repainted.
    """

    latent: Picture | None = None  # [B, C, h, w]
    mask: Picture | None = None  # [B, H, W] or [B, 1, H, W] in any size


ReferencePlacing = Literal["offset", "index", "uxo"]


@dataclass(frozen=True, slots=True)
class References:
    """Latents, as on wires, that a model for editing reads as tokens beside those of the picture.
    `placing`: where they stand: beside each other on a plane behind the picture, each on a plane of
    its own, or behind the picture's corner.
    """

    latents: tuple[Picture, ...]  # [B, C, h, w]
    placing: ReferencePlacing = "offset"


@dataclass(frozen=True, slots=True)
class ConditioningEntry:
    """One prompt with what acts on it."""

    encoding: Encoding
    control: tuple[ControlUse, ...] = ()
    strength: float = 1.0
    start_percent: float = 0.0
    end_percent: float = 1.0
    area: Area | None = None
    mask: MaskUse | None = None
    sizes: Sizes | None = None
    concatenated: Concatenated | None = None
    # that a distilled model is told; None is the model's own, "off" none
    guidance: float | Literal["off"] | None = None
    references: References | None = None

    def with_control(self, use: ControlUse) -> ConditioningEntry:
        return replace(self, control=(*self.control, use))


Conditioning = tuple[ConditioningEntry, ...]
"""Prompts that act together."""


def digest(recipe: object) -> str:
    """Computes the SHA-256 of a recipe's repr, which is complete: frozen dataclasses of strings and
    numbers, a picture's digest for its pixels.
    """
    return hashlib.sha256(repr(recipe).encode()).hexdigest()


def tensor_digest(tensor: Tensor) -> str:
    """Computes the SHA-256 of a tensor's shape, type and bytes."""
    import torch

    data = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
    return hashlib.sha256(
        str((tuple(tensor.shape), str(tensor.dtype))).encode() + data.tobytes()
    ).hexdigest()


@dataclass(frozen=True, slots=True)
class Rrdb:
    """RRDBNet: it moves `unshuffle` pixels of a side into channels first, then doubles the size
    `doublings` times.
    """

    features: int
    growth: int
    blocks: int
    doublings: int
    unshuffle: int

    @property
    def scale(self) -> int:
        return (1 << self.doublings) // self.unshuffle


@dataclass(frozen=True, slots=True)
class Compact:
    """SRVGGNetCompact: `convolutions` in a row between the first and the last one."""

    features: int
    convolutions: int
    scale: int


@dataclass(frozen=True, slots=True)
class UpscaleModelRecipe:
    """A network that enlarges pictures; `names` maps the network's own names to those in the
    file.
    """

    file: FileIdentity
    shape: Rrdb | Compact
    names: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Tile:
    """The windows in which a VAE works where a whole picture takes too much memory: pixels along a
    side, and of their overlap.
    """

    side: int = 512
    overlap: int = 64
