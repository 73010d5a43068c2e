"""Loads components as modules of diffusers and transformers, each once, from local safetensors
only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

import torch
from diffusers.utils import logging as diffusers_logging
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers.utils import logging as transformers_logging

from katz_graph.core.errors import InputError
from katz_graph.core.messages import first_line
from katz_graph.core.recipe import Component, FileIdentity, MergedComponent, TextEncoderRecipe
from katz_graph.files.weights import without_ending
from katz_graph.host.memory import is_out_of_memory
from katz_graph.models.configuration import config
from katz_graph.models.family import families, family_of, family_of_class
from katz_graph.models.loading.contents import contents_of
from katz_graph.models.loading.convert import blank, formats, stored_tensor, tensors
from katz_graph.models.loading.fill import NO_FORMATS, fill, is_wide, with_memory
from katz_graph.models.loading.form import form_of
from katz_graph.models.loading.identity import check_unchanged, count_values
from katz_graph.models.loading.loadable import Loadable, Shells, Widening
from katz_graph.models.loading.memory import DeviceMemory
from katz_graph.models.loading.quiet import quiet
from katz_graph.models.loading.residents import NO_HOOKS, ResidentHooks, Residents
from katz_graph.models.loading.shapes import parameter_shapes
from katz_graph.models.quantised_weight import Format
from katz_graph.models.text.kinds import kind_of
from katz_graph.models.text.tokens import load_tokenizer
from katz_graph.models.vae.kinds import kind_named as vae_kind
from katz_graph.models.vae.kinds import kind_of as vae_kind_of

Result = TypeVar("Result")

LIBRARIES = (diffusers_logging, transformers_logging)  # silenced by `quiet`
WIDENING = 1.2  # bytes for widening a weight, in bytes of the wide weight
SCALE_BYTES = 4
LOADING = Lock()  # the libraries' log levels are process-wide


class ModelStore:
    """Loads modules by component, device and dtype, in eval mode and without gradients. Equal
    requests share one module.

    `residents` keeps the modules within a device's memory. Callers may patch weights in place
    (weight sets); the store does not track patches. Records the VAEs that overflow in half
    precision. `widens`: weights that are stored as 8-bit numbers are widened while they are loaded.
    """

    def __init__(
        self,
        hooks: ResidentHooks = NO_HOOKS,
        control_net_bytes: int | None = None,
        policy: str = "lru",
        model_bytes: int | None = None,
        memory: DeviceMemory | None = None,
        widens: bool = False,
    ) -> None:
        self._widens = widens
        self.residents = Residents(hooks, model_bytes, memory, control_net_bytes, policy)
        self._overflowing: set[Component] = set()

    def network(self, part: Component, device: torch.device | str, dtype: torch.dtype) -> Any:
        return self.residents.get(self.network_of(part, device, dtype))

    def network_of(
        self, part: Component, device: torch.device | str, dtype: torch.dtype
    ) -> Loadable:
        kind = family_of(part).network.part
        return self._loadable(kind, part, device, dtype)

    def controlnet(
        self,
        part: Component,
        device: torch.device | str,
        dtype: torch.dtype,
        base: Component | None = None,
    ) -> Any:
        """Returns the module. base: the network that a file of differences is added to."""
        return self.residents.get(self.controlnet_of(part, device, dtype, base))

    def controlnet_of(
        self,
        part: Component,
        device: torch.device | str,
        dtype: torch.dtype,
        base: Component | None = None,
    ) -> Loadable:
        write = partial(_fill_controlnet, part, base)
        more = () if base is None else base.files
        widens = self._widens or base is not None
        made = loadable("ControlNet", part, device, dtype, write, more, widens)
        return replace(made, key=(part, base, str(torch.device(device)), dtype), control_net=True)

    def vae(self, part: Component, device: torch.device | str, dtype: torch.dtype) -> Any:
        return self.residents.get(self.vae_of(part, device, dtype))

    def vae_of(self, part: Component, device: torch.device | str, dtype: torch.dtype) -> Loadable:
        """Describes a VAE to load, in float32 if it is known to overflow."""
        vae_kind_of(part)
        dtype = torch.float32 if part in self._overflowing else dtype
        return self._loadable("VAE", part, device, dtype)

    def vae_overflows(self, part: Component) -> None:
        """Records that this VAE overflows in half precision."""
        self._overflowing.add(part)

    def text_encoder(self, part: Component, device: torch.device | str, dtype: torch.dtype) -> Any:
        return self.residents.get(self.text_encoder_of(part, device, dtype))

    def text_encoder_of(
        self, part: Component, device: torch.device | str, dtype: torch.dtype
    ) -> Loadable:
        kind_of(part)
        return self._loadable("text encoder", part, device, dtype)

    def _loadable(
        self, kind: str, part: Component, device: torch.device | str, dtype: torch.dtype
    ) -> Loadable:
        write = partial(fill_from_files, part)
        return loadable(kind, part, device, dtype, write, widens=self._widens)

    def output_layer_of(
        self, part: Component, name: str, device: torch.device | str, dtype: torch.dtype
    ) -> Loadable:
        """Describes the layer from a language model's states to scores of words, stored as `name`
        in its files.
        """
        words, width = next(
            shapes[name]
            for file in part.weight_files
            if name in (shapes := contents_of(file).shapes)
        )

        def load() -> nn.Module:
            layer = nn.Linear(width, words, bias=False, device="meta").requires_grad_(False)
            filled = with_memory(layer, torch.device(device), dtype)
            fill(filled, {"weight": _explained(part, lambda: stored_tensor(part, name, dtype))})
            check_unchanged(*part.files)
            return filled

        return Loadable(
            (part, name, str(torch.device(device)), dtype),
            f"output layer {_called(part)}",
            lambda: words * width * dtype.itemsize,
            load,
            files_of(part),
            name,
        )

    def tokenizer(self, encoder: TextEncoderRecipe) -> Any:
        return load_tokenizer(encoder)


def loadable(
    kind: str,
    part: Component,
    device: torch.device | str,
    dtype: torch.dtype,
    write: Callable[[Any], None],
    more: tuple[FileIdentity, ...] = (),
    widens: bool = False,
) -> Loadable:
    """Describes a module to load; `write` copies its weights. `more`: additional source files.
    `widens`: weights that are stored as 8-bit numbers are wide in memory.
    """
    place = torch.device(device)

    def stored() -> Mapping[str, Format]:
        if widens:
            return NO_FORMATS
        check_unchanged(*part.files)
        return _explained(part, partial(formats, part))

    return Loadable(
        (part, str(place), dtype),
        f"{kind} {_called(part)}",
        lambda: _size(part, dtype, stored()),
        lambda: shell(part, place, dtype, stored()),
        (*files_of(part), *more),
        part.prefix,
        widening=lambda: _widening(part, dtype, stored()),
        shells=Shells(lambda: form_of(part, place, dtype, stored()), write),
    )


def files_of(part: Component) -> tuple[FileIdentity, ...]:
    """Returns all source files of a module."""
    if not isinstance(part, MergedComponent):
        return part.files
    return tuple(
        file
        for source, loras in part.sources
        for file in (*files_of(source), *(lora.file for lora in loras))
    )


@lru_cache(maxsize=1024)
def _called(part: Component) -> str:
    """Returns the display name of a model: the name of its file or folder, or of the pipeline for a
    part of a pipeline.
    """
    path = Path(part.folder)
    if path.name.partition("_2")[0] in (
        "vae",
        "text_encoder",
        *(family.network.part for family in families()),
    ):
        path = path.parent
    return without_ending(path.name)


def _size(part: Component, dtype: torch.dtype, stored: Mapping[str, Format]) -> int:
    """Returns the bytes of a component's weights in memory."""
    check_unchanged(*part.files)
    values = sum(how.values for how in stored.values())
    scales = sum(how.shape[0] for how in stored.values() if how.scaled)
    wide = _wide_values(part) * (torch.float32.itemsize - dtype.itemsize)
    return (values_of(part) - values) * dtype.itemsize + values + scales * SCALE_BYTES + wide


