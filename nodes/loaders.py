"""Where models enter a graph. What comes out are recipes: nothing is loaded before something runs."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from katz_graph.context import Context
from katz_graph.models.family import controlnet_recipe, pipeline_recipes
from katz_graph.models.identity import file_identity
from katz_graph.node import FileChoice, Node, Widget
from katz_graph.recipe import Lora, digest
from katz_graph.wires import Clip, ControlNet, Model, Vae

LoraStrength = Annotated[float, Field(ge=-100.0, le=100.0), Widget(step=0.01)]


class CheckpointLoaderSimple(Node, category="loaders", title="Load Checkpoint"):
    """A whole pipeline by name: UNet, text encoders and VAE. A folder in diffusers' layout, or a hub id where there is network."""

    ckpt_name: Annotated[str, FileChoice("checkpoints")]

    def fingerprint(self, context: Context) -> Any:
        return [digest(recipe) for recipe in self.run(context)]

    def run(self, context: Context) -> tuple[Model, Clip, Vae]:
        return pipeline_recipes(context.folders.resolve("checkpoints", self.ckpt_name))


class ControlNetLoader(Node, category="loaders", title="Load ControlNet Model"):
    """A ControlNet by name."""

    control_net_name: Annotated[str, FileChoice("controlnet")]

    def fingerprint(self, context: Context) -> Any:
        return digest(self.run(context))

    def run(self, context: Context) -> ControlNet:
        return controlnet_recipe(context.folders.resolve("controlnet", self.control_net_name))


class LoraLoader(Node, category="loaders", title="Load LoRA"):
    """A LoRA on top of a model and its text encoders, each with a strength of its own."""

    lora_name: Annotated[str, FileChoice("loras")]
    strength_model: LoraStrength = 1.0
    strength_clip: LoraStrength = 1.0

    def fingerprint(self, context: Context) -> Any:
        return digest(file_identity(context.folders.resolve("loras", self.lora_name)))

    def run(self, model: Model, clip: Clip, context: Context) -> tuple[Model, Clip]:
        file = file_identity(context.folders.resolve("loras", self.lora_name))
        patched_model = model.with_lora(Lora(file, self.strength_model)) if self.strength_model else model
        patched_clip = clip.with_lora(Lora(file, self.strength_clip)) if self.strength_clip else clip
        return patched_model, patched_clip
