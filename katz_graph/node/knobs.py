"""Defines knob types that several nodes share: accepted values and editor steps."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from katz_graph.node import Widget
from katz_graph.sampling.names import (
    NOT_IMPLEMENTED,
    SAMPLER_NAMES,
    SCHEDULER_NAMES,
    require_sampler,
)


def _implemented(name: Any) -> Any:
    """Raises a specific error, not that of an unknown choice, for ComfyUI's samplers that this
    engine lacks.
    """
    if name in NOT_IMPLEMENTED:
        require_sampler(name)
    return name


Seed = Annotated[int, Field(ge=0, le=2**64 - 1), Widget(control_after_generate=True)]
Steps = Annotated[int, Field(ge=1, le=10000)]
Guidance = Annotated[float, Field(ge=0.0, le=100.0), Widget(step=0.1, round=0.01)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0), Widget(step=0.001)]  # of a schedule
SamplerName = Annotated[Literal[SAMPLER_NAMES], BeforeValidator(_implemented)]  # type: ignore[valid-type]
SchedulerName = Literal[SCHEDULER_NAMES]  # type: ignore[valid-type]
Strength = Annotated[float, Field(ge=0.0, le=10.0), Widget(step=0.01)]
# a weight between two inputs, or a fraction
Share = Annotated[float, Field(ge=0.0, le=1.0), Widget(step=0.01)]
Text = Annotated[str, Widget(multiline=True)]
PromptText = Annotated[str, Widget(multiline=True, dynamic_prompts=True)]
Pixels = Annotated[int, Field(ge=0, le=16384)]
# pixels, in steps of a latent cell
WholeCells = Annotated[int, Field(ge=0, le=16384), Widget(step=8)]
Side = Annotated[int, Field(ge=1, le=16384)]  # pixels
BatchSize = Annotated[int, Field(ge=1, le=4096)]
ScaleFactor = Annotated[float, Field(ge=0.01, le=8.0), Widget(step=0.01)]
Colour = Annotated[int, Field(ge=0, le=0xFFFFFF), Widget(colour=True)]  # 0xRRGGBB
Crop = Literal["disabled", "center"]
Flip = Literal["x-axis: vertically", "y-axis: horizontally"]
Rotation = Literal["none", "90 degrees", "180 degrees", "270 degrees"]
TURNS = {"none": 0, "90 degrees": 1, "180 degrees": 2, "270 degrees": 3}  # clockwise
