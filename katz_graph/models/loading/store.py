"""Loads components as live modules of diffusers and transformers, each once. Local safetensors
only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any

import diffusers
import torch
import transformers
from diffusers.utils import logging as diffusers_logging
from safetensors import SafetensorError
from transformers.utils import logging as transformers_logging

from katz_graph.errors import InputError
from katz_graph.host.memory import is_out_of_memory
from katz_graph.kernels.dispatch import uses_kernels
from katz_graph.messages import first_line
from katz_graph.models.configuration import config, expect_class
from katz_graph.models.family import families, family_of
from katz_graph.models.loading.convert import build
from katz_graph.models.loading.form import form_of
from katz_graph.models.loading.identity import check_unchanged, count_values, value_types, variant
from katz_graph.models.loading.loadable import Loadable, Shells, copy_weights
from katz_graph.models.loading.memory import DeviceMemory
from katz_graph.models.loading.quiet import quiet
from katz_graph.models.loading.residents import Residents
from katz_graph.models.prepare import fuse_projections, prepare
from katz_graph.models.text.tokens import load_tokenizer
from katz_graph.recipe import Component, FileIdentity, MergedComponent

SHOWN = 3  # mismatches that an error names
# as safetensors calls them
VALUE_TYPES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
LIBRARIES = (diffusers_logging, transformers_logging)  # whose notes matter only as errors of ours
LOADING = Lock()  # diffusers patches torch.nn while it builds a module, for all threads

TEXT_ENCODERS = {
    "CLIPTextModel": transformers.CLIPTextModel,
    "CLIPTextModelWithProjection": transformers.CLIPTextModelWithProjection,
}


class ModelStore:
    """Loads modules by component, device and dtype, in eval mode and without gradients: what is
    equal is loaded once and shared.

    `residents` keeps them within the memory of a device. The holder of a module may patch its
    weights in place (a weight set); the store knows nothing of that. It remembers which VAEs
    overflow in half precision.
    """

    def __init__(
        self,
        control_net_bytes: int | None = None,
        policy: str = "lru",
        model_bytes: int | None = None,
        memory: DeviceMemory | None = None,
    ) -> None:
        self.residents = Residents(model_bytes, memory, control_net_bytes, policy)
        self._overflowing: set[Component] = set()

    def network(self, part: Component, device: torch.device | str, dtype: torch.dtype) -> Any:
        return self.residents.get(self.network_of(part, device, dtype))

    def network_of(
        self, part: Component, device: torch.device | str, dtype: torch.dtype
    ) -> Loadable:
        return loadable(
            family_of(part).network.part, part, device, dtype, lambda: _prepared(part, dtype)
        )

    def controlnet(
        self,
        part: Component,
        device: torch.device | str,
        dtype: torch.dtype,
        base: Component | None = None,
    ) -> Any:
        """Returns the module. base: the network that the file's weights are differences to."""
        return self.residents.get(self.controlnet_of(part, device, dtype, base))

    def controlnet_of(
        self,
        part: Component,
        device: torch.device | str,
        dtype: torch.dtype,
        base: Component | None = None,
    ) -> Loadable:
        made = loadable(
            "ControlNet",
            part,
            device,
            dtype,
            lambda: _load_controlnet(part, dtype, base),
            () if base is None else base.files,
        )
        return replace(made, key=(part, base, str(torch.device(device)), dtype), control_net=True)

    def vae(self, part: Component, device: torch.device | str, dtype: torch.dtype) -> Any:
        return self.residents.get(self.vae_of(part, device, dtype))

    def vae_of(self, part: Component, device: torch.device | str, dtype: torch.dtype) -> Loadable:
        """Describes a VAE, in float32 once it is known that another type overflows."""
        dtype = torch.float32 if part in self._overflowing else dtype
        return loadable(
            "VAE", part, device, dtype, lambda: _load(diffusers.AutoencoderKL, part, dtype)
        )

    def vae_overflows(self, part: Component) -> None:
        """Notes that half precision does not suffice for this VAE."""
        self._overflowing.add(part)

    def text_encoder(self, part: Component, device: torch.device | str, dtype: torch.dtype) -> Any:
        return self.residents.get(self.text_encoder_of(part, device, dtype))

    def text_encoder_of(
        self, part: Component, device: torch.device | str, dtype: torch.dtype
    ) -> Loadable:
        names = config(part).get("architectures") or ["CLIPTextModel"]
        if names[0] not in TEXT_ENCODERS:
            raise InputError(
                f"{part.folder}: config.json describes {names[0]}, expected "
                f"{' or '.join(TEXT_ENCODERS)}"
            )
        return loadable(
            "text encoder", part, device, dtype, lambda: _load(TEXT_ENCODERS[names[0]], part, dtype)
        )

    def tokenizer(self, part: Component) -> Any:
        return load_tokenizer(part)


def loadable(
    kind: str,
    part: Component,
    device: torch.device | str,
    dtype: torch.dtype,
    load: Callable[[], Any],
    more: tuple[FileIdentity, ...] = (),
) -> Loadable:
    """Describes a module that `load` makes on the host, as it is kept on a device. `more`: files
    that it is made of besides the part's own.
    """
    place = torch.device(device)
    return Loadable(
        (part, str(place), dtype),
        f"{kind} {_called(part)}",
        lambda: _size(part, dtype),
        lambda: _on(place, load(), part, dtype),
        (*files_of(part), *more),
        shells=Shells(
            lambda: form_of(part, place, dtype), lambda shell: copy_weights(load(), shell)
        ),
    )


