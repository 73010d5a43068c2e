"""Describes node types (inputs, outputs, functions) independently of their class convention, and
the services of a run as protocols, so that nodes and packs never import the executor. Never imports
torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from katz_graph.core.graph import Link
from katz_graph.ir.region import END, SLOTS

if TYPE_CHECKING:
    from torch import Tensor

    from katz_graph.core.events import Event
    from katz_graph.core.latent_space import LatentSamples
    from katz_graph.core.recipe import (
        ClipRecipe,
        Encoding,
        TextRequest,
        Tile,
        UpscaleModelRecipe,
        VaeRecipe,
    )
    from katz_graph.files.folders import Folders
    from katz_graph.ir.changes import PlanChanges
    from katz_graph.ir.device import Device
    from katz_graph.ir.region import Region
    from katz_graph.ir.values import TextEncoding

VARIADIC = SLOTS  # a `*name` argument of `run` becomes wires name_1 to name_8, None if absent
KNOB_SOCKETS: Mapping[type, str] = {bool: "BOOLEAN", int: "INT", float: "FLOAT", str: "STRING"}
ANY = "*"
BUILTIN = "builtin"  # pack name and entry point of the built-in nodes
INSTANCE = "__instance__"
FILLED_IN = frozenset(
    (
        *("UNIQUE_ID", "PROMPT", "DYNPROMPT", "EXTRA_PNGINFO"),
        # keys to other services: always None
        *("AUTH_TOKEN_COMFY_ORG", "API_KEY_COMFY_ORG", "COMFY_USAGE_SOURCE"),
    )
)
"""Values that the graph run passes to hidden arguments."""


@dataclass(frozen=True, slots=True)
class Widget:
    """Configures how the editor shows a knob, without effect on accepted values.

    `round`: rounding of numbers, if it differs from the step. `dynamic_prompts`: the editor picks
    one of `{a|b}` each time it submits the text.
    """

    step: float | None = None
    round: float | None = None
    multiline: bool = False
    dynamic_prompts: bool = False
    control_after_generate: bool = False
    upload: bool = False
    colour: bool = False


@dataclass(frozen=True, slots=True)
class ShownFor:
    """Ties an input to choices of a knob: editors show it while one of the choices is selected, and
    graphs name it `knob.name`, like ComfyUI's dynamic choices. The input has a default or is
    optional.
    """

    knob: str
    choices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Growing:
    """Makes an input part of a growing group of equal wires: editors show the linked inputs and one
    more; graphs name each `group.name`, like ComfyUI's Autogrow. `prefix`: common prefix of
    numbered names, from 0; None for individual names. The first `least` must be linked unless
    optional.
    """

    group: str
    prefix: str | None
    least: int


@dataclass(frozen=True, slots=True)
class Input:
    """Describes one input of a node type: a knob (a literal or a link) or a wire (a link only,
    unless it has a `check`).
    """

    name: str
    socket: str
    required: bool
    knob: bool
    default: Any = None
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[Any, ...] | None = None
    folder: str | None = None
    lazy: bool = False
    help: str = ""
    widget: Widget = Widget()
    check: Callable[[Any], Any] | None = None
    """Converts a literal, or the value of a link into a knob; raises ValueError if it is invalid.
    """
    refresh: Callable[[], tuple[Any, ...]] | None = None
    """Returns the current choices, if they are files."""
    raw: bool = False
    """Whether `run` gets the link itself as `[node, output]`."""
    shown_for: ShownFor | None = None
    """The knob's choices that this input belongs to."""
    grows: Growing | None = None
    """The growing group that this input is part of."""
    optional: bool = False
    """Whether API prompts may omit the knob."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The pack's declaration of the input, for editors."""

    @property
    def own_name(self) -> str:
        """Returns the name of the field or argument, without its group or knob."""
        within = self.grows.group if self.grows else self.shown_for.knob if self.shown_for else ""
        return self.name.removeprefix(f"{within}.") if within else self.name


@dataclass(frozen=True, slots=True)
class Output:
    name: str
    socket: str


