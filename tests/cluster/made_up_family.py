"""Declares a family unknown to the engine: a one-stage network that adds the mean of its text to
each prediction, and a stage that scales a prediction by a strength per row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from katz_graph.core.graph import Link, NodeCall
from katz_graph.core.latent_space import LatentSpace
from katz_graph.core.recipe import Component
from katz_graph.ir.device import Work
from katz_graph.models.configuration import config_value
from katz_graph.models.family import (
    Architecture,
    Files,
    Layout,
    LoraNames,
    ModelFamily,
    Network,
    Training,
)
from katz_graph.models.stages import Extent, Loop, Outputs, Stage, WorkCounts
from katz_graph.node import Node
from katz_graph.node.wires import Conditioning, Model, Prediction, Step
from katz_graph.sampling.prediction import to_denoised


def work(inputs: Mapping[str, Any], extent: Extent, counts: WorkCounts) -> Work:
    return Work(flops=1e9)


def bind(inputs: Mapping[str, Any], loop: Loop) -> Mapping[str, Any]:
    return {"parametrisation": loop.parametrisation}


def predicted(module: Any, given: Mapping[str, Any]) -> Outputs:
    step, shift = given["step"], given["text"].hidden.mean(dim=(1, 2)).reshape(-1, 1, 1, 1)
    return (
        to_denoised(
            module(step.model_input, step.timestep).sample + shift, step, given["parametrisation"]
        ),
    )


def stronger(module: None, given: Mapping[str, Any]) -> Outputs:
    return (given["prediction"] * given["strength"].reshape(-1, 1, 1, 1),)


def prepare(module: Any) -> None:
    module.is_made_up = True


def converted(tensors: dict[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    return tensors


def architecture(part: Component) -> Architecture:
    return Architecture(
        4, 4, text_width=config_value(part, "text_width", int, 32), pooled_width=None
    )


def predict(
    nodes: dict[str, NodeCall],
    name: str,
    model: Any,
    step: Link,
    text: Any,
    controls: Any,
    passed: Any,
) -> Link:
    nodes[f"{name}-made"] = NodeCall("MadeUp", {"step": step, "model": model, "conditioning": text})
    return Link(f"{name}-made", 0)


MODULE = "made_up_family"
SEEN: dict[str, Any] = {
    "gives": ("prediction",),
    "costed": True,
    "placeable": True,
    "colour": "#888888",
}
PREDICT = Stage(
    "made_up",
    work,
    f"{MODULE}:predicted",
    f"{MODULE}:bind",
    module="model",
    hoists={"text": "text_encoder"},
    label="all",
    **SEEN,
)
STRONGER = Stage(
    "made_up_stronger", work, f"{MODULE}:stronger", rows=("strength",), label="stronger", **SEEN
)
FAMILY = ModelFamily(
    title="Made Up",
    short="MU",
    network=Network(
        "made-up network",
        "net",
        "UNet2DModel",
        architecture,
        lambda entry, *_: entry,
        predict,
        f"{MODULE}:prepare",
    ),
    files=Files(
        Layout(("made_up.", ""), ("conv_in.weight",), lambda shapes, stem: {}),
        {},
        f"{MODULE}:converted",
    ),
    training=Training(
        lambda _: LatentSpace(4, 8, 0.5),
        lambda _: {"prediction_type": "epsilon"},
    ),
    lora=LoraNames(("lora_made_up_",), (), "builtins:dict"),
    stages=(PREDICT, STRONGER),
)


class MadeUp(Node, category="test", stage=PREDICT.name):
    def run(self, step: Step, model: Model, conditioning: Conditioning) -> Prediction:
        raise NotImplementedError


class Stronger(Node, category="test", stage=STRONGER.name):
    strength: float = 1.0

    def run(self, prediction: Prediction) -> Prediction:
        raise NotImplementedError
