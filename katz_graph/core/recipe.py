"""Defines recipes: frozen descriptions of how to make a model, a text encoding or an image. Nodes
exchange recipes instead of live weights.

This module loads nothing. Equal recipes give the same weights and numbers, so a recipe's digest is
a cache key.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from katz_graph.core.added_fields import ADDED, Growing
from katz_graph.core.latent_space import DEFAULT_LATENT_SPACE, LatentSpace
from katz_graph.core.patches import Patch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """Identifies a version of a file: replacing the file changes its identity and every recipe that
    contains it. A file named by a URL may not be downloaded yet.
    """

    path: str  # or the URL, credentials included: display it by `files.urls.shown`
    size: int  # bytes
    modified_ns: int  # 0 for a URL
    header: str  # SHA-256 of a safetensors header, or of the whole file for configurations
    version: str = ""  # of a URL: the version that its server reports, if any
    # files in the same folder that describe how to read this one
    companions: tuple[FileIdentity, ...] = ()
    # of a URL: the `FetchRule` that admitted it, as words
    fetch: tuple[str, ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Component:
    """Describes one module: configuration and safetensors files in diffusers' folder layout, a
    tokenizer's files, or part of a single file.

    A part of a single file has the tensors whose names start with `prefix`; its configuration is
    derived from them. `rounding`: dtype to which weights are rounded before use.
    """

    folder: str  # or the single file
    files: tuple[FileIdentity, ...]
    configuration: str | None = None  # JSON
    prefix: str = ""
    rounding: str | None = None

    @property
    def weight_files(self) -> tuple[FileIdentity, ...]:
        """Returns the files with tensors: all except a folder's configuration and index."""
        return tuple(file for file in self.files if not file.path.lower().endswith(".json"))


