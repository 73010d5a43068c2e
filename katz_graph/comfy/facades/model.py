"""Presents a model to packs, which clone it and add functions for guidance or for calling the
network. The network's modules are not exposed.

An added function becomes an opaque patch of the recipe, which only this process can run.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal
from uuid import uuid4

from katz_graph.comfy.missing import refuse
from katz_graph.core.errors import InputError
from katz_graph.core.patches import OpaquePatch, Patch, opaque_patches
from katz_graph.core.recipe import ModelRecipe
from katz_graph.node.scope import acting_as, current

if TYPE_CHECKING:
    import torch

    from katz_graph.sampling.noise_table import NoiseTable

Kind = Literal["cfg_function", "post_cfg_function", "network_wrapper"]
CFG = "sampler_cfg_function"
POST_CFG = "sampler_post_cfg_function"
WRAPPER = "model_function_wrapper"
UNCOND_AT_ONE = "disable_cfg1_optimization"  # compute the negative prediction even at guidance 1
KINDS: Mapping[str, Kind] = {
    CFG: "cfg_function",
    POST_CFG: "post_cfg_function",
    WRAPPER: "network_wrapper",
}
PATCHER = "comfy.model_patcher.ModelPatcher"


class ModelFacade:
    """Represents the network of a recipe. Packs set functions in `model_options`, directly or
    through methods.
    """

    def __init__(self, recipe: ModelRecipe) -> None:
        self.recipe = recipe
        self.model_options: dict[str, Any] = {"transformer_options": {}, **_functions(recipe)}

    def clone(self, *_: Any, **__: Any) -> ModelFacade:
        other = ModelFacade(self.recipe)
        for name, value in self.model_options.items():
            other.model_options[name] = value.copy() if isinstance(value, (dict, list)) else value
        return other

    def is_clone(self, other: Any) -> bool:
        return isinstance(other, ModelFacade) and other.recipe.network == self.recipe.network

    def set_model_sampler_cfg_function(
        self, sampler_cfg_function: Callable[..., Any], disable_cfg1_optimization: bool = False
    ) -> None:
        """Replaces plain guidance by a function of a dictionary, or of (cond, uncond, scale)."""
        if len(inspect.signature(sampler_cfg_function).parameters) == 3:
            self.model_options[CFG] = lambda given: sampler_cfg_function(
                given["cond"], given["uncond"], given["cond_scale"]
            )
        else:
            self.model_options[CFG] = sampler_cfg_function
        self._wants_uncond(disable_cfg1_optimization)

    def set_model_sampler_post_cfg_function(
        self, post_cfg_function: Callable[..., Any], disable_cfg1_optimization: bool = False
    ) -> None:
        """Adds a function to run after guidance and earlier additions."""
        self.model_options[POST_CFG] = [*self.model_options.get(POST_CFG, ()), post_cfg_function]
        self._wants_uncond(disable_cfg1_optimization)

    def set_model_unet_function_wrapper(self, unet_wrapper_function: Callable[..., Any]) -> None:
        """Sets the function that calls the network."""
        self.model_options[WRAPPER] = unet_wrapper_function

    def get_model_object(self, name: str) -> Any:
        """Returns `latent_format` or `model_sampling`."""
        known: Mapping[str, Callable[[ModelRecipe], Any]] = {
            "latent_format": LatentFormat,
            "model_sampling": ModelSampling,
        }
        return (
            known[name](self.recipe)
            if name in known
            else refuse(f"{PATCHER}.get_model_object({name!r})")
        )

    @property
    def model(self) -> InnerModel:
        return InnerModel(self.recipe)

    @property
    def load_device(self) -> torch.device:
        from katz_graph.comfy.running import compute_device

        return compute_device()

    @property
    def offload_device(self) -> torch.device:
        import torch

        return torch.device("cpu")

    def model_dtype(self) -> torch.dtype:
        import torch

        return torch.float16 if self.load_device.type == "cuda" else torch.float32

    def model_size(self) -> int:
        """Returns the files' total bytes."""
        return sum(file.size for file in self.recipe.network.files)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        refuse(f"{PATCHER}.{name}")

    def _wants_uncond(self, wanted: bool) -> None:
        if wanted:
            self.model_options[UNCOND_AT_ONE] = True


class LatentFormat:
    """Converts latents between links and the network's normalised space."""

    def __init__(self, recipe: ModelRecipe) -> None:
        self.space = space = recipe.latent
        # ComfyUI's formats with a mean and a deviation for each channel have a factor of 1
        self.scale_factor = 1.0 if isinstance(space.scale, tuple) else space.scale
        self.latent_channels = space.channels
        self.spacial_downscale_ratio = space.factor
        self.latent_dimensions = 3 if space.frames else 2

    def process_in(self, latent: Any) -> Any:
        return self.space.normalised(latent)

    def process_out(self, latent: Any) -> Any:
        return self.space.restored(latent)

    def __getattr__(self, name: str) -> Any:
        refuse(f"comfy.latent_formats.LatentFormat.{name}")


