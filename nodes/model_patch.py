"""Loads networks that patch a model directly, without a conditioning, and applies them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from katz_graph.core.recipe import ControlUse, Picture, digest
from katz_graph.models.family import check_controlnet
from katz_graph.models.loading.sources import controlnet_recipe
from katz_graph.node import FileChoice, Node, Widget
from katz_graph.node.types import Context
from katz_graph.node.wires import Image, Mask, Model, ModelPatch, Vae

PatchStrength = Annotated[float, Field(ge=-10.0, le=10.0), Widget(step=0.01)]


class ModelPatchLoader(Node, category="advanced/loaders"):
    """Loads a ControlNet that patches a model instead of a conditioning."""

    name: Annotated[str, FileChoice("model_patches")]

    def fingerprint(self, context: Context) -> Any:
        return digest(self.run(context))

    def run(self, context: Context) -> ModelPatch:
        return controlnet_recipe(context.folders.resolve("model_patches", self.name))


class QwenImageDiffsynthControlnet(Node, category="advanced/loaders/qwen"):
    """Applies a reference image to a model patch, for every conditioning. The mask is for
    inpainting patches.
    """

    strength: PatchStrength = 1.0

    def run(
        self,
        model: Model,
        model_patch: ModelPatch,
        vae: Vae,
        image: Image,
        context: Context,
        mask: Mask | None = None,
    ) -> Model:
        check_controlnet(model_patch, model)
        if mask is not None:
            context.warn(
                f"QwenImageDiffsynthControlnet: {model_patch.control_net.folder} reads no mask, so "
                "the mask is not used"
            )
        use = ControlUse(model_patch, Picture.of(image), self.strength, vae=vae)
        return model.with_control(use)
