"""Compiles the kernels of workflows' models ahead, without weights and without a GPU."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from katz_graph.core.errors import InputError
from katz_graph.core.recipe import Component, Tile, VaeRecipe
from katz_graph.executor.planning import plan_region
from katz_graph.executor.rehearsal import DEVICE, PlanningEngine
from katz_graph.ir.device import Target, Work
from katz_graph.ir.program import Program
from katz_graph.kernels.configurations import capability
from katz_graph.models.costs.counts import Counts, padded
from katz_graph.models.families.shared.stages import VAE_DECODE, VAE_ENCODE
from katz_graph.models.family import family_of_class
from katz_graph.models.stage_registry import stage as declared
from katz_graph.models.stages import Sized, Stage
from katz_graph.models.text.kinds import kind_named
from katz_graph.models.vae.kinds import latent_space, overflows
from katz_graph.node.types import Context

if TYPE_CHECKING:
    from katz_graph.kernels.triton.ahead import Counted as Counted

BFLOAT16 = 80  # first architecture with products of bfloat16


@dataclass(frozen=True, slots=True)
class Call:
    """Holds a call of a stage of a module: its component, the stage and the sizes. `wide`: the
    module overflows in float16.
    """

    part: Component
    wide: bool
    stage: str
    sizes: Sized


class _Notes(Counts):
    """Notes the calls that the planner counts, and counts none."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []

    def work(
        self, config: Mapping[str, Any], stage: str, sizes: Sized, value_bytes: int = 4
    ) -> Work:
        name = config.get("_class_name")
        family = family_of_class(name)
        wide = kind_named(config).overflows if family is None else family.network.overflows
        part = Component(name or "text encoder", (), json.dumps(dict(config), sort_keys=True))
        sizes = padded(config, replace(sizes, tokens=max(1, sizes.tokens)))
        self.calls.append(Call(part, wide, stage, sizes))
        if not declared(stage).encodes_text:  # both branches of guidance in one call
            self.calls.append(Call(part, wide, stage, replace(sizes, batch=2 * sizes.batch)))
        return Work()


@dataclass(slots=True)
class StageCalls(PlanningEngine[Program]):
    """Collects the calls of a workflow's model stages, without running them."""

    notes: _Notes = field(default_factory=_Notes)

    @classmethod
    def collector(cls) -> StageCalls:
        notes = _Notes()
        compile = partial(plan_region, target=Target((DEVICE,)), counts=notes, after="cost")
        return cls(DEVICE, compile, notes=notes)

    @property
    def calls(self) -> list[Call]:
        return list(dict.fromkeys(self.notes.calls))

    def encode_image(
        self, vae: VaeRecipe, pixels: Tensor, context: Context, tile: Tile | None = None
    ) -> Tensor:
        latent = PlanningEngine.encode_image(self, vae, pixels, context, tile)
        self._note(VAE_ENCODE, vae, latent, tile)
        return latent

    def decode_latent(
        self, vae: VaeRecipe, samples: Tensor, context: Context, tile: Tile | None = None
    ) -> Tensor:
        self._note(VAE_DECODE, vae, samples, tile)
        return PlanningEngine.decode_latent(self, vae, samples, context, tile)

    def _note(self, stage: Stage, vae: VaeRecipe, latent: Tensor, tile: Tile | None) -> None:
        batch, (height, width) = len(latent), latent.shape[-2:]
        if tile is not None:
            side = tile.side // latent_space(vae).factor
            height, width = min(side, height), min(side, width)
        sizes = Sized(batch, height, width)
        self.notes.calls.append(Call(vae.vae, overflows(vae), stage.name, sizes))


def this_architecture() -> int:
    """Returns the architecture of this machine's first GPU, such as 90 for sm90. Raises InputError
    without a GPU.
    """
    if not torch.cuda.is_available():
        raise InputError("this machine has no GPU: name the architecture, such as --arch sm90")
    return capability(torch.device("cuda"))


def compile_ahead(calls: Iterable[tuple[Call, torch.dtype]], architecture: int) -> Counted:
    """Compiles the kernels of calls for an architecture, such as 90 for sm90, into Triton's cache.
    The dtypes are those of modules that do not overflow in them. Raises InputError without Triton.
    """
    from katz_graph.models.costs.stage_cost import FusedAttention
    from katz_graph.models.loading.convert import formats
    from katz_graph.models.loading.store import shell

    class AsOnGpu(FusedAttention):
        """Also returns channels-last results of convolutions, as GPUs do for channels-last weights.
        The meta device returns contiguous ones.
        """

        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = super().__torch_function__(function, types, args, kwargs)
            if function is torch.conv2d:
                return result.contiguous(memory_format=torch.channels_last)
            return result

    try:
        from katz_graph.kernels.triton.ahead import compiling
    except ImportError as error:
        raise InputError(
            f"Triton is not installed, so there are no kernels to compile ({error})"
        ) from None
    wide = torch.bfloat16 if architecture >= BFLOAT16 else torch.float32
    modules: dict[tuple[Component, torch.dtype], list[Call]] = {}
    for call, dtype in dict.fromkeys(calls):
        overflowing = call.wide and dtype == torch.float16
        modules.setdefault((call.part, wide if overflowing else dtype), []).append(call)
    with compiling(architecture) as counted, torch.no_grad(), AsOnGpu():
        for (part, dtype), ours in modules.items():
            module = shell(part, torch.device("meta"), dtype, formats(part))
            for call in ours:
                run, _ = declared(call.stage).sized(module, call.sizes)
                run()
    return counted
