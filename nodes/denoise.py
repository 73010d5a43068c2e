"""Exposes the denoising loop as nodes: begin and end of a step, the parts of a UNet and the
features between them, ControlNets, guidance, and switches.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from pydantic import Field

from katz_graph.core.errors import InputError
from katz_graph.models.families.unet.architecture import unet_architecture
from katz_graph.node import Node, Widget
from katz_graph.node.knobs import (
    Fraction,
    Guidance,
    SamplerName,
    SchedulerName,
    Seed,
    Share,
    Steps,
    Strength,
    Text,
)
from katz_graph.node.types import VARIADIC
from katz_graph.node.wires import (
    Anything,
    Boolean,
    Conditioning,
    Features,
    Image,
    Latent,
    Mask,
    Model,
    Prediction,
    Residuals,
    Sampler,
    Sigmas,
    Step,
    Weighted,
)
from katz_graph.node.wires import (
    ControlNet as ControlNetWire,
)

Block = Annotated[int, Field(ge=-1, le=63)]
Cells = Annotated[int, Field(ge=0, le=2048)]
PREVIOUS = ("step", *(f"previous_{slot}" for slot in range(1, VARIADIC + 1)))
SlotOutputs = tuple[
    Step, Anything, Anything, Anything, Anything, Anything, Anything, Anything, Anything
]


class OutsideRegion(InputError):
    """A node of the denoising loop ran outside of a loop."""

    def __init__(self, node: Node) -> None:
        super().__init__(
            f"{type(node).__name__} only runs inside a step region: it needs a StepBegin upstream "
            "and a StepEnd downstream"
        )


class StepBegin(Node, category="denoise", stage="step_begin", names=PREVIOUS):
    """Begins one evaluation of the denoising loop.

    The step carries the model's scaled latent and the noise level. `previous_i` is the value of
    StepEnd's `next_i` in the previous evaluation; `initial_i` is its value in the first one.
    """

    seed: Seed = 0
    steps: Steps = 20
    sampler_name: SamplerName = "euler"
    scheduler: SchedulerName = "normal"
    denoise: Share = 1.0
    start_at_step: Annotated[int, Field(ge=0, le=10000)] = 0
    end_at_step: Annotated[int, Field(ge=0, le=10000)] = 10000
    add_noise: bool = True
    return_with_leftover_noise: bool = False

    def run(self, model: Model, latent_image: Latent, *initial: Anything) -> SlotOutputs:
        raise OutsideRegion(self)


class SigmasStepBegin(Node, category="denoise", stage="step_begin", names=PREVIOUS):
    """Begins one evaluation like StepBegin, with given noise levels and sampler."""

    seed: Seed = 0
    add_noise: bool = True

    def run(
        self,
        model: Model,
        sampler: Sampler,
        sigmas: Sigmas,
        latent_image: Latent,
        *initial: Anything,
    ) -> SlotOutputs:
        raise OutsideRegion(self)


class DiffusersStepBegin(Node, category="denoise", stage="step_begin", names=PREVIOUS):
    """Begins one evaluation with a scheduler of diffusers, which defines noise, timesteps and
    updates. Predictions stay raw.
    """

    scheduler_class: str = "EulerDiscreteScheduler"
    scheduler_config: Text = "{}"
    seed: Seed = 0
    steps: Steps = 20
    strength: Fraction = 1.0

    def run(self, model: Model, latent_image: Latent, *initial: Anything) -> SlotOutputs:
        raise OutsideRegion(self)


class StepEnd(Node, category="denoise", stage="step_end", names=("latent", "denoised")):
    """Ends one evaluation: the sampler takes the prediction. Outputs the latent after the last
    evaluation, and the denoised prediction at the start of the last step.
    """

    def run(self, step: Step, prediction: Prediction, *next: Anything) -> tuple[Latent, Latent]:
        raise OutsideRegion(self)


class UNetEncoder(Node, category="denoise", stage="unet_encoder"):
    """Runs down blocks of a UNet, from the step (first block 0) or from features. A last block of
    -1 means the model's last.
    """

    first_block: Annotated[int, Field(ge=0, le=63)] = 0
    last_block: Block = -1

    def run(
        self,
        model: Model,
        conditioning: Conditioning,
        step: Step | None = None,
        features: Features | None = None,
    ) -> Features:
        raise OutsideRegion(self)


class UNetMid(Node, category="denoise", stage="unet_mid"):
    """Runs the middle block of a UNet."""

    def run(self, model: Model, features: Features, conditioning: Conditioning) -> Features:
        raise OutsideRegion(self)


class ControlNet(Node, category="denoise", stage="controlnet"):
    """Runs a ControlNet on an image; outputs residuals for the UNet's skips and middle."""

    strength: Strength = 1.0

    def run(
        self, control_net: ControlNetWire, step: Step, conditioning: Conditioning, image: Image
    ) -> Residuals:
        raise OutsideRegion(self)


