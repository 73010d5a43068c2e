"""Describes a type of node, whatever convention its class has (inputs, outputs, the functions that
run it), and the services that a run offers it. Those are protocols, so that nodes and packs never
import the executor. Never imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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
    from katz_graph.core.recipe import Encoding, Tile, UpscaleModelRecipe, VaeRecipe
    from katz_graph.files.folders import Folders
    from katz_graph.ir.changes import PlanChanges
    from katz_graph.ir.device import Device
    from katz_graph.ir.region import Region
    from katz_graph.ir.values import TextEncoding

VARIADIC = SLOTS  # a `*name` argument of `run` is the wires name_1 to name_8, absent ones None
KNOB_SOCKETS: Mapping[type, str] = {bool: "BOOLEAN", int: "INT", float: "FLOAT", str: "STRING"}
ANY = "*"
BUILTIN = "builtin"  # the pack of the built-in nodes, and its entry point
INSTANCE = "__instance__"
FILLED_IN = frozenset(
    (
        *("UNIQUE_ID", "PROMPT", "DYNPROMPT", "EXTRA_PNGINFO"),
        # keys to other services: None here
        *("AUTH_TOKEN_COMFY_ORG", "API_KEY_COMFY_ORG", "COMFY_USAGE_SOURCE"),
    )
)
"""Values that a graph run fills in for hidden arguments."""


@dataclass(frozen=True, slots=True)
class Widget:
    """Tells the editor how to show a knob; it changes nothing in what is accepted.

    `round`: to what an editor rounds a number, where that is not its step. `dynamic_prompts`: an
    editor chooses one of `{a|b}` each time that it sends the text.
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
    """Has an input belong to choices of a knob: editors show it while one of them is chosen, and
    graphs call it `knob.name`, as ComfyUI's dynamic choices do. It has a default or is optional.
    """

    knob: str
    choices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Growing:
    """Has an input be one of a group of equal wires: editors show those that are linked and one
    more, and graphs call it `group.name`, as ComfyUI's Autogrow does. `prefix` stands before
    numbers from 0 in their names; None where each has a name of its own. The first `least` have to
    be linked, unless the wire is optional.
    """

    group: str
    prefix: str | None
    least: int


