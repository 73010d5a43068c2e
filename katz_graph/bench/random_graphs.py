"""Draws random workflows of ordinary nodes, as users build them, over a folder of small models with
random weights.

Equal seeds give equal workflows. Properties that affect the batching of calls are frequent: areas
and masks of one size, models that take a picture, ControlNets with timestep windows, texts of
different lengths, batches.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random

import torch

from katz_graph.core.graph import Graph, Link, NodeCall
from katz_graph.core.latent_space import DEFAULT_LATENT_SPACE
from katz_graph.files.images import png
from katz_graph.testing.random_models import (
    Kind,
    make_controlnet,
    make_lora,
    make_pipeline,
    playing,
)

pixels = DEFAULT_LATENT_SPACE.pixels

LIKELY = (4, 4, 2, 1, 1)  # relative frequency of each checkpoint
CONTROLS = ("edges", "poses", "shuffle")  # the last averages its residuals over the picture
LORAS = {"style": False, "words": True}  # whether the LoRA patches text encoders
SAMPLERS = ("euler", "euler_ancestral", "heun", "ddim", "lms", "dpmpp_2m")
SCHEDULERS = ("normal", "karras", "simple")
WORDS = (
    "red",
    "star",
    "sand",
    "the (moon:1.3)",
    "at night",
    "grey",
    "a blue circle",
    "on the left",
    "blurred",
)
AREA = 8  # minimum height and width of an area, in latent cells
SAMPLER = "sampler"  # the node whose latents are compared
PICTURE, PICTURE_SIDE = "picture.png", 160


@cache
def checkpoints() -> dict[str, tuple[Kind, int]]:
    """Maps the names of plain, inpainting and editing checkpoints to their kinds and their numbers
    of input channels in addition to the latent's.
    """
    kinds = playing("drawn")
    return (
        {kind: (kind, 0) for kind in kinds}
        | {f"{kind}-inpainting": (kind, 5) for kind in kinds}
        | {f"{kinds[0]}-editing": (kinds[0], 4)}
    )


def make_models(folder: Path) -> None:
    """Writes the workflows' models and pictures to `models` and `input` in this folder."""
    seeds = iter(range(1000))
    models = folder / "models"
    for name, (family, extra) in checkpoints().items():
        make_pipeline(models / "checkpoints" / name, family, next(seeds), extra=extra)
    for family in playing("drawn"):
        for name in CONTROLS:
            make_controlnet(models / "controlnet" / f"{family}-{name}", family, next(seeds))
        config = models / "controlnet" / f"{family}-{CONTROLS[-1]}" / "config.json"
        config.write_text(
            json.dumps(json.loads(config.read_text()) | {"global_pool_conditions": True})
        )
        for name, text_encoder in LORAS.items():
            make_lora(
                models / "loras" / f"{family}-{name}.safetensors",
                family,
                4,
                2.0,
                "peft",
                next(seeds),
                text_encoder,
            )
    pixels = torch.rand(PICTURE_SIDE, PICTURE_SIDE, 3, generator=torch.Generator().manual_seed(1))
    (folder / "input").mkdir()
    (folder / "input" / PICTURE).write_bytes(png(pixels, {}))


@dataclass(frozen=True, slots=True)
class Drawn:
    """Holds a drawn workflow. `plain`: no node limits its prompts, and its model has no patches, so
    only the model amplifies rounding.
    """

    graph: Graph
    plain: bool


def draw(
    seed: int,
    checkpoint: str = "",
    cells: tuple[int, int] = (0, 0),
    area: tuple[int, int] = (0, 0),
) -> Drawn:
    """Draws the workflow of a seed. `checkpoint`, `cells`: height and width of the latent, `area`:
    width and height of most areas; drawn if not given.
    """
    height, width = cells
    return _Pen(Random(seed), checkpoint=checkpoint, height=height, width=width, area=area).draw()