class UNetDecoder(Node, category="denoise", stage="unet_decoder", names=("features", "prediction")):
    """Runs up blocks of a UNet. Sums residuals and adds them to the skips, and to the middle if the
    range starts at block 0.

    `skips` replaces the skips and time embedding of `features` (deep features of an earlier
    evaluation). Outputs a prediction if the range reaches the last block.
    """

    first_block: Annotated[int, Field(ge=0, le=63)] = 0
    last_block: Block = -1

    def run(
        self,
        model: Model,
        features: Features,
        conditioning: Conditioning,
        skips: Features | None = None,
        *residuals: Residuals | None,
    ) -> tuple[Features, Prediction]:
        raise OutsideRegion(self)


class WrappedUNet(Node, category="denoise", stage="unet_wrapped"):
    """Runs a whole UNet through a pack's wrapper function. `uncond` marks the conditioning as
    negative.
    """

    uncond: bool = False

    def run(
        self, model: Model, conditioning: Conditioning, step: Step, *residuals: Residuals | None
    ) -> Prediction:
        raise OutsideRegion(self)


class CFGCombine(Node, category="denoise"):
    """Computes classifier-free guidance: uncond + (cond - uncond) · guidance (Ho and Salimans
    2022), added to `base` if linked.
    """

    guidance: Guidance = 8.0

    def run(
        self, cond: Prediction, uncond: Prediction, base: Prediction | None = None
    ) -> Prediction:
        from katz_graph.sampling.guidance import guided

        return guided(cond, uncond, self.guidance, base)


class PatchedCFGCombine(Node, category="denoise"):
    """Computes guidance with the model's patches, such as RescaleCFG or functions of packs. Without
    a negative prediction, guidance is 1. `weakened`: predictions without some blocks, one for each
    SkipLayerGuidanceDiT.
    """

    guidance: Guidance = 8.0

    def run(
        self,
        step: Step,
        model: Model,
        cond: Prediction,
        uncond: Prediction | None = None,
        *weakened: Prediction | None,
    ) -> Prediction:
        from katz_graph.planner.sampling import predicts_flow
        from katz_graph.sampling.guidance import patched_guidance

        on_flow = predicts_flow(model)
        return patched_guidance(model, step, cond, uncond, self.guidance, on_flow, weakened)


class StepCrop(Node, category="denoise"):
    """Crops the step's latent, in latent cells. Nodes after it see and predict only this part."""

    top: Cells = 0
    left: Cells = 0
    height: Annotated[int, Field(ge=1, le=2048)] = 64
    width: Annotated[int, Field(ge=1, le=2048)] = 64

    def run(self, step: Step) -> Step:
        rows = slice(self.top, self.top + self.height)
        columns = slice(self.left, self.left + self.width)
        if step.x.shape[-2] < rows.stop or step.x.shape[-1] < columns.stop:
            size = f"{step.x.shape[-1]}x{step.x.shape[-2]}"
            raise InputError(
                f"StepCrop: the part ends at {columns.stop}x{rows.stop} cells, the "
                f"latent has {size}"
            )
        x, model_input = (whole[..., rows, columns] for whole in (step.x, step.model_input))
        return replace(step, x=x, model_input=model_input)


