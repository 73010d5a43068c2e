"""Defines the declaration of a stage: a computation in or before the denoising loop that is
counted, placed and drawn as a unit.

Model families declare their stages. The planner, `--place`, plan pictures and workers read these,
without lists of names. Must not know programs and models. Never imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Literal, Protocol

from katz_graph.core.errors import InputError
from katz_graph.core.recipe import digest
from katz_graph.ir.region import Part, Previous, Ref

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from katz_graph.core.latent_space import LatentSpace
    from katz_graph.core.recipe import Component, ConditioningEntry, ModelRecipe
    from katz_graph.ir.device import Work
    from katz_graph.ir.values import Parametrisation
    from katz_graph.models.active import Layers
    from katz_graph.models.costs.layers import LayeredWork
    from katz_graph.sampling.noise_table import NoiseTable

ROW_LORAS = "row_loras"
"""Names the input of a call with the LoRAs of its rows (`models.row_loras`)."""
NODE = "node"  # stage of nodes that declare none: calls the node's `run`

Gives = Literal["counted", "state", "hidden", "prediction"]
"""Determines the bytes of an output sent over a link. `counted`: the work's output bytes; `state`:
these plus the bytes of the step or state input; `hidden`: at least those of the hidden state input;
`prediction`: those of the latent.
"""


@dataclass(frozen=True, slots=True)
class Extent:
    """Holds the sizes of a stage's call: latent `shape` [B, C, h, w] or, of frames, [B, C, F, h,
    w], text `tokens`, bytes per value.
    """

    shape: tuple[int, ...]
    tokens: int
    value_bytes: int
    references: tuple[tuple[int, int], ...] = ()  # cells of references before the picture


class WorkCounts(Protocol):
    """Counts the work of a call from its network's configuration; implemented by `costs.counts`."""

    def work(
        self, config: Mapping[str, Any], stage: str, sizes: Sized, value_bytes: int = 4
    ) -> Work: ...

    def layers(
        self,
        config: Mapping[str, Any],
        stage: str,
        sizes: Sized,
        active: Mapping[int, int],
        value_bytes: int = 4,
    ) -> LayeredWork: ...


Count = Callable[[Mapping[str, Any], Extent, WorkCounts], "Work | None"]
"""Returns the work of one call from the inputs of its operation, or None if it is negligible."""
Held = Callable[[Mapping[str, Any], Extent], float]
"""Returns the bytes of an output from the inputs of its operation."""
CountLayers = Callable[[Mapping[str, Any], Extent, WorkCounts, Mapping[int, int]], "LayeredWork"]
"""Returns the work of a call by transformer layer. The last argument maps the number of tokens of a
layer to the number of active ones.
"""


