"""Encodes prompts; joins and averages conditionings, limits them to parts of the schedule and the
picture, and applies ControlNets to them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field

from katz_graph.core.errors import InputError
from katz_graph.core.latent_space import DEFAULT_LATENT_SPACE
from katz_graph.core.recipe import (
    Area,
    Averaged,
    ConditioningEntry,
    ControlUse,
    Joined,
    MaskUse,
    Picture,
    Prompt,
    Sizes,
    Zeroed,
)
from katz_graph.models.family import reads_mask
from katz_graph.models.text.recipe import parts
from katz_graph.models.text.textual_inversion import identities, with_learned_words
from katz_graph.node import Node, Widget
from katz_graph.node.knobs import Fraction, Pixels, PromptText, Share, Strength, WholeCells
from katz_graph.node.types import Context
from katz_graph.node.wires import Clip, Conditioning, ControlNet, Image, Mask, Vae

cells = DEFAULT_LATENT_SPACE.cells

MAX_ENTRIES = 1000  # samplers need far fewer
MAX_TEXTS = 256
AreaSide = Annotated[int, Field(ge=64, le=16384), Widget(step=8)]


class CLIPTextEncode(Node, category="conditioning", title="CLIP Text Encode (Prompt)"):
    """Encodes a prompt in chunks of 75 tokens. `(word:1.2)` sets a weight, `\\(` escapes,
    `embedding:NAME` is a textual inversion.
    """

    text: PromptText

    def fingerprint(self, context: Context) -> Any:
        return identities((self.text,), context.folders)

    def run(self, clip: Clip, context: Context) -> Conditioning:
        return (
            ConditioningEntry(
                Prompt(
                    with_learned_words(clip, (self.text,), context.folders, context.warn), self.text
                )
            ),
        )


class CLIPTextEncodeSDXL(Node, category="advanced/conditioning"):
    """Encodes a prompt for each of two text encoders. The model also reads the sizes and crop, in
    pixels.
    """

    width: Pixels = 1024
    height: Pixels = 1024
    crop_w: Pixels = 0
    crop_h: Pixels = 0
    target_width: Pixels = 1024
    target_height: Pixels = 1024
    text_g: PromptText
    text_l: PromptText

    def fingerprint(self, context: Context) -> Any:
        return identities((self.text_l, self.text_g), context.folders)

    def run(self, clip: Clip, context: Context) -> Conditioning:
        clip = with_learned_words(clip, (self.text_l, self.text_g), context.folders, context.warn)
        sizes = Sizes(
            self.height, self.width, self.crop_h, self.crop_w, self.target_height, self.target_width
        )
        return (ConditioningEntry(Prompt(clip, self.text_l, (self.text_g,)), sizes=sizes),)


class CLIPTextEncodeSDXLRefiner(Node, category="advanced/conditioning"):
    """Encodes a prompt for a refiner. The model also reads the aesthetic score and the size, in
    pixels.
    """

    ascore: Annotated[float, Field(ge=0.0, le=1000.0), Widget(step=0.01)] = 6.0
    width: Pixels = 1024
    height: Pixels = 1024
    text: PromptText

    def fingerprint(self, context: Context) -> Any:
        return identities((self.text,), context.folders)

    def run(self, clip: Clip, context: Context) -> Conditioning:
        prompt = Prompt(
            with_learned_words(clip, (self.text,), context.folders, context.warn), self.text
        )
        return (
            ConditioningEntry(
                prompt, sizes=Sizes(self.height, self.width, aesthetic_score=self.ascore)
            ),
        )


class ConditioningCombine(Node, category="conditioning"):
    """Applies both conditionings: the model predicts for each, and the predictions are blended."""

    def run(self, conditioning_1: Conditioning, conditioning_2: Conditioning) -> Conditioning:
        if len(conditioning_1) + len(conditioning_2) > MAX_ENTRIES:
            raise InputError(
                f"the conditionings have more than {MAX_ENTRIES} entries together; combine fewer"
            )
        return (*conditioning_1, *conditioning_2)


class ConditioningConcat(Node, category="conditioning"):
    """Appends the tokens of the second conditioning to those of the first."""

    def run(
        self, conditioning_to: Conditioning, conditioning_from: Conditioning, context: Context
    ) -> Conditioning:
        second = _single(conditioning_from, "ConditioningConcat", context)
        return mapped(
            conditioning_to,
            lambda entry: replace(
                entry, encoding=_bounded(Joined(entry.encoding, second.encoding))
            ),
        )


class ConditioningAverage(Node, category="conditioning"):
    """Mixes two conditionings: strength 1 gives the first, 0 the second."""

    conditioning_to_strength: Share = 1.0

    def run(
        self, conditioning_to: Conditioning, conditioning_from: Conditioning, context: Context
    ) -> Conditioning:
        second = _single(conditioning_from, "ConditioningAverage", context)
        share = self.conditioning_to_strength
        return mapped(
            conditioning_to,
            lambda entry: replace(
                entry, encoding=_bounded(Averaged(entry.encoding, second.encoding, share))
            ),
        )


class ConditioningZeroOut(Node, category="advanced/conditioning"):
    """Replaces the text encoding with zeros."""

    def run(self, conditioning: Conditioning) -> Conditioning:
        return mapped(conditioning, lambda entry: replace(entry, encoding=Zeroed(entry.encoding)))


class ConditioningSetTimestepRange(Node, category="advanced/conditioning"):
    """Limits the conditioning to a part of the schedule, from 0 (start) to 1 (end)."""

    start: Fraction = 0.0
    end: Fraction = 1.0

    def run(self, conditioning: Conditioning) -> Conditioning:
        return mapped(
            conditioning,
            lambda entry: replace(entry, start_percent=self.start, end_percent=self.end),
        )


class ConditioningSetArea(Node, category="conditioning"):
    """Limits the conditioning to a rectangle of the picture, in pixels. The model sees only the
    rectangle.
    """

    width: AreaSide = 64
    height: AreaSide = 64
    x: WholeCells = 0
    y: WholeCells = 0
    strength: Strength = 1.0

    def run(self, conditioning: Conditioning) -> Conditioning:
        area = Area(cells(self.y), cells(self.x), cells(self.height), cells(self.width))
        return mapped(conditioning, lambda entry: replace(entry, area=area, strength=self.strength))


class ConditioningSetAreaPercentage(Node, category="conditioning"):
    """Limits the conditioning to a rectangle, in fractions of the sides. The model sees only the
    rectangle.
    """

    width: Share = 1.0
    height: Share = 1.0
    x: Share = 0.0
    y: Share = 0.0
    strength: Strength = 1.0

    def run(self, conditioning: Conditioning) -> Conditioning:
        area = Area(self.y, self.x, self.height, self.width, relative=True)
        return mapped(conditioning, lambda entry: replace(entry, area=area, strength=self.strength))


class ConditioningSetAreaStrength(Node, category="conditioning"):
    """Sets the weight of the conditioning among others."""

    strength: Strength = 1.0

    def run(self, conditioning: Conditioning) -> Conditioning:
        return mapped(conditioning, lambda entry: replace(entry, strength=self.strength))


class ConditioningSetMask(Node, category="conditioning"):
    """Weights the conditioning by a mask. With `mask bounds` the model sees only the box around the
    mask.
    """

    strength: Strength = 1.0
    set_cond_area: Literal["default", "mask bounds"] = "default"

    def run(self, conditioning: Conditioning, mask: Mask) -> Conditioning:
        use = MaskUse(Picture.of(mask), self.strength, self.set_cond_area == "mask bounds")
        return mapped(conditioning, lambda entry: replace(entry, mask=use))


class ControlNetApplyAdvanced(
    Node,
    category="conditioning/controlnet",
    title="Apply ControlNet",
    names=("positive", "negative"),
):
    """Applies a ControlNet to both conditionings, with a reference image, a strength and a window
    of the schedule.
    """

    strength: Strength = 1.0
    start_percent: Fraction = 0.0
    end_percent: Fraction = 1.0

    def run(
        self,
        positive: Conditioning,
        negative: Conditioning,
        control_net: ControlNet,
        image: Image,
        vae: Vae | None = None,
    ) -> tuple[Conditioning, Conditioning]:
        return self.applied(positive, negative, control_net, image, vae)

    def applied(
        self,
        positive: Conditioning,
        negative: Conditioning,
        control_net: ControlNet,
        image: Image,
        vae: Vae | None = None,
        visible: Mask | None = None,
    ) -> tuple[Conditioning, Conditioning]:
        """Applies a ControlNet. `visible`: a mask for an inpainting ControlNet, 1 = keep."""
        if not self.strength:
            return positive, negative
        use = ControlUse(
            control_net,
            Picture.of(image),
            self.strength,
            self.start_percent,
            self.end_percent,
            vae=vae,
            mask=None if visible is None else Picture.of(visible),
        )
        return mapped(positive, lambda entry: entry.with_control(use)), mapped(
            negative, lambda entry: entry.with_control(use)
        )


class ControlNetApplySD3(
    Node,
    category="conditioning/controlnet",
    title="Apply Controlnet with VAE",
    names=("positive", "negative"),
):
    """Applies a ControlNet to both conditionings, with a VAE that encodes its image to latents."""

    strength: Strength = 1.0
    start_percent: Fraction = 0.0
    end_percent: Fraction = 1.0

    def run(
        self,
        positive: Conditioning,
        negative: Conditioning,
        control_net: ControlNet,
        vae: Vae,
        image: Image,
    ) -> tuple[Conditioning, Conditioning]:
        same = ControlNetApplyAdvanced(**self.model_dump())
        return same.run(positive, negative, control_net, image, vae)


class ControlNetInpaintingAliMamaApply(
    Node, category="conditioning/controlnet", names=("positive", "negative")
):
    """Applies an inpainting ControlNet to both conditionings. It sees the image without its masked
    part, and the mask.
    """

    strength: Strength = 1.0
    start_percent: Fraction = 0.0
    end_percent: Fraction = 1.0

    def run(
        self,
        positive: Conditioning,
        negative: Conditioning,
        control_net: ControlNet,
        vae: Vae,
        image: Image,
        mask: Mask,
        context: Context,
    ) -> tuple[Conditioning, Conditioning]:
        from katz_graph.files.images import resize

        same = ControlNetApplyAdvanced(**self.model_dump())
        if not reads_mask(control_net):
            context.warn(
                f"ControlNetInpaintingAliMamaApply: {control_net.control_net.folder} reads no "
                "mask, so the mask is not used"
            )
            return same.run(positive, negative, control_net, image, vae)
        visible = 1 - mask
        height, width = image.shape[1:3]
        seen = image * resize(visible[..., None], width, height, "bilinear", "center").round()
        return same.applied(positive, negative, control_net, seen, vae, visible)


class ControlNetApply(Node, category="conditioning/controlnet", title="Apply ControlNet (old)"):
    """Applies a ControlNet to a conditioning, and to the negative one if that has no ControlNet."""

    strength: Strength = 1.0

    def run(
        self, conditioning: Conditioning, control_net: ControlNet, image: Image
    ) -> Conditioning:
        if not self.strength:
            return conditioning
        use = ControlUse(control_net, Picture.of(image), self.strength, spreads=True)
        return mapped(conditioning, lambda entry: entry.with_control(use))


def mapped(
    conditioning: Conditioning, change: Callable[[ConditioningEntry], ConditioningEntry]
) -> Conditioning:
    """Applies `change` to every entry."""
    return tuple(change(entry) for entry in conditioning)


def _bounded(encoding: Joined | Averaged) -> Joined | Averaged:
    """Returns the encoding. Raises InputError if it is too large to compute, such as after many
    nodes that each double it.
    """
    if parts(encoding) > MAX_TEXTS:
        raise InputError(f"the conditioning is joined from more than {MAX_TEXTS} texts; use fewer")
    return encoding


def _single(conditioning: Conditioning, node: str, context: Context) -> ConditioningEntry:
    """Returns the first entry. Warns if more exist; raises InputError if none exists."""
    if not conditioning:
        raise InputError(
            f"{node}, conditioning_from: the conditioning is empty; link a CLIPTextEncode"
        )
    if len(conditioning) > 1:
        context.warn(
            f"{node}: conditioning_from has {len(conditioning)} entries; only the first is used"
        )
    return conditioning[0]