def _wide(part: Component) -> tuple[str, ...]:
    """Returns the words of a network's weights in float32."""
    name = config(part).get("_class_name")
    family = family_of_class(name)
    return () if family is None or name != family.network.class_name else family.network.wide


def _wide_values(part: Component) -> int:
    """Counts the values of a component that are float32 in every number format."""
    words = _wide(part)
    if not words:
        return 0
    shapes = parameter_shapes(part)
    return sum(math.prod(shape) for name, shape in shapes.items() if is_wide(name, words))


def values_of(part: Component) -> int:
    """Counts the values of a component that are loaded."""
    kind = vae_kind(config(part).get("_class_name"))
    return count_values(part) if kind is None else count_values(part, kind.loaded)


def _widening(part: Component, dtype: torch.dtype, stored: Mapping[str, Format]) -> Widening | None:
    if not stored:
        return None
    largest = max(how.values for how in stored.values())
    return Widening(values_of(part) * dtype.itemsize, int(WIDENING * largest * dtype.itemsize))


def shell(
    part: Component,
    place: torch.device,
    dtype: torch.dtype,
    stored: Mapping[str, Format] = NO_FORMATS,
) -> nn.Module:
    """Builds a module prepared for its stages, with uninitialised memory."""
    module = _explained(part, partial(blank, part))
    family = family_of_class(config(part).get("_class_name"))
    module = module if family is None else family.prepared(module)
    with LOADING, quiet(*LIBRARIES):  # diffusers warns about each cast
        return with_memory(module, place, dtype, stored, _wide(part))


def fill_from_files(part: Component, module: nn.Module) -> None:
    """Copies a component's weights from its files into a module. Raises InputError if the files do
    not fit the module or change during the copy.
    """
    fill(module, _read(part, module))
    check_unchanged(*part.files)


def _fill_controlnet(part: Component, base: Component | None, module: nn.Module) -> None:
    fill_from_files(part, module)
    if base is None:
        return

    def add(weight: Tensor, tensor: Tensor) -> None:
        weight += tensor.to(weight.dtype)

    there = dict(module.named_parameters())
    # reads the files because the loaded network may have LoRAs merged
    given = _read(base, _explained(base, partial(blank, base)))
    fill(module, {name: tensor for name, tensor in given.items() if name in there}, add)
    check_unchanged(*base.files)


def _read(part: Component, module: nn.Module) -> Mapping[str, Tensor]:
    check_unchanged(*part.files)
    return _explained(part, partial(tensors, part, module))


def _explained(part: Component, read: Callable[[], Result]) -> Result:
    """Returns the result of `read`. Turns library errors into InputErrors about the files."""
    with LOADING, quiet(*LIBRARIES):
        try:
            return read()
        except (OSError, ValueError, TypeError, RuntimeError, SafetensorError) as error:
            if is_out_of_memory(error):
                raise
            called = config(part).get("_class_name") or kind_of(part).model
            raise InputError(
                f"{part.folder}: cannot be loaded as {called}: {first_line(error)}"
            ) from error
