"""Defines the declaration of a stage: a computation of the denoising loop, or of what precedes it,
that is counted, placed and drawn as one.

A model family declares its stages; the planner, `--place`, pictures of plans and workers read the
declarations and hold no lists of names. Must not know programs and models. Never imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Literal, Protocol

from katz_graph.ir.region import Previous, Ref

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from katz_graph.core.latent_space import LatentSpace
    from katz_graph.core.recipe import Component, ModelRecipe
    from katz_graph.ir.device import Work
    from katz_graph.ir.values import Parametrisation
    from katz_graph.sampling.noise_table import NoiseTable

NODE = "node"  # the stage of a node that has none: its own `run` is called

Gives = Literal["counted", "state", "hidden", "prediction"]
"""Says how many bytes a link carries of an output. `counted`: those that the work counts; `state`:
these and the step or state that was read; `hidden`: as many as of the hidden state that was read;
`prediction`: as many as of the latent.
"""


@dataclass(frozen=True, slots=True)
class Extent:
    """Sizes the call of a stage: `shape` of the latent [B, C, h, w] that it sees, `tokens` of its
    text, bytes of a value.
    """

    shape: tuple[int, ...]
    tokens: int
    value_bytes: int


class WorkCounts(Protocol):
    """Counts the work of a call by the configuration of its network; `costs.counts` implements
    it. `height` and `width` are the latent's.
    """

    def work(
        self,
        config: Mapping[str, Any],
        stage: str,
        batch: int,
        height: int,
        width: int,
        tokens: int,
        first_block: int = 0,
        last_block: int | None = None,
        value_bytes: int = 4,
    ) -> Work: ...


Count = Callable[[Mapping[str, Any], Extent, WorkCounts], "Work | None"]
"""Returns the work of one call from the inputs of its operation, or None if it is negligible."""


@dataclass(frozen=True, slots=True)
class Loop:
    """Holds what is decided of a request before it runs: its latent's `shape` [B, C, h, w] and
    space, the model's number format and the parametrisation of its output under its sampler, and
    the noise levels of a model.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    latent: LatentSpace
    parametrisation: Parametrisation
    table_of: Callable[[ModelRecipe], NoiseTable]


@dataclass(frozen=True, slots=True)
class Sized:
    """Holds the sizes that a stage is counted at: `height` and `width` of the latent, for VAEs too;
    `tokens` of the text; blocks as in the stages' nodes; `kept`: cross-attention
    reads keys and values made before.
    """

    batch: int
    height: int
    width: int
    tokens: int = 77
    first_block: int = 0
    last_block: int | None = None
    kept: bool = True


Example = tuple[Callable[[], "list[Tensor]"], "Sequence[nn.Module]"]
"""Pairs a call of a stage on a module without memory that gives its output tensors with the parts
of the module whose weights it reads.
"""
Module = Literal["", "model", "control_net", "encoding", "vae"]
Outputs = tuple[Any, ...]
Compute = Callable[[Any, Mapping[str, Any]], Outputs]
"""`f(module, given) -> outputs`: `given` holds the tensors that the call reads, alone or inside of
dataclasses, and constants. It changes nothing, waits for no device, and looks at no tensor's value,
so that calls can be recorded and rows of requests can share them.
"""
Bind = Callable[[Mapping[str, Any], Loop], Mapping[str, Any]]
"""Returns the arguments of a computation besides the inputs of its operation: what recipes, the
sampler and the latent's shape decide.
"""


@dataclass(frozen=True, slots=True)
class Blocks:
    """Counts the blocks of a network that a stage takes a range of; the output `last_gives` is
    there only when the range reaches the last.
    """

    count: Callable[[Component], int]
    last_gives: int


@dataclass(frozen=True, slots=True)
class Stage:
    """Declares one stage. `compute`, `bind`, `example`: the names of a `Compute`, of a `Bind`,
    and of a function from a module without memory and `Sized` to an `Example`, as
    `module:function`, imported when first called. `module`: the input whose recipe names the
    live module that computes; `encoding` is the text encoders of a device, `vae` what
    encodes pictures (None without one). `recipes`: further
    inputs that `bind` alone reads. `rows`: inputs that are a number for each row. `recorded`:
    its calls may be recorded, for it computes with tensors alone.

    `costed`: it takes long enough to be placed and drawn, and to share calls; others run on the
    device that reads them. `hoists`: its arguments that depend on no step -> the stage that
    computes each once a request. `stands_for`: stages that it does as one, where a patch wraps
    them. `blocks`: those that it takes a range of, where the last gives more than the others.
    `holds_weights`: its weights count as memory; False where another stage of the module counts
    them. `may_lag`: the number of its output that may come from the evaluation before
    (stale-controlnet). `pooled`: devices that have nothing else may serve it to several requests.
    `for_all_rows`: what it gives serves all rows of a call, so that no call of it is shared.
    `encodes_text`, `reads_text`: it computes from a prompt, or from encoded text. `placeable`,
    `group`: `--place` takes its name, and the name of several. `label`, `colour`: of a costed stage
    in pictures of plans.
    """

    name: str
    count: Count
    compute: str = ""
    bind: str = ""
    example: str = ""
    module: Module = ""
    recipes: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    recorded: bool = True
    gives: tuple[Gives, ...] = ("counted",)
    costed: bool = False
    hoists: Mapping[str, str] = field(default_factory=dict)
    stands_for: tuple[str, ...] = ()
    blocks: Blocks | None = None
    holds_weights: bool = False
    may_lag: int | None = None
    pooled: bool = False
    encodes_text: bool = False
    reads_text: bool = False
    for_all_rows: bool = False
    placeable: bool = False
    group: str = ""
    label: str = ""
    colour: str = ""

    def output(self, number: int) -> Gives:
        return self.gives[min(number, len(self.gives) - 1)]

    def bound(self, inputs: Mapping[str, Any], loop: Loop) -> Mapping[str, Any]:
        """Returns the arguments of `compute` that no operation of the request makes: the constants
        among the inputs but recipes and rows, and what `bind` adds.
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

    def computed(self, module: Any, given: Mapping[str, Any]) -> Outputs:
        outputs: Outputs = named(self.compute)(module, given)
        return outputs


def uncounted(inputs: Mapping[str, Any], extent: Extent, counts: WorkCounts) -> None:
    """Counts no work: for stages that are negligible beside a network, and for nodes of packs,
    whose work is unknown.
    """


@cache
def named(function: str) -> Callable[..., Any]:
    """Imports a function that a declaration names."""
    found: Callable[..., Any] = resolve_name(function)
    return found
