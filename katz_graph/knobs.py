"""Types of knobs that several nodes share: what is accepted, and how the editor steps it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from katz_graph.node import Widget

Seed = Annotated[int, Field(ge=0, le=2**64 - 1), Widget(control_after_generate=True)]
Steps = Annotated[int, Field(ge=1, le=10000)]
Guidance = Annotated[float, Field(ge=0.0, le=100.0), Widget(step=0.1)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0), Widget(step=0.001)]  # of a schedule
Strength = Annotated[float, Field(ge=0.0, le=10.0), Widget(step=0.01)]