@dataclass(slots=True)
class _Pen:
    chance: Random
    nodes: dict[str, NodeCall] = field(default_factory=dict)
    plain: bool = False
    checkpoint: str = ""
    width: int = 0  # latent cells
    height: int = 0
    batch: int = 1
    area: tuple[int, int] = (0, 0)  # width and height of most areas

    def draw(self) -> Drawn:
        chance = self.chance
        self.plain = self._perhaps(0.2)
        self.checkpoint = self.checkpoint or (
            chance.choice(playing("drawn"))
            if self.plain
            else chance.choices(list(checkpoints()), LIKELY)[0]
        )
        self.width = self.width or chance.randint(8, 22)
        self.height = self.height or chance.randint(8, 22)
        self.batch = chance.choices((1, 2, 3), (6, 3, 1))[0]
        drawn = chance.randint(AREA, self.width), chance.randint(AREA, self.height)
        self.area = self.area if any(self.area) else drawn
        loaded = self._add("CheckpointLoaderSimple", ckpt_name=self.checkpoint)
        model, clip, vae = (Link(loaded, output) for output in range(3))
        model, clip = self._patched(model, clip)
        positive, negative = (self._side(clip, most) for most in ((1, 1) if self.plain else (4, 2)))
        positive, negative = self._controlled(positive, negative)
        positive, negative, latent, denoise = self._started(positive, negative, vae)
        self.nodes[SAMPLER] = NodeCall(
            "KSampler",
            {
                "model": model,
                "positive": positive,
                "negative": negative,
                "latent_image": latent,
                "seed": chance.randrange(1 << 32),
                "steps": chance.randint(2, 4),
                "cfg": chance.choice((1.0, 3.5, 7.0)),
                "sampler_name": chance.choice(SAMPLERS),
                "scheduler": chance.choice(SCHEDULERS),
                "denoise": denoise,
            },
        )
        return Drawn(Graph(self.nodes), self.plain)

    @property
    def family(self) -> Kind:
        return checkpoints()[self.checkpoint][0]

    def _add(self, kind: str, **inputs: object) -> str:
        name = str(len(self.nodes) + 1)
        self.nodes[name] = NodeCall(kind, inputs)
        return name

    def _perhaps(self, probability: float) -> bool:
        return self.chance.random() < probability

    def _patched(self, model: Link, clip: Link) -> tuple[Link, Link]:
        if self.plain:
            return model, clip
        for name in self.chance.sample(list(LORAS), self.chance.choices((0, 1, 2), (6, 3, 1))[0]):
            weights = {
                side: round(self.chance.uniform(-0.5, 1.0), 2)
                for side in ("strength_model", "strength_clip")
            }
            loader = self._add(
                "LoraLoader",
                model=model,
                clip=clip,
                lora_name=f"{self.family}-{name}.safetensors",
                **weights,
            )
            model, clip = Link(loader, 0), Link(loader, 1)
        if self._perhaps(0.1):
            model = Link(
                self._add(self.chance.choice(("FreeU", "FreeU_V2", "RescaleCFG")), model=model), 0
            )
        return model, clip

    def _side(self, clip: Link, most: int) -> Link:
        """Draws up to `most` combined prompts; rarely 9, which need several blend nodes."""
        count = 9 if most > 2 and self._perhaps(0.04) else self.chance.randint(1, most)
        prompts = [self._prompt(clip, alone=count == 1) for _ in range(count)]
        joined = prompts[0]
        for prompt in prompts[1:]:
            joined = Link(
                self._add("ConditioningCombine", conditioning_1=joined, conditioning_2=prompt), 0
            )
        return joined

    def _prompt(self, clip: Link, alone: bool) -> Link:
        # letters are tokens, so 20 words need several chunks of tokens
        words = self.chance.choices(WORDS, k=self.chance.choice((1, 3, 3, 20)))
        prompt = Link(self._add("CLIPTextEncode", clip=clip, text=" ".join(words)), 0)
        if self.plain:
            return prompt
        limit = self.chance.choice(("", "area", "area", "mask", "share", "strength"))
        strength = {"conditioning": prompt, "strength": self.chance.choice((1.0, 1.0, 0.6, 1.7))}
        if limit == "area":
            prompt = Link(self._add("ConditioningSetArea", **self._place(), **strength), 0)
        if limit == "share":
            sides = {name: round(self.chance.uniform(0.5, 1.0), 2) for name in ("width", "height")}
            corner = {name: round(self.chance.uniform(0.0, 0.4), 2) for name in ("x", "y")}
            prompt = Link(
                self._add("ConditioningSetAreaPercentage", **sides, **corner, **strength), 0
            )
        if limit == "mask":
            bounds = self.chance.choice(("default", "mask bounds"))
            prompt = Link(
                self._add(
                    "ConditioningSetMask", mask=self._mask(), set_cond_area=bounds, **strength
                ),
                0,
            )
        if limit == "strength":
            prompt = Link(self._add("ConditioningSetAreaStrength", **strength), 0)
        if not alone and self._perhaps(0.2):
            start = self.chance.choice((0.0, 0.3))
            end = self.chance.choice((0.6, 1.0))
            prompt = Link(
                self._add(
                    "ConditioningSetTimestepRange", conditioning=prompt, start=start, end=end
                ),
                0,
            )
        if self._perhaps(0.1):
            prompt = Link(
                self._add("ControlNetApply", conditioning=prompt, **self._control(), strength=0.7),
                0,
            )
        return prompt

    def _place(self) -> dict[str, int]:
        """Draws a rectangle in pixels, most often of size `area`."""
        width, height = (
            self.area
            if self._perhaps(0.7)
            else (self.chance.randint(AREA, self.width), self.chance.randint(AREA, self.height))
        )
        x = self.chance.randint(0, self.width - width)
        y = self.chance.randint(0, self.height - height)
        return {
            "width": pixels(width),
            "height": pixels(height),
            "x": pixels(x),
            "y": pixels(y),
        }

    def _mask(self) -> Link:
        """Draws a mask: 1 in a rectangle, 0 outside."""
        place = self._place()
        ground = self._add(
            "SolidMask", value=0.0, width=pixels(self.width), height=pixels(self.height)
        )
        shape = self._add("SolidMask", value=1.0, width=place["width"], height=place["height"])
        inputs = {"destination": Link(ground, 0), "source": Link(shape, 0), "operation": "add"}
        return Link(self._add("MaskComposite", x=place["x"], y=place["y"], **inputs), 0)

    def _picture(self) -> Link:
        loaded = Link(self._add("LoadImage", image=PICTURE), 0)
        size = {"width": pixels(self.width), "height": pixels(self.height)}
        return Link(
            self._add(
                "ImageScale", image=loaded, upscale_method="bilinear", crop="disabled", **size
            ),
            0,
        )

    def _control(self) -> dict[str, Link]:
        loader = self._add(
            "ControlNetLoader", control_net_name=f"{self.family}-{self.chance.choice(CONTROLS)}"
        )
        return {
            "control_net": Link(loader, 0),
            "image": Link(self._add("LoadImage", image=PICTURE), 0),
        }

    def _controlled(self, positive: Link, negative: Link) -> tuple[Link, Link]:
        for _ in range(0 if self.plain else self.chance.choices((0, 1, 2), (6, 3, 1))[0]):
            window = {
                "start_percent": self.chance.choice((0.0, 0.0, 0.25)),
                "end_percent": self.chance.choice((0.6, 1.0)),
            }
            sides = {"positive": positive, "negative": negative}
            strength = self.chance.choice((0.5, 1.0))
            applied = self._add(
                "ControlNetApplyAdvanced", **sides, **self._control(), **window, strength=strength
            )
            positive, negative = Link(applied, 0), Link(applied, 1)
        return positive, negative

    def _started(self, positive: Link, negative: Link, vae: Link) -> tuple[Link, Link, Link, float]:
        """Draws the model's picture inputs, the initial latent and the denoising strength. Returns
        both conditionings, the latent and the strength.
        """
        extra = checkpoints()[self.checkpoint][1]
        if extra and self._perhaps(0.8):
            seen = {
                "positive": positive,
                "negative": negative,
                "vae": vae,
                "pixels": self._picture(),
            }
            kind = "InpaintModelConditioning" if extra == 5 else "InstructPixToPixConditioning"
            shown = self._add(
                kind,
                **seen,
                **({"mask": self._mask(), "noise_mask": self._perhaps(0.5)} if extra == 5 else {}),
            )
            positive, negative, latent = (Link(shown, output) for output in range(3))
        elif self._perhaps(0.25):
            latent = Link(self._add("VAEEncode", pixels=self._picture(), vae=vae), 0)
            if self._perhaps(0.5):
                latent = Link(self._add("SetLatentNoiseMask", samples=latent, mask=self._mask()), 0)
            return positive, negative, self._repeated(latent), self.chance.choice((0.6, 1.0))
        else:
            size = {
                "width": pixels(self.width),
                "height": pixels(self.height),
                "batch_size": self.batch,
            }
            return positive, negative, Link(self._add("EmptyLatentImage", **size), 0), 1.0
        return positive, negative, self._repeated(latent), 1.0

    def _repeated(self, latent: Link) -> Link:
        return (
            latent
            if self.batch == 1
            else Link(self._add("RepeatLatentBatch", samples=latent, amount=self.batch), 0)
        )
