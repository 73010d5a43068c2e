"""Presents a ControlNet to packs, which copy it, set its control image, and chain it to a previous
ControlNet.
"""

from __future__ import annotations

from typing import Any

from katz_graph.comfy.facades.vae import VaeFacade
from katz_graph.comfy.missing import refuse
from katz_graph.core.errors import InputError
from katz_graph.core.recipe import ControlNetRecipe, ControlUse, Picture, VaeRecipe


class ControlNetFacade:
    """Represents a ControlNet; `uses` converts it to a ControlUse."""

    def __init__(self, recipe: ControlNetRecipe) -> None:
        self.recipe = recipe
        self.cond_hint_original: Any = None  # [B, 3, H, W], 0..1
        self.strength = 1.0
        self.timestep_percent_range = (0.0, 1.0)
        self.vae: Any = None  # encodes the control image for a ControlNet that reads latents
        self.previous_controlnet: ControlNetFacade | None = None
        self.use: ControlUse | None = None  # the use that `chain` built this from

    def copy(self) -> ControlNetFacade:
        """Copies the ControlNet and its picture, not the previous ControlNet, as ComfyUI does."""
        other = ControlNetFacade(self.recipe)
        return other.set_cond_hint(
            self.cond_hint_original, self.strength, self.timestep_percent_range, self.vae
        )

    def set_cond_hint(
        self,
        cond_hint: Any,
        strength: float = 1.0,
        timestep_percent_range: tuple[float, float] = (0.0, 1.0),
        vae: Any = None,
        extra_concat: Any = (),
        **_: Any,
    ) -> ControlNetFacade:
        """Sets the reference picture [B, 3, H, W], strength, window, and the picture's VAE."""
        self.cond_hint_original = cond_hint
        self.strength = strength
        self.timestep_percent_range = timestep_percent_range
        self.vae = vae
        return self

    def set_previous_controlnet(self, controlnet: ControlNetFacade | None) -> ControlNetFacade:
        self.previous_controlnet = controlnet
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        refuse(f"comfy.controlnet.ControlNet.{name}")


def chain(applied: tuple[ControlUse, ...]) -> ControlNetFacade | None:
    """Links each ControlNet to the previous one; returns the last."""
    last: ControlNetFacade | None = None
    for use in applied:
        made = ControlNetFacade(use.control_net)
        made.set_cond_hint(
            use.image.pixels.movedim(-1, 1),
            use.strength,
            (use.start_percent, use.end_percent),
            None if use.vae is None else VaeFacade(use.vae),
        )
        made.use = use
        last = made.set_previous_controlnet(last)
    return last


def uses(last: Any, spreads: bool) -> tuple[ControlUse, ...]:
    """Returns the chain that ends at `last`, in order. InputError for a ControlNet that is not a
    ControlNetFacade.
    """
    found: list[ControlUse] = []
    while last is not None:
        if not isinstance(last, ControlNetFacade):
            raise InputError(
                f"the conditioning has a {type(last).__name__} for a ControlNet, expected one "
                "from a loader"
            )
        found.append(_use(last, spreads))
        last = last.previous_controlnet
    return tuple(reversed(found))


def _use(control: ControlNetFacade, spreads: bool) -> ControlUse:
    if control.cond_hint_original is None:
        raise InputError("the conditioning has a ControlNet without a reference picture")
    start, end = control.timestep_percent_range
    image = Picture.of(control.cond_hint_original.movedim(1, -1))
    as_before = control.use is not None and control.use.spreads
    return ControlUse(
        control.recipe,
        image,
        float(control.strength),
        float(start),
        float(end),
        spreads or as_before,
        _vae(control.vae),
    )


def _vae(vae: Any) -> VaeRecipe | None:
    if vae is not None and not isinstance(vae, VaeFacade):
        raise InputError(
            f"the conditioning has a {type(vae).__name__} for the VAE of a ControlNet, expected "
            "one from a loader"
        )
    return None if vae is None else vae.recipe