@dataclass(frozen=True, slots=True)
class Loop:
    """Holds a request's facts known before it runs: the latent's `shape` ([B, C, h, w], or [B, C,
    F, h, w] of frames) and space, the model's dtype, the parametrisation of its output under its
    sampler, and each model's noise table.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    latent: LatentSpace
    parametrisation: Parametrisation
    table_of: Callable[[ModelRecipe], NoiseTable]


@dataclass(frozen=True, slots=True)
class Sized:
    """Holds the sizes for counting a stage: `height` and `width` of the latent, even for VAEs;
    `tokens` of the text; the block range of stage nodes; `cached`: cross-attention reads cached
    keys and values; `layers`: what transformer layers read from a template.
    """

    batch: int
    height: int
    width: int
    tokens: int = 77
    first_block: int = 0
    last_block: int | None = None
    cached: bool = True
    layers: Layers | None = None
    references: tuple[tuple[int, int], ...] = ()  # cells of references before the picture
    prefix: bool = False  # the tokens before the picture are given as keys and values


Example = tuple[Callable[[], "list[Tensor]"], "Sequence[nn.Module]"]
"""Pairs a function that calls a stage of a module and returns the output tensors, with the
submodules that the stage uses. Inputs are random.
"""
Module = Literal["", "model", "control_net", "encoding", "vae"]
Outputs = tuple[Any, ...]
Compute = Callable[[Any, Mapping[str, Any]], Outputs]
"""`f(module, given) -> outputs`. `given` holds the input tensors, alone or inside dataclasses, and
constants. `f` has no side effects, waits for no device and reads no tensor values, so calls can be
recorded and shared by rows of several requests.
"""
Bind = Callable[[Mapping[str, Any], Loop], Mapping[str, Any]]
"""Returns arguments of a computation that follow from recipes, the sampler and the latent's shape,
given its operation's inputs and the loop.
"""


@dataclass(frozen=True)
class Reader:
    """Holds the facts of an operation whose arguments are hoisted."""

    where: str  # names the operation in errors
    base: ModelRecipe  # the model of the sampler
    model: Any  # the recipe of the module that computes the operation
    entry: ConditioningEntry  # the operation's conditioning
    part: Part | None  # the operation's part of the latent; None is the whole latent
    inputs: Mapping[str, Any]  # includes references to arguments hoisted before
    prefix: bool = False  # the tokens before the picture are computed once per request
    # hoisted arguments of the operation that makes the `features`
    previous: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def text_key(self) -> str:
        entry = self.entry
        return short_digest((entry.encoding, entry.sizes, entry.guidance))

    @cached_property
    def model_key(self) -> str:
        return short_digest(self.model)


def short_digest(value: object) -> str:
    """Returns a key for a recipe, short enough to be read in plans."""
    return digest(value)[:12]


Hoisted = tuple[str, Mapping[str, Any]]
"""A key, the same for equal inputs, and the inputs of a hoisted stage."""
Once = Callable[[Reader], "Hoisted | None"]
"""Returns a hoisted stage's key and inputs for one reader; None if the reader needs no such
argument.
"""
First = Callable[[Mapping[str, Any]], Mapping[str, "tuple[str, Hoisted]"]]
"""Returns further arguments of a hoisted stage, given its inputs: the stage that computes each of
them before, with its key and inputs.
"""


@dataclass(frozen=True, slots=True)
class Blocks:
    """Counts the blocks of a network for a stage that runs a range of them. The stage has the
    output `last_gives` only if the range includes the last block.
    """

    count: Callable[[Component], int]
    last_gives: int


@dataclass(frozen=True, slots=True)
class Stage:
    """Declares one stage. Functions are named as `module:function` and imported at the first
    call.
    """

    name: str
    count: Count
    compute: str = ""  # names a `Compute`
    bind: str = ""  # names a `Bind`
    # names a function that returns an `Example` for a module and a `Sized`
    example: str = ""
    # the input with the recipe of the computing module; `encoding`: a device's text encoders,
    # `vae`: the VAE that encodes pictures (None without one)
    module: Module = ""
    recipes: tuple[str, ...] = ()  # further inputs that only `bind` reads
    rows: tuple[str, ...] = ()  # inputs with one number per row
    recorded: bool = True  # calls may be recorded because they compute with tensors only
    # prefix of inputs that only some requests of a shared call have; `absorb` names a function
    # `f(given) -> given` that adds them to the other inputs before rows are stacked
    absorbs: str = ""
    absorb: str = ""
    gives: tuple[Gives, ...] = ("counted",)  # per output; further outputs are like the last
    # placed, drawn and shared; other stages are short and run on their reader's device
    costed: bool = False
    # arguments independent of the step -> the stage that computes them once per request, in
    # computation order
    hoists: Mapping[str, str] = field(default_factory=dict)
    once: Once | None = None  # set if other stages hoist this one
    # its calls form a chain over ranges of blocks: each is computed once, on its reader's device,
    # for one row, and reads the output of the one before it
    chained: bool = False
    # counts the bytes that its output takes on the device until the request ends
    held: Held | None = None
    first: First | None = None  # set if a hoisted stage reads others, as many as its inputs say
    replaces: tuple[str, ...] = ()  # inputs of readers that the result replaces
    # the stages that this one replaces if a patch wraps them
    stands_for: tuple[str, ...] = ()
    # set if a call runs a range of blocks and the last block has an extra output
    blocks: Blocks | None = None
    # counts the weights as memory; False if another stage of the module does
    holds_weights: bool = False
    # the output that readers may take from the previous evaluation (stale-controlnet)
    stale_output: int | None = None
    pooled: bool = False  # idle devices may compute it for several requests
    encodes_text: bool = False  # computes from a prompt
    grain: int = 32  # tokens; lengths of long texts are rounded up to multiples to be counted
    reads_text: bool = False  # computes from encoded text
    # inputs with a text that only cross-attention reads, tensors [B, T, D]: repeated along the
    # tokens it gives the same result, so requests with other lengths may share a call
    repeats: tuple[str, ...] = ()
    # set if transformer layers may compute the active tokens of an edit only
    count_layers: CountLayers | None = None
    for_all_rows: bool = False  # one result for all rows: calls are never shared
    placeable: bool = False  # `--place` accepts its name
    group: str = ""  # name of several stages in `--place`
    label: str = ""  # of a costed stage in plan pictures
    colour: str = ""  # of a costed stage in plan pictures

    def output(self, number: int) -> Gives:
        return self.gives[min(number, len(self.gives) - 1)]

    @property
    def shareable(self) -> bool:
        """Returns whether requests may share its calls: it has weights and computes with tensors
        only.
        """
        return self.costed and self.recorded

    def hoisted(self, reader: Reader) -> Hoisted | None:
        """Returns the result of `once`. Raises InputError if the stage does not declare it."""
        if self.once is None:
            raise InputError(f"the stage {self.name!r} is hoisted, but declares no `once`")
        return self.once(reader)

    def bound(self, inputs: Mapping[str, Any], loop: Loop) -> Mapping[str, Any]:
        """Returns the arguments of `compute` that no operation of the request produces: the
        constant inputs except recipes and rows, and the arguments from `bind`.
        """
        left_out = {self.module, *self.recipes, *self.rows}
        constants = {
            name: value
            for name, value in inputs.items()
            if name not in left_out and not isinstance(value, (Ref, Previous))
        }
        return constants | named(self.bind)(inputs, loop) if self.bind else constants

    def sized(self, module: Any, sizes: Sized) -> Example:
        example: Example = named(self.example)(module, sizes)
        return example

    def absorbed(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the inputs of one request without those that the stage absorbs."""
        taken: Mapping[str, Any] = named(self.absorb)(given) if self.absorb else given
        return taken

    def lasting(self, name: str) -> bool:
        """Returns whether an input's values do not change while they exist."""
        return name in self.hoists or name == ROW_LORAS

    def computed(self, module: Any, given: Mapping[str, Any]) -> Outputs:
        compute: Compute = named(self.compute)
        if ROW_LORAS not in given:
            return compute(module, given)
        outputs: Outputs = named("katz_graph.models.lora_layers:computed")(compute, module, given)
        return outputs


def uncounted(inputs: Mapping[str, Any], extent: Extent, counts: WorkCounts) -> None:
    """Counts no work, for stages negligible next to a network and for nodes of packs, whose work is
    unknown.
    """


@cache
def named(function: str) -> Callable[..., Any]:
    """Imports a function named by a declaration."""
    found: Callable[..., Any] = resolve_name(function)
    return found