def files_of(part: Component) -> tuple[FileIdentity, ...]:
    """Returns all files that a module is made of."""
    if not isinstance(part, MergedComponent):
        return part.files
    return tuple(
        file
        for source, loras in part.sources
        for file in (*files_of(source), *(lora.file for lora in loras))
    )


def _called(part: Component) -> str:
    """Returns the display name of a model: the name of its file, or of its folder; of a pipeline's
    part that of the pipeline.
    """
    path = Path(part.folder)
    if path.name.partition("_2")[0] in (
        "vae",
        "text_encoder",
        *(family.network.part for family in families()),
    ):
        path = path.parent
    return path.stem if path.suffix == ".safetensors" else path.name


@torch.no_grad()
def _on(place: torch.device, module: Any, part: Component, dtype: torch.dtype) -> Any:
    """Moves the module to a device, its known blocks prepared for it. On the host, weights that
    needed no conversion are the file's own bytes, mapped: they are copied, as others are anyway, so
    that writing to the file changes no live weight, and cutting it off ends no process.
    """
    if place.type == "cpu" and VALUE_TYPES.get(dtype) in value_types(part):
        for weight in module.parameters():
            weight.data = weight.data.clone()
    prepare(module)
    module.to(place)
    if uses_kernels(
        next(module.parameters())
    ):  # convolutions of GPUs are fastest so, and norms ready
        module.to(memory_format=torch.channels_last)
        fuse_projections(module)
    return module


def _size(part: Component, dtype: torch.dtype) -> int:
    """Returns the bytes that its weights take in memory."""
    check_unchanged(*part.files)
    return count_values(part) * dtype.itemsize


def _load_controlnet(part: Component, dtype: torch.dtype, base: Component | None) -> Any:
    module = _prepared(part, dtype)
    # not the live one, which may have LoRAs in it
    return module if base is None else _added(module, _load_network(base, dtype))


def _prepared(part: Component, dtype: torch.dtype) -> Any:
    """Loads a network or ControlNet, ready for its stages."""
    return family_of(part).prepared(_load_network(part, dtype))


def _load_network(part: Component, dtype: torch.dtype) -> Any:
    family_of(part)
    return _load(getattr(diffusers, config(part)["_class_name"]), part, dtype)


def _load(model: Any, part: Component, dtype: torch.dtype) -> Any:
    check_unchanged(*part.files)
    if model.__module__.startswith("diffusers"):
        expect_class(part, model.__name__)
    with LOADING, quiet(*LIBRARIES):
        try:
            module, report = (
                _from_folder(model, part, dtype)
                if part.configuration is None
                else build(model, part, dtype)
            )
        except (OSError, ValueError, TypeError, RuntimeError, SafetensorError) as error:
            if is_out_of_memory(error):
                raise
            raise InputError(
                f"{part.folder}: cannot be loaded as {model.__name__}: {first_line(error)}"
            ) from error
    _check_report(part, model.__name__, report)
    check_unchanged(*part.files)
    if part.rounding is not None:
        _round(module, getattr(torch, part.rounding))
    return module.eval().requires_grad_(False)


def _from_folder(model: Any, part: Component, dtype: torch.dtype) -> tuple[Any, dict[str, Any]]:
    module, report = model.from_pretrained(
        part.folder,
        dtype=dtype,
        variant=variant(part),
        use_safetensors=True,
        local_files_only=True,
        ignore_mismatched_sizes=True,
        output_loading_info=True,
    )
    return module, report


@torch.no_grad()
def _round(module: Any, kind: torch.dtype) -> None:
    """Rounds all weights to a number format of fewer bits; they stay in the one that they are
    computed in.
    """
    for weight in module.parameters():
        limit = torch.finfo(kind).max
        weight.copy_(weight.clamp(-limit, limit).to(kind))


@torch.no_grad()
def _added(differences: Any, base: Any) -> Any:
    """Adds the weights of the same name in `base` to a module whose weights are differences."""
    weights = dict(base.named_parameters())
    for name, weight in differences.named_parameters():
        if name in weights:
            weight += weights[name].to(weight.device)
    return differences


def _check_report(part: Component, name: str, report: dict[str, Any]) -> None:
    weights = next(file.path for file in part.files if file.path.endswith(".safetensors"))
    what = (
        f"does not fit config.json beside it ({name})"
        if part.configuration is None
        else f"is no whole {name}"
    )
    mismatched = [
        f"{key} is {list(got)}, expected {list(wanted)}"
        for key, got, wanted in sorted(report["mismatched_keys"])
    ]
    for problem, keys in (
        ("of another shape", mismatched),
        ("missing", sorted(report["missing_keys"])),
        ("unknown", sorted(report["unexpected_keys"])),
    ):
        if keys:
            more = f" and {len(keys) - SHOWN} more" if len(keys) > SHOWN else ""
            raise InputError(f"{weights}: {what}: {problem}: {'; '.join(keys[:SHOWN])}{more}")
