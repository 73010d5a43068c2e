"""The denoising loop opened up: begin and end of a step, the parts of a UNet, ControlNets, guidance, and switches between them.

Nodes with a stage are executed by the planner's program, inside a step region; their `run` only says what goes in and out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from katz_graph.errors import InputError
from katz_graph.knobs import Fraction, Guidance, Seed, Steps, Strength
from katz_graph.node import Node, Widget
from katz_graph.sampling.names import SAMPLER_NAMES, SCHEDULER_NAMES
from katz_graph.wires import (
    Anything,
    Boolean,
    Conditioning,
    Features,
    Image,
    Latent,
    Model,
    Prediction,
    Residuals,
    Step,
)
from katz_graph.wires import (
    ControlNet as ControlNetWire,
)

if TYPE_CHECKING:
    from torch import Tensor

Block = Annotated[int, Field(ge=-1, le=63)]
PREVIOUS = ("step", *(f"previous_{slot}" for slot in range(1, 9)))


class OutsideRegion(InputError):
    """A node of the denoising loop was asked to run on its own."""

    def __init__(self, node: Node) -> None:
        super().__init__(f"{type(node).__name__} only runs inside a step region: it needs a StepBegin upstream and a StepEnd downstream")


SlotOutputs = tuple[Step, Anything, Anything, Anything, Anything, Anything, Anything, Anything, Anything]


class StepBegin(Node, category="denoise", stage="step_begin", names=PREVIOUS):
    """The start of one evaluation of the denoising loop.

    The step carries the latent as the model sees it, and the noise level. `previous_i` is what `next_i` of StepEnd was in the evaluation
    before; `initial_i` is its value in the first one.
    """

    seed: Seed = 0
    steps: Steps = 20
    sampler_name: Literal[SAMPLER_NAMES] = "euler"  # type: ignore[valid-type]
    scheduler: Literal[SCHEDULER_NAMES] = "normal"  # type: ignore[valid-type]
    denoise: Fraction = 1.0
    start_at_step: Annotated[int, Field(ge=0, le=10000)] = 0
    end_at_step: Annotated[int, Field(ge=0, le=10000)] = 10000
    add_noise: bool = True
    return_with_leftover_noise: bool = False

    def run(self, model: Model, latent_image: Latent, *initial: Anything) -> SlotOutputs:
        raise OutsideRegion(self)


class DiffusersStepBegin(Node, category="denoise", stage="step_begin", names=PREVIOUS):
    """The start of one evaluation under a scheduler of diffusers: predictions stay raw, and noise, timesteps and updates are its own."""

    scheduler_class: str = "EulerDiscreteScheduler"
    scheduler_config: Annotated[str, Widget(multiline=True)] = "{}"
    seed: Seed = 0
    steps: Steps = 20
    strength: Fraction = 1.0

    def run(self, model: Model, latent_image: Latent, *initial: Anything) -> SlotOutputs:
        raise OutsideRegion(self)


class StepEnd(Node, category="denoise", stage="step_end"):
    """The end of one evaluation: the sampler takes the prediction. Its output is the latent after the last evaluation."""

    def run(self, step: Step, prediction: Prediction, *next: Anything) -> Latent:
        raise OutsideRegion(self)


class UNetEncoder(Node, category="denoise", stage="unet_encoder"):
    """Down blocks of a UNet, from the step (first block 0) or from features. Block -1 as the last one means the model's last."""

    first_block: Annotated[int, Field(ge=0, le=63)] = 0
    last_block: Block = -1

    def run(self, model: Model, conditioning: Conditioning, step: Step | None = None, features: Features | None = None) -> Features:
        raise OutsideRegion(self)


class UNetMid(Node, category="denoise", stage="unet_mid"):
    """The middle block of a UNet."""

    def run(self, model: Model, features: Features, conditioning: Conditioning) -> Features:
        raise OutsideRegion(self)


class ControlNet(Node, category="denoise", stage="controlnet"):
    """One ControlNet on one reference image: what it adds to the UNet's skips and middle."""

    strength: Strength = 1.0

    def run(self, control_net: ControlNetWire, step: Step, conditioning: Conditioning, image: Image) -> Residuals:
        raise OutsideRegion(self)


class UNetDecoder(Node, category="denoise", stage="unet_decoder", names=("features", "prediction")):
    """Up blocks of a UNet. Residuals are summed and added to the skips, and to the middle where the range starts at block 0.

    `skips` gives another source of skips and time embedding than `features` (deep features of an earlier evaluation). The prediction
    is there when the range reaches the last block.
    """

    first_block: Annotated[int, Field(ge=0, le=63)] = 0
    last_block: Block = -1

    def run(
        self, model: Model, features: Features, conditioning: Conditioning, skips: Features | None = None, *residuals: Residuals | None
    ) -> tuple[Features, Prediction]:
        raise OutsideRegion(self)


class CFGCombine(Node, category="denoise"):
    """Classifier-free guidance: uncond + (cond - uncond) · guidance (Ho and Salimans 2022)."""

    guidance: Guidance = 8.0

    def run(self, cond: Prediction, uncond: Prediction) -> Prediction:
        return uncond + (cond - uncond) * self.guidance


class BlendPredictions(Node, category="denoise"):
    """The predictions of several prompts, weighed by strength and divided by the sum of the strengths; absent ones do not count."""

    strength_1: Strength = 1.0
    strength_2: Strength = 1.0
    strength_3: Strength = 1.0
    strength_4: Strength = 1.0
    strength_5: Strength = 1.0
    strength_6: Strength = 1.0
    strength_7: Strength = 1.0
    strength_8: Strength = 1.0

    def run(self, step: Step, *prediction: Prediction | None) -> Prediction:
        weighed = [(getattr(self, f"strength_{number}"), part) for number, part in enumerate(prediction, start=1) if part is not None]
        total = sum(strength for strength, _ in weighed)
        if not total:
            return step.x * 0.0
        blended: Tensor = sum(part * strength for strength, part in weighed) / total
        return blended


class StepPattern(Node, category="denoise", stage="step_pattern"):
    """True in every `every`-th evaluation counted from `offset`, between `first` and `last` (-1: the end)."""

    every: Annotated[int, Field(ge=1, le=10000)] = 2
    offset: Annotated[int, Field(ge=0, le=10000)] = 0
    first: Annotated[int, Field(ge=0, le=10000)] = 0
    last: Annotated[int, Field(ge=-1, le=10000)] = -1

    def run(self, step: Step) -> Boolean:
        raise OutsideRegion(self)


class StepWindow(Node, category="denoise", stage="step_window"):
    """True while the noise level is within a window of the schedule, as ControlNets use it (fractions; 0 to 1 is always)."""

    start_percent: Fraction = 0.0
    end_percent: Fraction = 1.0

    def run(self, step: Step) -> Boolean:
        raise OutsideRegion(self)


class Switch(Node, category="denoise", stage="switch", lazy=("on_true", "on_false")):
    """One of two values; only the chosen side is evaluated. A missing side is nothing."""

    def needs(self, condition: bool, **available: object) -> tuple[str, ...]:
        return ("on_true",) if condition else ("on_false",)

    def run(self, condition: Boolean, on_true: Anything = None, on_false: Anything = None) -> Anything:
        return on_true if condition else on_false