@dataclass(frozen=True, slots=True)
class Input:
    """One input of a node type: a knob (a literal, or a link that delivers one) or a wire (a link
    only, unless it has a `check`).

    `check` takes a literal, or what a link delivers to a knob, and returns the value; it raises
    ValueError. `refresh` returns the choices as they are now, where they are files. `raw`: `run`
    gets the link itself as `[node, output]`. `shown_for`: the choices of a knob that it belongs to;
    `grows`: the group that it is one of. `optional`: API prompts may leave the knob out. `options`
    are what a pack wrote of the input, for editors.
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
    refresh: Callable[[], tuple[Any, ...]] | None = None
    raw: bool = False
    shown_for: ShownFor | None = None
    grows: Growing | None = None
    optional: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def own_name(self) -> str:
        """Returns the name of the field or argument: without the group that the input is one of, or
        the knob that it belongs to.
        """
        within = self.grows.group if self.grows else self.shown_for.knob if self.shown_for else ""
        return self.name.removeprefix(f"{within}.") if within else self.name


@dataclass(frozen=True, slots=True)
class Output:
    name: str
    socket: str


@dataclass(frozen=True, slots=True)
class NodeType:
    """Describes one type of node completely.

    `run(context, inputs)` returns one value per output, or an `Expansion`, or either `WithUi`.
    `needs(inputs)` names the lazy inputs that are wanted next; lazy inputs that are not evaluated
    are None. `fingerprint(context, inputs)` returns what besides the inputs decides the result (a
    file's identity); None when nothing does. `stage` marks a node that may stand inside a step
    region and names the model function, or region role, that executes it. Each of the functions may
    be asynchronous.

    The rest is for ComfyUI's nodes only: a `run` that returns an awaitable overlaps with others;
    with `takes_lists` every input is the whole list of what came, otherwise a node is run once per
    element; an output marked in `gives_lists` is a list of values. `hidden` are arguments that the
    graph run fills in (argument -> one of FILLED_IN). `unlisted` are inputs that editors do not
    show (as a pack wrote them): what a graph gives for one reaches `run` as it is, and otherwise it
    is absent. `undeclared`: which inputs that are not declared at all reach `run`: links only, or
    all. `check(literals, link sockets)` returns further problems before the run as (input,
    message); the inputs in `unchecked` are not held to bounds and choices, and with
    `links_unchecked` `check` alone decides what may be linked. `instance` makes the object that
    stays between runs of one node of a graph; it reaches `run` as the input of the name INSTANCE.
    `per_node`: two equal nodes do not share a result. `fingerprint_linked`: whether the fingerprint
    needs the values of linked knobs, else it does without them. `about` is what else a node says of
    itself, for editors. `brings`: for a choice (knob -> value), the inputs as it declares
    them, where values of it declare inputs of one name differently; in `inputs` is what takes all
    of that.
    """

    name: str
    display_name: str
    category: str
    description: str
    inputs: Mapping[str, Input]
    outputs: tuple[Output, ...]
    is_output: bool
    run: Callable[[Context, Mapping[str, Any]], tuple[Any, ...] | Any]
    needs: Callable[[Mapping[str, Any]], tuple[str, ...]] | None = None
    fingerprint: Callable[[Context, Mapping[str, Any]], Any] | None = None
    stage: str | None = None
    pack: str = ""
    takes_lists: bool = False
    gives_lists: tuple[bool, ...] = ()
    hidden: Mapping[str, str] = field(default_factory=dict)
    unlisted: Mapping[str, Any] = field(default_factory=dict)
    undeclared: Literal["none", "links", "all"] = "none"
    check: Callable[[Mapping[str, Any], Mapping[str, str]], Iterable[tuple[str, str]]] | None = None
    unchecked: frozenset[str] = frozenset()
    instance: Callable[[], Any] | None = None
    per_node: bool = False
    links_unchecked: bool = False
    fingerprint_linked: bool = True
    about: Mapping[str, Any] = field(default_factory=dict)
    brings: Mapping[str, Mapping[Any, tuple[Input, ...]]] = field(default_factory=dict)

    @property
    def ends_region(self) -> bool:
        """Returns whether a step region ends with nodes of this type."""
        return self.stage == END

    def brought_by(self, knob: str, choice: Any = None) -> list[Input]:
        """Lists the inputs that belong to choices of a knob, or to one of them."""
        if knob in self.brings:
            of = self.brings[knob]
            return [*of.get(choice, ())] if choice is not None else [*chain(*of.values())]
        return [
            port
            for port in self.inputs.values()
            if port.shown_for is not None
            and port.shown_for.knob == knob
            and (choice is None or choice in port.shown_for.choices)
        ]

    def is_always_sent(self, port: Input) -> bool:
        """Returns true if ComfyUI's API prompts must have a value for the input: also for a widget
        with a default that is not declared optional, since editors always send it. ComfyUI packs
        declare every input themselves.
        """
        native = self.instance is None
        is_widget = native and port.knob and port.default is not None
        return port.required or (is_widget and not port.optional)

    def takes_null(self, port: Input) -> bool:
        """Returns true if null may stand for an optional input in an API prompt. Of those of packs
        ComfyUI converts numbers, and looks for choices, whether or not they are optional.
        """
        native = self.instance is None
        return native or not port.knob or port.socket not in ("INT", "FLOAT", "COMBO")

    def takes(self, name: str, value: Any) -> bool:
        """Tells whether an input that a graph gives, literal or link, reaches `run`."""
        declared = name in self.inputs or name in self.unlisted
        return (
            declared
            or self.undeclared == "all"
            or (self.undeclared == "links" and isinstance(value, Link))
        )


@dataclass(frozen=True, slots=True)
class WithUi:
    """A result of `run` with something for editors and clients, too: lists by kind, such as
    `images` or `text`.
    """

    result: Any
    ui: Mapping[str, Sequence[Any]]


class Engine(Protocol):
    """Runs what needs a model."""

    @property
    def device(self) -> Device:
        """Returns the device that it computes on."""

    @property
    def allowed(self) -> frozenset[str]:
        """Returns the approximations that runs may use, unless they choose others."""

    def sample(self, region: Region, context: Context) -> tuple[LatentSamples, LatentSamples]:
        """Compiles and runs a step region. Returns the outputs of its StepEnd: the latent, and the
        denoised one that the last step began with.
        """

    def encode_text(self, encoding: Encoding, context: Context) -> TextEncoding:
        """Returns [1, T, D], and pooled [1, P] where the family has it; float32 on the CPU."""

    def encode_image(
        self, vae: VaeRecipe, pixels: Tensor, context: Context, tile: Tile | None = None
    ) -> Tensor:
        """Encodes [B, H, W, 3] in 0..1 to the posterior's mean [B, C, H/8, W/8], unscaled; in tiles
        if asked, or where memory is short.
        """

    def decode_latent(
        self, vae: VaeRecipe, samples: Tensor, context: Context, tile: Tile | None = None
    ) -> Tensor:
        """Decodes [B, C, H/8, W/8] unscaled to float32 [B, H, W, 3] in 0..1; in tiles if asked, or
        where memory is short.
        """

    def upscale(self, model: UpscaleModelRecipe, picture: Tensor, context: Context) -> Tensor:
        """Enlarges [B, 3, H, W] in 0..1 to float32 [B, 3, H·scale, W·scale], at once."""


class Context(Protocol):
    """Offers a node the services of one run of a graph."""

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
        """Returns the text chunks for pictures that this run writes: `prompt` (the workflow) and
        what the plan says of itself.
        """

    @property
    def changes(self) -> PlanChanges:
        """Returns what this run's samplers are planned for in place of what runs have."""

    @property
    def allowed(self) -> frozenset[str]:
        """Returns the approximations that this run may use."""

    @property
    def previews(self) -> bool:
        """Tells whether this run shows previews."""

    def wants_preview(self, node: str) -> bool:
        """Tells whether to make a preview of a node now: not soon after the last time that it said
        so.
        """

    def warn(self, message: str) -> None:
        """Tells the person one line without stopping."""

    def report(self, event: Event) -> None:
        """Reports an event to the listeners."""

    def wrote(self, path: Path) -> None:
        """Announces a file that this run has finished writing."""

    def deliver(self, picture: bytes) -> None:
        """Sends a PNG file to the client that asked for this run. InputError when no client did."""

    def check_cancelled(self) -> None:
        """Raises when the run was cancelled."""

    def on_cancel(self, act: Callable[[], None]) -> Callable[[], None]:
        """Calls `act`, in any thread, when the run is cancelled, or now if it was.

        Returns the function that ends this; `act` may still be called late, after that.
        """
