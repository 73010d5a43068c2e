"""Draws the requests of random groups, for part `groups` of `katz bench together`.

The requests of a group have one model, one size in latent cells, which may be odd, one size of most
areas, and one number of references. LoRAs have one strength in all requests, which may be 0, or
each its own. All else is drawn for each request:

- prompts of one to three parts, areas, hard and soft masks, starting latents, references and their
  positions, picture inputs of inpainting and editing models
- up to two ControlNets with windows and strengths, LoRAs
- any sampler, scheduler, steps, denoising, guidance 1 or 7, guidance that a model takes as an
  input, one to three pictures
- on two workers: the planner's placement, stages placed at random, or ControlNets one step behind
  on the second worker
- the time of its start

One request of a group may be cancelled during its evaluations, and a worker may be killed while
requests share its calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from random import Random
from typing import Any, Literal

import torch
from torch import Tensor

from katz_graph.bench.random_graphs import (
    AREA,
    SCHEDULERS,
    WORDS,
    Drawn,
    checkpoints,
    draw,
    pixels,
)
from katz_graph.bench.random_requests import Search
from katz_graph.core.graph import NodeCall
from katz_graph.core.recipe import (
    ClipRecipe,
    Conditioning,
    ConditioningEntry,
    ControlUse,
    Lora,
    MaskUse,
    Picture,
    Prompt,
    ReferencePlacing,
    References,
)
from katz_graph.ir.region import Region
from katz_graph.models.loading.identity import file_identity
from katz_graph.models.loading.sources import controlnet_recipe, pipeline_recipes
from katz_graph.packs import builtin_types
from katz_graph.planner.passes.expand import expand_sampling
from katz_graph.testing.random_models import Kind, make_controlnet, make_lora, make_pipeline
from katz_graph.testing.requests import bind

TRANSFORMERS: tuple[Kind, ...] = ("sd35", "flux")
REFERRING: Kind = "flux"  # reads reference latents, and guidance as an input
CONTROLS, LORAS = 2, 2  # files of each kind of transformer
SIDES = (8, 9, 11, 12, 16)  # latent cells
GUIDANCE = (1.0, 7.0)
PLACINGS: tuple[ReferencePlacing, ...] = ("offset", "index")
STEPS = 3, 7
MAX_DELAY_S = 0.05  # between the starts of a group's requests
MAX_SHARED_CALLS = 8  # before a worker is killed
Placement = Literal["chosen", "scattered", "stale"]


@dataclass(frozen=True, slots=True)
class Member:
    """Describes a request of a group."""

    region: Region
    placement: Placement  # on two workers
    seed: int  # of a scattered placement
    delay: float  # seconds until it starts
    cancelled_after: int | None  # evaluations


@dataclass(frozen=True, slots=True)
class Group:
    model: str
    members: Sequence[Member]
    # shared calls on a worker, after which the worker is killed
    killed_after: int | None


class Models:
    """Holds the models of groups. Use it in a `with` statement. `cache`: folder of measurements."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self._folder, self._cache = folder, cache
        self._opened = ExitStack()
        for kind in TRANSFORMERS:
            make_pipeline(folder / kind, kind, 1)
            for number in range(CONTROLS):
                make_controlnet(folder / f"{kind}-control{number}", kind, 2 + number)
            for number in range(LORAS):
                make_lora(folder / f"{kind}-lora{number}.safetensors", kind, 4, 4 + number)

    def __enter__(self) -> Models:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    @cached_property
    def _search(self) -> Search:
        """Draws requests for other networks. Writes their models, which takes seconds."""
        return self._opened.enter_context(Search(self._folder, self._cache))

    def draw(self, seed: int) -> Group:
        """Draws the group of a seed."""
        chance = Random(seed)
        model = chance.choice([*checkpoints(), *TRANSFORMERS])
        height, width = chance.choice(SIDES), chance.choice(SIDES)
        common = _Common(
            model,
            (height, width),
            (chance.randint(AREA, width), chance.randint(AREA, height)),
            chance.choice((None, 0.0, _strength(chance))),
            chance.choice((0, 0, 1, 2)) if model == REFERRING else 0,
        )
        request = self._transformer if model in TRANSFORMERS else self._workflow
        members = [
            Member(
                request(common, chance),
                chance.choice(("chosen", "scattered", "stale")),
                chance.randrange(1 << 32),
                chance.uniform(0.0, MAX_DELAY_S),
                None,
            )
            for _ in range(chance.randint(2, 6))
        ]
        if chance.random() < 0.3:
            leaves = chance.randrange(len(members))
            members[leaves] = replace(members[leaves], cancelled_after=chance.randint(1, 3))
        killed_after = chance.randint(1, MAX_SHARED_CALLS) if chance.random() < 0.4 else None
        return Group(model, members, killed_after)

    def _workflow(self, common: _Common, chance: Random) -> Region:
        drawn = draw(chance.randrange(1 << 32), common.model, common.cells, common.area)
        return self._search.region(_varied(drawn, common, chance))

    def _transformer(self, common: _Common, chance: Random) -> Region:
        return _Transformer(self._folder, common, chance).region()