class ModelSampling:
    """Provides the noise levels of a model."""

    def __init__(self, recipe: ModelRecipe) -> None:
        from katz_graph.planner.sampling import table_of

        self.table: NoiseTable = table_of(recipe)

    @property
    def sigmas(self) -> Any:
        return self.table.sigmas

    @property
    def sigma_min(self) -> Any:
        return self.table.sigmas[0]

    @property
    def sigma_max(self) -> Any:
        return self.table.sigmas[-1]

    def sigma(self, timestep: Any) -> Any:
        import torch

        return self.table.sigma_at(torch.as_tensor(timestep))

    def timestep(self, sigma: Any) -> Any:
        import torch

        levels = torch.as_tensor(sigma)
        return torch.tensor([self.table.timestep_at(level) for level in levels.flatten()]).reshape(
            levels.shape
        )

    def percent_to_sigma(self, percent: float) -> float:
        # packs do arithmetic with the value, so infinity is replaced by a large number
        return min(self.table.percent_to_sigma(percent), 999999999.9)

    def __getattr__(self, name: str) -> Any:
        refuse(f"comfy.model_sampling.ModelSampling.{name}")


class InnerModel:
    """Holds the parts of the model that packs may read."""

    def __init__(self, recipe: ModelRecipe) -> None:
        self._recipe = recipe

    @property
    def latent_format(self) -> LatentFormat:
        return LatentFormat(self._recipe)

    @property
    def model_sampling(self) -> ModelSampling:
        return ModelSampling(self._recipe)

    def __getattr__(self, name: str) -> Any:
        refuse(f"{PATCHER}.model.{name}")


class PackFunction:
    """Calls a pack's function under the pack's name. If the arguments contain `model`, the function
    receives an InnerModel instead.
    """

    def __init__(self, function: Callable[..., Any], pack: str) -> None:
        self.function, self.pack = function, pack

    def __call__(self, *arguments: Any) -> Any:
        *before, given = arguments
        shown = {**given, "model": InnerModel(given["model"])} if "model" in given else given
        with acting_as(self.pack):
            return self.function(*before, shown)


def patched_recipe(model: ModelFacade) -> ModelRecipe:
    """Returns the recipe with the functions that a pack put into `model_options`. InputError for
    options that would change the network's layers.
    """
    options = dict(model.model_options)
    inside = options.pop("transformer_options", {})
    foreign = [
        f"model_options[{name!r}]" for name in options if name not in (*KINDS, UNCOND_AT_ONE)
    ]
    foreign += [
        f"model_options['transformer_options'][{name!r}]" for name, value in inside.items() if value
    ]
    if foreign:
        raise InputError(
            f"the pack set {', '.join(foreign)} on the model, which Katz Graph does not have"
        )
    wants_uncond = bool(options.get(UNCOND_AT_ONE))
    known = {
        (patch.kind, id(_as_given(patch))): patch for patch in opaque_patches(model.recipe.patches)
    }
    patches: list[Patch] = list(model.recipe.patches)
    for name, kind in KINDS.items():
        given = options.get(name)
        functions = (given if isinstance(given, list) else [given]) if given is not None else []
        wanted = [
            known.get((kind, id(function))) or _patch(kind, function, wants_uncond)
            for function in functions
        ]
        patches = _with_all(patches, kind, wanted)
    return replace(model.recipe, patches=tuple(patches))


def _with_all(patches: Iterable[Patch], kind: Kind, wanted: Sequence[OpaquePatch]) -> list[Patch]:
    """Replaces the patches of one kind. Existing ones keep their place unless their order changed;
    new ones are appended.
    """
    others = [
        patch for patch in patches if not (isinstance(patch, OpaquePatch) and patch.kind == kind)
    ]
    stay = [patch for patch in patches if patch in others or patch in wanted]
    there = [patch for patch in stay if patch in wanted]
    return (
        [*stay, *wanted[len(there) :]]
        if there == list(wanted[: len(there)])
        else [*others, *wanted]
    )


def _patch(kind: Kind, function: Callable[..., Any], wants_uncond: bool) -> OpaquePatch:
    now = current()
    pack = now.pack if now is not None else ""
    name = getattr(function, "__qualname__", type(function).__name__)
    return OpaquePatch(
        kind, f"{pack or 'pack'}:{name}:{uuid4().hex}", PackFunction(function, pack), wants_uncond
    )


def _as_given(patch: OpaquePatch) -> Callable[..., Any]:
    return patch.function.function if isinstance(patch.function, PackFunction) else patch.function


def _functions(recipe: ModelRecipe) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for patch in opaque_patches(recipe.patches):
        name = next(name for name, kind in KINDS.items() if kind == patch.kind)
        options[name] = (
            [*options.get(name, ()), _as_given(patch)] if name == POST_CFG else _as_given(patch)
        )
        if patch.needs_uncond:
            options[UNCOND_AT_ONE] = True
    return options