@dataclass(frozen=True, slots=True)
class NodeType:
    """Describes one node type completely. The functions may be asynchronous. Fields from `hidden`
    on serve ComfyUI's nodes only.
    """

    name: str
    display_name: str
    category: str
    description: str
    inputs: Mapping[str, Input]
    outputs: tuple[Output, ...]
    is_output: bool
    run: Callable[[Context, Mapping[str, Any]], tuple[Any, ...] | Any]
    """Returns one value per output, or an `Expansion`, or either in a `WithUi`. If it returns an
    awaitable, the node overlaps with others.
    """
    needs: Callable[[Mapping[str, Any]], tuple[str, ...]] | None = None
    """Returns the names of the lazy inputs to evaluate next; lazy inputs not yet evaluated are
    None.
    """
    fingerprint: Callable[[Context, Mapping[str, Any]], Any] | None = None
    """Returns further data that determines the result, such as a file's identity, or None."""
    stage: str | None = None
    """Model function or region role of a node inside a step region; None elsewhere."""
    pack: str = ""
    takes_lists: bool = False
    """Whether each input is a whole list. If not, the node runs once per element."""
    gives_lists: tuple[bool, ...] = ()
    """Marks the outputs that are lists of values."""
    hidden: Mapping[str, str] = field(default_factory=dict)
    """Maps arguments that the graph run fills in to one of FILLED_IN."""
    unlisted: Mapping[str, Any] = field(default_factory=dict)
    """Inputs that editors do not show, as declared by the pack. `run` gets the graph's value
    unchecked, or nothing.
    """
    undeclared: Literal["none", "links", "all"] = "none"
    """Which undeclared inputs reach `run`."""
    check: Callable[[Mapping[str, Any], Mapping[str, str]], Iterable[tuple[str, str]]] | None = None
    """Takes literals and the sockets of links; returns further problems before the run as (input,
    message).
    """
    unchecked: frozenset[str] = frozenset()
    """Inputs exempt from checks of bounds and choices."""
    instance: Callable[[], Any] | None = None
    """Creates the object that persists between runs of one node of a graph. `run` gets it as input
    INSTANCE.
    """
    per_node: bool = False
    """Whether equal nodes compute their results separately."""
    links_unchecked: bool = False
    """Whether `check` alone decides which links are valid."""
    fingerprint_linked: bool = True
    """Whether the fingerprint needs the values of linked knobs."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """Further attributes of the node, for editors."""
    choice_inputs: Mapping[str, Mapping[Any, tuple[Input, ...]]] = field(default_factory=dict)
    """If choices of a knob declare inputs of equal name differently: the inputs that each choice
    declares, by knob and choice. `inputs` then has one input that accepts all variants.
    """

    @property
    def ends_region(self) -> bool:
        """Returns whether a step region ends with nodes of this type."""
        return self.stage == END

    def brought_by(self, knob: str, choice: Any = None) -> list[Input]:
        """Returns the inputs that belong to a choice of a knob, or to any of its choices."""
        if knob in self.choice_inputs:
            of = self.choice_inputs[knob]
            return [*of.get(choice, ())] if choice is not None else [*chain(*of.values())]
        return [
            port
            for port in self.inputs.values()
            if port.shown_for is not None
            and port.shown_for.knob == knob
            and (choice is None or choice in port.shown_for.choices)
        ]

    def is_always_sent(self, port: Input) -> bool:
        """Returns whether API prompts must set the input. Editors always send widgets, so a widget
        with a default is required unless declared optional. ComfyUI packs declare this per input.
        """
        native = self.instance is None
        is_widget = native and port.knob and port.default is not None
        return port.required or (is_widget and not port.optional)

    def takes_null(self, port: Input) -> bool:
        """Returns whether an API prompt may set an optional input to null. ComfyUI rejects null for
        numbers and choices of packs even if they are optional.
        """
        native = self.instance is None
        return native or not port.knob or port.socket not in ("INT", "FLOAT", "COMBO")

    def takes(self, name: str, value: Any) -> bool:
        """Returns whether `run` gets an input that a graph sets to this literal or link."""
        declared = name in self.inputs or name in self.unlisted
        return (
            declared
            or self.undeclared == "all"
            or (self.undeclared == "links" and isinstance(value, Link))
        )


@dataclass(frozen=True, slots=True)
class WithUi:
    """Adds data for editors and clients to a result of `run`: lists by kind, such as `images` or
    `text`.
    """

    result: Any
    ui: Mapping[str, Sequence[Any]]


class Engine(Protocol):
    """Runs the operations that need a model."""

    @property
    def device(self) -> Device:
        """Returns the device of the engine."""

    @property
    def allowed(self) -> frozenset[str]:
        """Returns the approximations allowed by default."""

    def sample(self, region: Region, context: Context) -> tuple[LatentSamples, LatentSamples]:
        """Compiles and runs a step region. Returns the outputs of its StepEnd: the latent, and the
        denoised prediction of the last step.
        """

    def encode_text(self, encoding: Encoding, context: Context) -> TextEncoding:
        """Returns [1, T, D], and pooled [1, P] if the family has it; float32 on the CPU."""

    def encode_image(
        self, vae: VaeRecipe, pixels: Tensor, context: Context, tile: Tile | None = None
    ) -> Tensor:
        """Encodes [B, H, W, 3] in 0..1 to the unscaled posterior mean [B, C, H/8, W/8]. Uses tiles
        on request or if memory is short.
        """

    def decode_latent(
        self, vae: VaeRecipe, samples: Tensor, context: Context, tile: Tile | None = None
    ) -> Tensor:
        """Decodes unscaled [B, C, H/8, W/8] to float32 [B, H, W, 3] in 0..1. Uses tiles on request
        or if memory is short.
        """

    def upscale(self, model: UpscaleModelRecipe, picture: Tensor, context: Context) -> Tensor:
        """Upscales [B, 3, H, W] in 0..1 to float32 [B, 3, H·scale, W·scale] without tiling."""

    def generate_text(
        self,
        clip: ClipRecipe,
        request: TextRequest,
        context: Context,
        progress: Callable[[int], None] = lambda tokens: None,
    ) -> str:
        """Returns the text that a language model generates. Calls `progress` with the number of
        tokens so far. Raises InputError if the text encoders cannot generate text.
        """

    def prefetch(self, values: Iterable[object], context: Context) -> None:
        """Announces recipes of models, among other values, that later nodes will use."""


class Context(Protocol):
    """Defines the services of one graph run for its nodes."""

    @property
    def engine(self) -> Engine: ...

    @property
    def folders(self) -> Folders: ...

    @property
    def types(self) -> Mapping[str, NodeType]:
        """Returns the node types of this run, by name."""

    @property
    def output_directory(self) -> Path: ...

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Returns the text chunks for pictures of this run: `prompt` (the workflow) and facts about
        the plan.
        """

    @property
    def changes(self) -> PlanChanges:
        """Returns this run's overrides of the planner's defaults."""

    @property
    def allowed(self) -> frozenset[str]:
        """Returns the approximations that this run may use."""

    @property
    def previews(self) -> bool:
        """Returns whether this run shows previews."""

    @property
    def progress_interval(self) -> float:
        """Returns the minimum seconds between two reports of a sampler's evaluations; the last one
        is always reported.
        """

    @property
    def arrival(self) -> float:
        """Returns when this run arrived, in seconds: devices serve the earliest run first."""

    @property
    def due(self) -> float:
        """Returns when this run should end, on the clock of `arrival`; inf if at no time."""

    @property
    def seconds_after(self) -> Mapping[str, float]:
        """Returns the predicted seconds from the last evaluation of each sampler to the end of this
        run, by the end node of its region; those not known are absent.
        """

    @property
    def client(self) -> str:
        """Returns the client that this run belongs to: clients share devices equally."""

    def wants_preview(self, node: str) -> bool:
        """Returns whether to make a preview of a node now; limits the rate per node."""

    def warn(self, message: str) -> None:
        """Shows the user a one-line warning; the run continues."""

    def report(self, event: Event) -> None:
        """Reports an event to the listeners."""

    def wrote(self, path: Path) -> None:
        """Announces a file that this run has finished writing."""

    def deliver(self, picture: bytes) -> None:
        """Sends a PNG file to this run's client. Raises InputError if no client requested it."""

    def check_cancelled(self) -> None:
        """Raises Cancelled if the run was cancelled."""

    def in_pack_code(self) -> AbstractContextManager[None]:
        """Lets no other run of this process execute code of packs meanwhile."""

    def waiting(self) -> AbstractContextManager[None]:
        """Lets other runs execute code of packs while this run waits for a device."""

    def on_cancel(self, act: Callable[[], None]) -> Callable[[], None]:
        """Calls `act` in any thread when the run is cancelled, or immediately if it already is.

        Returns a function that unregisters `act`; a concurrent call may still happen.
        """