@dataclass(frozen=True, slots=True)
class _Common:
    """Holds what the requests of a group have in common."""

    model: str
    cells: tuple[int, int]  # height and width of the latent
    area: tuple[int, int]  # width and height of most areas of prompts, in latent cells
    strength: float | None  # of all LoRAs; None: drawn for each
    references: int  # latents in the prompts for a whole picture

    def strength_of_lora(self, chance: Random) -> float:
        return _strength(chance) if self.strength is None else self.strength


def _varied(drawn: Drawn, common: _Common, chance: Random) -> Drawn:
    """Draws sampler, steps and guidance again, from all samplers; softens masks; replaces the
    strengths of LoRAs.
    """
    changes: Mapping[str, Callable[[Mapping[str, Any]], Mapping[str, Any]]] = {
        "KSampler": lambda _: {
            "sampler_name": chance.choice(samplers()),
            "steps": chance.randint(*STEPS),
            "cfg": chance.choice(GUIDANCE),
        },
        "SolidMask": lambda given: {"value": given["value"] * chance.choice((1.0, 0.4))},
        "LoraLoader": lambda _: {"strength_model": common.strength_of_lora(chance)},
    }

    def varied(call: NodeCall) -> NodeCall:
        change = changes.get(call.type)
        return (
            call if change is None else replace(call, inputs={**call.inputs, **change(call.inputs)})
        )

    nodes = {name: varied(call) for name, call in drawn.graph.nodes.items()}
    return replace(drawn, graph=replace(drawn.graph, nodes=nodes))


def _strength(chance: Random) -> float:
    return round(chance.uniform(-0.5, 1.0), 2)


@cache
def samplers() -> Sequence[str]:
    """Returns the names of all samplers."""
    return builtin_types()["KSampler"].inputs["sampler_name"].choices or ()


@dataclass(slots=True)
class _Transformer:
    """Draws a request for a transformer, whose workflow the nodes of checkpoints cannot express."""

    folder: Path
    common: _Common
    chance: Random

    def region(self) -> Region:
        chance = self.chance
        model, clip, vae = pipeline_recipes(self.folder / self.common.model)
        own = chance.sample(range(LORAS), chance.choices((0, 1, 2), (4, 3, 1))[0])
        for number in own if self.common.strength is None else range(LORAS):
            file = file_identity(self.folder / f"{self.common.model}-lora{number}.safetensors")
            model = model.with_lora(Lora(file, self.common.strength_of_lora(chance)))
        controls = tuple(
            ControlUse(
                controlnet_recipe(self.folder / f"{self.common.model}-control{number}"),
                Picture.of(self._noise(1, *self._pixels, 3).sigmoid()),
                chance.choice((0.5, 1.0)),
                chance.choice((0.0, 0.0, 0.25)),
                chance.choice((0.6, 1.0)),
                vae=vae,
            )
            for number in range(chance.choices((0, 1, 2), (3, 3, 1))[0])
        )
        placing = chance.choice(PLACINGS)
        positive, negative = (self._side(clip, controls, placing) for _ in range(2))
        begin = {
            "sampler_name": chance.choice(samplers()),
            "scheduler": chance.choice(SCHEDULERS),
            "steps": chance.randint(*STEPS),
            "seed": chance.randrange(1 << 32),
            "denoise": chance.choice((0.6, 1.0)),
            "latent_image": self._latent(),
            "model": model,
        }
        expansion = expand_sampling(
            "StepBegin", begin, model, positive, negative, chance.choice(GUIDANCE)
        )
        return bind(expansion.graph, expansion.outputs[0].node)

    def _side(
        self, clip: ClipRecipe, controls: tuple[ControlUse, ...], placing: ReferencePlacing
    ) -> Conditioning:
        chance, many = self.chance, self.common.references
        whole = ConditioningEntry(
            self._prompt(clip),
            controls,
            references=References(
                tuple(Picture.of(self._noise(1, 16, 8, 8)) for _ in range(many)),
                placing,
            )
            if many
            else None,
            guidance=chance.choice((None, 1.0, 7.0)) if self.common.model == REFERRING else None,
        )
        mask = MaskUse(Picture.of(self._noise(1, *self._pixels).sigmoid()))
        part = ConditioningEntry(self._prompt(clip), controls, mask=mask)
        return (whole, part) if chance.random() < 0.3 else (whole,)

    @property
    def _pixels(self) -> tuple[int, int]:
        height, width = map(pixels, self.common.cells)
        return height, width

    def _prompt(self, clip: ClipRecipe) -> Prompt:
        return Prompt(clip, " ".join(self.chance.choices(WORDS, k=self.chance.choice((1, 3, 30)))))

    def _latent(self) -> dict[str, Tensor]:
        batch = self.chance.choice((1, 1, 2, 3))
        latent = {"samples": self._noise(batch, 16, *self.common.cells)}
        if self.chance.random() < 0.3:
            latent["noise_mask"] = self._noise(1, 1, *self._pixels).sigmoid()
        return latent

    def _noise(self, *shape: int) -> Tensor:
        noise = torch.Generator().manual_seed(self.chance.randrange(1 << 32))
        return torch.randn(shape, generator=noise)
