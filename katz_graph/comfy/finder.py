"""Provides the ComfyUI modules that packs import. Each is a file in `shims/` and is loaded on first
import.

The finder precedes all others, because pack files may also be called `nodes` or `server`. It is not
installed if ComfyUI itself can be imported.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from katz_graph.comfy.missing import missing_names
from katz_graph.core.errors import RunError
from katz_graph.files.folders import Folders
from katz_graph.node.types import NodeType

SHIMS = Path(__file__).parent / "shims"
NAME_ONLY_MODULES = frozenset(
    (
        "app",
        "comfy.checkpoint_pickle",
        "comfy.cldm",
        "comfy.clip_vision",
        "comfy.conds",
        "comfy.context_windows",
        "comfy.diffusers_convert",
        "comfy.diffusers_load",
        "comfy.extra_samplers",
        "comfy.float",
        "comfy.gligen",
        "comfy.hooks",
        "comfy.image_encoders",
        "comfy.k_diffusion",
        "comfy.latent_formats",
        "comfy.ldm",
        "comfy.lora",
        "comfy.lora_convert",
        "comfy.model_base",
        "comfy.model_detection",
        "comfy.model_patcher",
        "comfy.model_sampling",
        "comfy.nested_tensor",
        "comfy.ops",
        "comfy.patcher_extension",
        "comfy.quant_ops",
        "comfy.sampler_helpers",
        "comfy.sd1_clip",
        "comfy.sd3_clip",
        "comfy.sdxl_clip",
        "comfy.supported_models",
        "comfy.supported_models_base",
        "comfy.t2i_adapter",
        "comfy.taesd",
        "comfy.text_encoders",
        "comfy.weight_adapter",
        "comfy_api.feature_flags",
        "comfy_api.torch_helpers",
        "comfy_extras",
        "cuda_malloc",
        "execution",
        "protocol",
    )
)
"""Modules that can be imported but are empty, with their submodules."""


class Shims(MetaPathFinder, Loader):
    """Finds shims, and holds their state: the model folders, the loaded node types, and the
    registrations that packs make while they load.
    """

    def __init__(self, folders: Folders, types: Mapping[str, NodeType]) -> None:
        self.folders, self.types = folders, types
        self.packs: list[str] = []  # folders that contain packs
        self.classes: dict[str, type] = {}  # node classes by name
        # `folder_names_and_paths` of packs
        self.model_folders: dict[str, tuple[list[str], set[str]]] = {}
        # (method, path, handler)
        self.routes: list[tuple[str, str, Callable[..., Any]]] = []

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        file = SHIMS.joinpath(*fullname.split("."))
        if file.with_suffix(".py").is_file():
            return importlib.util.spec_from_file_location(fullname, file.with_suffix(".py"))
        if (file / "__init__.py").is_file():
            return importlib.util.spec_from_file_location(
                fullname, file / "__init__.py", submodule_search_locations=[]
            )
        return ModuleSpec(fullname, self, is_package=True) if _is_hollow(fullname) else None

    def exec_module(self, module: ModuleType) -> None:
        """Populates a name-only module with its submodules, built-in nodes, and stand-ins for all
        other names.
        """
        name = module.__name__
        stand_in = missing_names(name, None)

        def get(attribute: str) -> Any:
            if f"{name}.{attribute}" in NAME_ONLY_MODULES:
                return importlib.import_module(f"{name}.{attribute}")
            if attribute in self.types and name.startswith("comfy_extras"):
                return getattr(importlib.import_module("nodes"), attribute)
            return stand_in(attribute)

        vars(module)["__getattr__"] = get


def install(folders: Folders, types: Mapping[str, NodeType]) -> Shims | None:
    """Installs the finder with these folders and node types, or updates it. If the node types
    changed, the registrations of packs are cleared.

    Returns None and installs nothing if ComfyUI itself can be imported.
    """
    shims = _found()
    if shims is None:
        if importlib.util.find_spec("comfy") is not None:
            return None
        shims = Shims(folders, types)
        sys.meta_path.insert(0, shims)
    elif shims.types is not types:
        shims.folders, shims.types = folders, types
        for said in (shims.packs, shims.classes, shims.model_folders, shims.routes):
            said.clear()
    return shims


def installed() -> Shims:
    """Returns the finder. RunError if no pack that needs it has been loaded."""
    shims = _found()
    if shims is None:
        raise RunError("no ComfyUI pack that needs this has been loaded")
    return shims


def _found() -> Shims | None:
    return next((finder for finder in sys.meta_path if isinstance(finder, Shims)), None)


def _is_hollow(name: str) -> bool:
    parts = name.split(".")
    return any(".".join(parts[:length]) in NAME_ONLY_MODULES for length in range(1, len(parts) + 1))