class WeighPrediction(Node, category="denoise", stage="weigh"):
    """Weights a prediction by its strength times a mask (1 = all). Without a mask, fades towards
    the borders of a StepCrop.

    `step` is the whole step, `top` and `left` the position of the part.
    """

    strength: Annotated[float, Field(ge=0.0, le=100.0), Widget(step=0.01)] = 1.0
    top: Cells = 0
    left: Cells = 0

    def run(self, step: Step, prediction: Prediction, mask: Mask | None = None) -> Weighted:
        raise OutsideRegion(self)


class SumPredictions(Node, category="denoise"):
    """Sums weighted predictions, to blend more than one BlendPredictions has inputs for."""

    def run(self, step: Step, *weighted: Weighted | None) -> Weighted:
        from katz_graph.sampling.areas import summed

        return summed([one for one in weighted if one is not None], step.x)


class BlendPredictions(Node, category="denoise"):
    """Blends predictions to their weighted mean, cell by cell. Ignores missing inputs; outputs 0
    for cells without weight.
    """

    def run(self, step: Step, *weighted: Weighted | None) -> Prediction:
        from katz_graph.sampling.areas import blend

        return blend([one for one in weighted if one is not None], step.x)


class StepPattern(Node, category="denoise", stage="step_pattern"):
    """Outputs true in every `every`-th evaluation counted from `offset`, between `first` and `last`
    (-1: the end).
    """

    every: Annotated[int, Field(ge=1, le=10000)] = 2
    offset: Annotated[int, Field(ge=0, le=10000)] = 0
    first: Annotated[int, Field(ge=0, le=10000)] = 0
    last: Annotated[int, Field(ge=-1, le=10000)] = -1

    def run(self, step: Step) -> Boolean:
        raise OutsideRegion(self)


class StepWindow(Node, category="denoise", stage="step_window"):
    """Outputs true while the noise level is within a window of the schedule (fractions, as for
    ControlNets; 0 to 1 is always).
    """

    start_percent: Fraction = 0.0
    end_percent: Fraction = 1.0

    def run(self, step: Step) -> Boolean:
        raise OutsideRegion(self)


class Switch(Node, category="denoise", stage="switch", lazy=("on_true", "on_false")):
    """Outputs one of two inputs and evaluates only that one. If it is missing, outputs nothing."""

    def needs(self, condition: bool, **available: object) -> tuple[str, ...]:
        return ("on_true",) if condition else ("on_false",)

    def run(
        self, condition: Boolean, on_true: Anything = None, on_false: Anything = None
    ) -> Anything:
        return on_true if condition else on_false


class ScaleFeatures(Node, category="denoise"):
    """Scales the inputs of an up block, as FreeU does (Si et al. 2024): multiplies half of the
    hidden channels by `backbone` and the low frequencies of the block's skips by `skip`. Link it
    directly before the UNetDecoder of that block.
    """

    up_block: Annotated[int, Field(ge=0, le=63)] = 0
    backbone: Strength = 1.1
    skip: Strength = 0.9

    def run(self, model: Model, features: Features) -> Features:
        from katz_graph.models.families.unet.freeu import scale_backbone, scale_low_frequencies

        positions = unet_architecture(model.network).skip_range(self.up_block)
        hidden = scale_backbone(features.hidden, self.backbone)
        skips = tuple(
            scale_low_frequencies(skip, self.skip) if position in positions else skip
            for position, skip in enumerate(features.skips)
        )
        return replace(features, hidden=hidden, skips=skips)