@dataclass(frozen=True, slots=True)
class MissingComponent(Component):
    """Represents a module that a checkpoint lacks. Using it raises an error with `reason`."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Lora:
    """Describes one LoRA file at a strength. The order in a recipe is the order in the graph."""

    file: FileIdentity
    strength: float


@dataclass(frozen=True, slots=True)
class MergedComponent(Component):
    """Describes a module merged from two modules of equal shape, each with LoRAs. The inherited
    fields are those of the first.

    `scales`: (prefix of a weight's name, factor of the first, factor of the second); the first
    matching prefix applies.
    """

    sources: tuple[tuple[Component, tuple[Lora, ...]], ...] = ()
    scales: tuple[tuple[str, float, float], ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class ModelRecipe(Growing):
    """Describes a network with LoRAs and patches. `scheduler`: noise table and prediction type of
    its training; `latent`: its latent space. `controls` apply to all conditioning, in addition to
    the conditioning's own. `template`: for masked requests, if cached activations are allowed.
    """

    network: Component
    scheduler: Component
    latent: LatentSpace = DEFAULT_LATENT_SPACE
    loras: tuple[Lora, ...] = ()
    patches: tuple[Patch, ...] = ()
    controls: tuple[ControlUse, ...] = ()
    template: EditTemplate | None = None

    @property
    def weights(self) -> tuple[Component, tuple[Lora, ...]]:
        """Returns the network and the LoRAs to merge into its weights."""
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
    """Describes a textual inversion and its name in prompts."""

    name: str
    file: FileIdentity


Pooling = Literal["last", "joined", "plain"]
Dropped = Literal["", "system", "prefix"]


@dataclass(frozen=True, slots=True)
class Fill:
    """Describes the pad tokens of a text for a long-text encoder."""

    least: int = 1  # minimum number of tokens with the pad tokens
    multiple: int = 1  # the number is a multiple of it
    more: int = 0  # pad tokens of every text
    left: bool = False  # before the text
    masked: bool = True  # for the encoder's attention
    position: int | None = None  # of all pad tokens in the encoder; None: counted like the text's

    def length(self, tokens: int) -> int:
        """Returns the number of tokens of a filled text of `tokens` tokens."""
        return -(-max(tokens + self.more, self.least) // self.multiple) * self.multiple


@dataclass(frozen=True, slots=True, repr=False)
class TextLayout(Growing):
    """Describes how a model combines its text encoders: tokens of the CLIP encoders, concatenated
    along the channels, then tokens of a long-text encoder. Narrower tokens are zero-padded.
    """

    pooled: Pooling = "last"
    """Source of the pooled text. `last`: the last CLIP encoder, if it projects; `joined`: all
    concatenated, the last one projected; `plain`: all concatenated, not projected.
    """
    clip_rows: bool = True
    """Whether the model reads the tokens of the CLIP encoders."""
    padding: int = 0
    """Pad tokens added to every text of the long-text encoder."""
    least: int = 1
    """Minimum length to which texts of the long-text encoder are padded."""
    template: str = ""
    """Chat template around a text of the long-text encoder; disables prompt weights."""
    from_end: int = 1
    """Hidden state of the long-text encoder to use: 1 is the last, after the final norm."""
    lengths: tuple[int, ...] = ()
    """Fixed token count per encoder. Texts are truncated or padded to it; padding is masked."""

    states: tuple[int, ...] = field(default=(), metadata=ADDED)
    """Hidden states of the long-text encoder to use in place of that of `from_end`, side by side
    along the channels: n is the output of the n-th layer, 0 the embedding. Without final norm.
    """
    raw: bool = field(default=False, metadata=ADDED)
    """Whether the last hidden state is taken before the final norm."""
    opening: str = field(default="", metadata=ADDED)
    """Text at the start of a prompt that brings its own template, which replaces `template`."""
    empty: str = field(default="", metadata=ADDED)
    """Text in place of an empty one."""
    dropped: Dropped = field(default="", metadata=ADDED)
    """Tokens at the start that only the encoder reads, not the model. `system`: the chat's system
    turn; `prefix`: all before the words of the user's turn.
    """
    fill: Fill | None = field(default=None, metadata=ADDED)
    """Pad tokens that the encoder and the model read; None: as `least` and `lengths` say."""
    with_pictures: str = field(default="", metadata=ADDED)
    """Chat template in place of `template` for prompts with pictures."""
    words: int = field(default=0, metadata=ADDED)
    """Number of T5's words that the network embeds, at most; 0 if it embeds none. The prompt's
    weights are those of these words, not of the text encoder's tokens.
    """

    @property
    def state_count(self) -> int:
        """Counts the hidden states side by side."""
        return len(self.states) or 1

    def length(self, encoder: int) -> int:
        """Returns the fixed text length of the n-th text encoder, 0 if it is variable."""
        return self.lengths[encoder] if self.lengths else 0

    def filled(self, length: int) -> Fill:
        """Returns the fill of a long text of the fixed length `length`, 0 if it is variable.
        Attention masks it only if the length is fixed, because the published models were trained
        so.
        """
        return self.fill or Fill(max(self.least, length), more=self.padding, masked=bool(length))


DEFAULT_LAYOUT = TextLayout()


@dataclass(frozen=True, slots=True)
class ClipRecipe:
    """Describes a model's text encoders with LoRAs and the textual inversions in a prompt.

    `last_layer`: ComfyUI's stop_at_clip_layer; None for the family's default.
    """

    encoders: tuple[TextEncoderRecipe, ...]
    loras: tuple[Lora, ...] = ()
    last_layer: int | None = None
    learned: tuple[LearnedWords, ...] = ()
    layout: TextLayout = DEFAULT_LAYOUT

    @property
    def missing(self) -> MissingComponent | None:
        """Returns the placeholder if the checkpoint lacks text encoders, else None."""
        first = self.encoders[0].encoder if self.encoders else None
        return first if isinstance(first, MissingComponent) else None

    def with_lora(self, lora: Lora) -> ClipRecipe:
        return replace(self, loras=(*self.loras, lora))


@dataclass(frozen=True, slots=True)
class TokenSampling:
    """Describes how a language model draws its next token. The penalties apply to tokens that it
    has made; then come the temperature, `top_k` (0: all), `top_p` and `min_p`, and one draw with a
    generator on the CPU.
    """

    seed: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0  # divides positive scores and multiplies negative ones
    presence_penalty: float = 0.0  # subtracted from scores


@dataclass(frozen=True, slots=True)
class TextRequest:
    """Asks a language model for text of at most `max_tokens` tokens. `pictures`: before the prompt.

    `template`: the prompt is the user's turn of a chat, after the turn `system` if that is not
    empty; otherwise it is continued as it is. `thinking`: the model may reason first. Without
    `sampling`, it takes the most probable token.
    """

    prompt: str
    max_tokens: int
    system: str = ""
    template: bool = True
    thinking: bool = False
    sampling: TokenSampling | None = None
    pictures: tuple[Picture, ...] = ()


@dataclass(frozen=True, slots=True)
class VaeRecipe:
    vae: Component

    @property
    def missing(self) -> MissingComponent | None:
        """Returns the placeholder if the checkpoint lacks a VAE, else None."""
        return self.vae if isinstance(self.vae, MissingComponent) else None


@dataclass(frozen=True, slots=True)
class ControlNetRecipe:
    """Describes a ControlNet. `types`: kinds of reference for a union ControlNet. `base`: network
    to which the file's weights are added.
    """

    control_net: Component
    types: tuple[int, ...] = ()
    base: Component | None = None


@dataclass(frozen=True, slots=True)
class Picture:
    """Holds a picture, mask or latent inside a recipe; equal if its bytes are equal."""

    digest: str
    pixels: Tensor = field(compare=False, repr=False)  # float32; a picture is [B, H, W, C], 0..1

    @classmethod
    def of(cls, pixels: Tensor) -> Picture:
        return cls(tensor_digest(pixels), pixels.detach().cpu().contiguous())


@dataclass(frozen=True, slots=True, repr=False)
class ControlUse(Growing):
    """Applies a ControlNet to a conditioning: reference image, strength and window of the schedule
    (fractions).

    `spreads`: also applies to the negative conditioning if that has no ControlNet. `vae` encodes
    the image for a ControlNet that reads latents. `mask`: for an inpainting ControlNet, [B, H, W];
    1 = keep.
    """

    control_net: ControlNetRecipe
    image: Picture
    strength: float = 1.0
    start_percent: float = 0.0
    end_percent: float = 1.0
    spreads: bool = False
    vae: VaeRecipe | None = None
    mask: Picture | None = field(default=None, metadata=ADDED)


@dataclass(frozen=True, slots=True, repr=False)
class Prompt(Growing):
    """Describes a text for all text encoders. `further`: other texts for the second, third, ...
    encoder. `absent`: encoders without text; their part of the encoding is zeros or omitted.
    """

    clip: ClipRecipe
    text: str
    further: tuple[str, ...] = ()
    absent: tuple[int, ...] = ()
    pictures: tuple[Picture, ...] = field(default=(), metadata=ADDED)
    """Pictures [1, H, W, 3] that text encoders see before the text."""
    captions: tuple[str, ...] = field(default=(), metadata=ADDED)
    """Text before each picture; none by default."""
    template: str = field(default="", metadata=ADDED)
    """Chat template in place of the layout's, if that has one."""

    @property
    def layout(self) -> TextLayout:
        """Returns the layout with the chat template of this prompt."""
        layout = self.clip.layout
        template = self.template or (layout.with_pictures if self.pictures else "")
        return replace(layout, template=template) if template and layout.template else layout

    def text_of(self, encoder: int) -> str:
        """Returns the text of the n-th text encoder."""
        return self.further[encoder - 1] if 0 < encoder <= len(self.further) else self.text


@dataclass(frozen=True, slots=True)
class SeenPicture:
    """Describes a picture as a text encoder's vision tower reads it."""

    tower: Component
    picture: Picture


@dataclass(frozen=True, slots=True)
class Joined:
    """Concatenates two encodings along the tokens, with the first one's pooled text."""

    first: Encoding
    second: Encoding


@dataclass(frozen=True, slots=True)
class Averaged:
    """Averages two encodings with weight `share` on the first. The second is truncated or padded to
    the first one's length.
    """

    first: Encoding
    second: Encoding
    share: float


@dataclass(frozen=True, slots=True)
class Zeroed:
    """Describes zeros in the shape of an encoding."""

    encoding: Encoding


@dataclass(frozen=True, slots=True)
class Given:
    """Holds a precomputed encoding; equal if its bytes are equal."""

    digest: str
    hidden: Tensor = field(compare=False, repr=False)  # [1, T, D]
    pooled: Tensor | None = field(compare=False, repr=False)  # [1, P]

    @classmethod
    def of(cls, hidden: Tensor, pooled: Tensor | None) -> Given:
        parts = [tensor_digest(tensor) for tensor in (hidden, pooled) if tensor is not None]
        return cls(" ".join(parts), hidden, pooled)


Encoding = Prompt | Joined | Averaged | Zeroed | Given
"""Recipe of a text encoding, computed when a sampler needs it."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Picture sizes that some models are conditioned on, in pixels; None for the sampled size. A
    refiner reads a score instead of the target size.
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
    """Part of the picture, in latent cells, or in fractions of its sides if `relative`."""

    top: float
    left: float
    height: float
    width: float
    relative: bool = False


@dataclass(frozen=True, slots=True)
class MaskUse:
    """Limits a conditioning to a mask at a strength. `bounds`: compute only the bounding box of the
    mask.
    """

    mask: Picture  # [B, H, W]
    strength: float = 1.0
    bounds: bool = False


@dataclass(frozen=True, slots=True)
class Concatenated:
    """Extra model input channels: a latent (as nodes pass it) and, for inpainting, a mask (1 =
    repaint).

    Without a mask, an inpainting model repaints a whole blank picture.
    """

    latent: Picture | None = None  # [B, C, h, w]
    mask: Picture | None = None  # [B, H, W] or [B, 1, H, W] in any size


ReferencePlacing = Literal[
    "offset", "index", "uxo", "index_timestep_zero", "negative_index", "apart"
]


@dataclass(frozen=True, slots=True)
class References:
    """Latents, as nodes pass them, that an editing model reads as extra tokens.

    `placing`: positions of these tokens: adjacent on a second plane, each latent on a separate
    plane, or diagonally after the picture's corner; each on a separate plane and with timestep 0,
    on planes before the picture's, or attending to references only. A family takes some of these,
    and may replace the default by its own.
    """

    latents: tuple[Picture, ...]  # [B, C, h, w]
    placing: ReferencePlacing = "offset"


@dataclass(frozen=True, slots=True)
class ConditioningEntry:
    """One prompt with its controls, area and further conditioning."""

    encoding: Encoding
    control: tuple[ControlUse, ...] = ()
    strength: float = 1.0
    start_percent: float = 0.0
    end_percent: float = 1.0
    area: Area | None = None
    mask: MaskUse | None = None
    sizes: Sizes | None = None
    concatenated: Concatenated | None = None
    # guidance input of a distilled model; None: the model's default, "off": no guidance
    guidance: float | Literal["off"] | None = None
    references: References | None = None

    def with_control(self, use: ControlUse) -> ConditioningEntry:
        return replace(self, control=(*self.control, use))


Conditioning = tuple[ConditioningEntry, ...]
"""Prompts that apply together."""


@dataclass(frozen=True, slots=True)
class EditTemplate:
    """Describes the picture that masked requests edit: its latent, as nodes pass it, and the texts
    that describe it. `margin`: cells around the mask whose tokens are computed too.
    """

    latent: Picture  # [B, C, h, w]
    positive: Conditioning
    negative: Conditioning
    margin: int


def digest(recipe: object) -> str:
    """Returns the SHA-256 of a recipe's repr. The repr is complete: frozen dataclasses of strings
    and numbers, with digests for pixels. It lacks `ADDED` fields at their defaults.
    """
    return hashlib.sha256(repr(recipe).encode()).hexdigest()


def tensor_digest(tensor: Tensor) -> str:
    """Returns the SHA-256 of a tensor's shape, dtype and bytes."""
    import torch

    data = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
    return hashlib.sha256(
        str((tuple(tensor.shape), str(tensor.dtype))).encode() + data.tobytes()
    ).hexdigest()


@dataclass(frozen=True, slots=True)
class Rrdb:
    """Describes an RRDBNet: pixel-unshuffles by `unshuffle`, then doubles the size `doublings`
    times.
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
    """Describes an SRVGGNetCompact with `convolutions` inner convolutions between the first and the
    last.
    """

    features: int
    convolutions: int
    scale: int


@dataclass(frozen=True, slots=True)
class UpscaleModelRecipe:
    """Describes an upscaling network; `names` maps the network's parameter names to those in the
    file.
    """

    file: FileIdentity
    shape: Rrdb | Compact
    names: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Tile:
    """Describes the windows of a tiled VAE, to save memory: side and overlap in pixels."""

    side: int = 512
    overlap: int = 64
