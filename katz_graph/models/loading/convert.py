"""Builds a component's module without weights, and reads weights from files under the names of
diffusers and transformers. Uses diffusers' converters for single files if available.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import diffusers
import torch
import transformers
from diffusers.loaders.single_file_utils import convert_open_clip_checkpoint
from safetensors import safe_open
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from katz_graph.core.errors import InputError
from katz_graph.core.recipe import Component, MergedComponent
from katz_graph.kernels.quantised.widening import widened
from katz_graph.models.configuration import config
from katz_graph.models.family import family_of_class
from katz_graph.models.loading.deferred import Deferred, Latest, deferred, quantised
from katz_graph.models.loading.identity import header
from katz_graph.models.loading.quantised import (
    STORED_TYPES,
    is_scale_or_marker,
    rounded,
    stored_weights,
    tensor_entries,
)
from katz_graph.models.quantised_weight import LAYERS, Format
from katz_graph.models.stages import named
from katz_graph.models.text.kinds import BERT, EncoderKind, kind_of
from katz_graph.models.vae.halves import without_missing_half
from katz_graph.models.vae.kinds import kind_named as vae_kind

SHOWN = 3  # mismatches in an error message
OF_THE_WHOLE = ("architectures", "dtype", "model_type")  # keys of a configuration
MARKS = ("difference",)  # marker tensors without weights
FLOATS_OF_8_BITS = (torch.float8_e4m3fn, torch.float8_e5m2)
FORMATS_KNOWN = 64  # files
# tensors unused by a text encoder, or duplicated under another name
FORGOTTEN = re.compile(
    r"(^|\.)(position_ids|token_type_ids|logit_scale|encoder\.embed_tokens\.weight)$"
    r"|^(decoder|lm_head|pooler)\."
)


class WithoutInitialisation(TorchFunctionMode):
    """Skips the initialisation of meta tensors, which have no values, and counts on the CPU. Torch
    does both on the meta device in Python, and imports its compiler for it.
    """

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function in INITIALISERS or getattr(function, "__module__", "") == nn.init.__name__:
            tensor: Tensor = args[0] if args else kwargs["tensor"]
            if tensor.is_meta:
                return tensor
        if function is torch.arange and not (kwargs or {}).get("device"):
            return torch.arange(*args, **{**(kwargs or {}), "device": "cpu"}).to("meta")
        return function(*args, **(kwargs or {}))


INITIALISERS = (Tensor.uniform_, Tensor.normal_, Tensor.fill_, Tensor.zero_)


@contextmanager
def on_meta() -> Iterator[None]:
    """Builds modules on torch's meta device, without memory or initialisation."""
    with torch.device("meta"), WithoutInitialisation():
        yield


def blank(part: Component) -> Any:
    """Builds a component's module on torch's meta device, without memory or initialisation."""
    values = dict(config(part))
    with on_meta():
        if "_class_name" in values:
            module = library_module(values)
            if vae_kind(values["_class_name"]) is not None:
                without_missing_half(part, module)
        else:
            module = text_module(values, kind_of(part))
    return module.eval().requires_grad_(False)


def library_module(values: Mapping[str, Any]) -> Any:
    """Builds a module of diffusers from a configuration, on torch's default device."""
    kind = vae_kind(values["_class_name"])
    if kind is not None:
        return named(kind.build)(values)
    return library_class(values["_class_name"]).from_config(values)


def library_class(name: str) -> Any:
    """Returns a class of diffusers, or a family's class of a network or ControlNet that diffusers
    lacks.
    """
    family = family_of_class(name)
    own = family.modules.get(name) if family else None
    return getattr(diffusers, name) if own is None else named(own)


def text_module(values: Mapping[str, Any], kind: EncoderKind) -> Any:
    """Builds a text encoder from a configuration, on torch's default device."""
    if kind.whole:
        values = _text_values(values, kind)
    settings = getattr(transformers, kind.configuration)(**values)
    settings.use_cache = False  # no cache: language models only encode text
    # transformers would make it torch's default dtype while it builds, also for other threads
    settings.dtype = None
    module = getattr(transformers, kind.model)(settings)
    if kind is BERT:
        module.pooler = None  # missing in some files and unused by networks
    if getattr(settings, "final_norm", True) is False:
        module.norm = None  # missing in files of a part of the layers
    if hasattr(module, "shared"):  # T5 has its embedding under two names
        module.encoder.embed_tokens = module.shared
    return module


def _text_values(values: Mapping[str, Any], kind: EncoderKind) -> dict[str, Any]:
    """Returns the configuration of the text part of a model that sees pictures. Positions of text
    are the same on the axes of a picture, so they need one axis; `rotary_axes` are those of a
    picture's positions, by frequency.
    """
    part = getattr(transformers, kind.whole)(**values).text_config
    rope, known = {"rope_type": "default"}, part.rope_parameters
    rope["rope_theta"] = known["rope_theta"]
    text = {name: value for name, value in part.to_dict().items() if name not in OF_THE_WHOLE}
    if kind.sight is not None:
        head = getattr(part, "head_dim", None) or part.hidden_size // part.num_attention_heads
        section = known.get("mrope_section", kind.sight.section)
        text["rotary_axes"] = kind.sight.axes(section, head // 2)
    return text | {"rope_parameters": rope}


def tensors(part: Component, module: Any) -> dict[str, Tensor]:
    """Returns a component's weights and buffers under its module's names, in the files' dtypes.
    InputError names the tensors that are missing, unknown or of another shape.

    Unconverted tensors are memory-mapped from the files. They take no memory, and must not be
    retained because writes to a file change them. Weights with scales are deferred: each is widened
    to the module's dtype when read.
    """
    found = _under_names_of(module, part, _tensors(part, next(module.parameters()).dtype))
    if module.__module__.startswith("transformers"):
        found |= _text_buffers(module)
    else:
        found = _library_buffers(module) | found
    _check(part, type(module).__name__, found, module)
    return found


@lru_cache(maxsize=FORMATS_KNOWN)
def formats(part: Component) -> Mapping[str, Format]:
    """Returns the formats of the weights that modules hold as 8-bit numbers, by the module's names:
    those of layers in `LAYERS` whose files do, and whose conversion only moves rows. Reads the
    headers of the files.
    """
    if isinstance(part, MergedComponent) or not _has_8_bits(part):
        return {}
    module = blank(part)
    outlines = _tensors(part, torch.float32, values=False)
    layers = {f"{name}.weight" for name, one in module.named_modules() if isinstance(one, LAYERS)}
    found = {}
    for name, tensor in _under_names_of(module, part, outlines).items():
        stored = tensor.quantised if isinstance(tensor, Deferred) else None
        if name in layers and stored is not None:
            found[name] = Format(tuple(tensor.shape), stored.codes.dtype, True, stored.group)
        elif name in layers and tensor.dtype in FLOATS_OF_8_BITS:
            found[name] = Format(tuple(tensor.shape), tensor.dtype)
    return found


def _has_8_bits(part: Component) -> bool:
    entries = (
        (name, entry["dtype"])
        for file in part.weight_files
        for name, entry in tensor_entries(header(Path(file.path)).entries)
    )
    return part.rounding is not None or any(
        kind in STORED_TYPES and name.startswith(part.prefix) for name, kind in entries
    )


def _under_names_of(module: Any, part: Component, read: dict[str, Tensor]) -> dict[str, Tensor]:
    if module.__module__.startswith("transformers"):
        return _text(module, read)
    return _converted(read, config(part))


def stored_tensor(part: Component, name: str, dtype: torch.dtype) -> Tensor:
    """Returns one tensor of a component's files, by its name there; see `tensors`."""
    start, _, end = name.rpartition(".")
    return _tensors(replace(part, prefix=f"{start}."), dtype)[end]


def _text_buffers(module: Any) -> dict[str, Tensor]:
    """Computes the buffers of a text encoder, because files may lack them."""
    found = {}
    for name, _ in module.named_buffers():
        if name.endswith("position_ids"):
            found[name] = torch.arange(module.config.max_position_embeddings)[None]
        elif name.endswith("token_type_ids"):  # BERT: all tokens belong to a pair's first text
            found[name] = torch.zeros(1, module.config.max_position_embeddings, dtype=torch.long)
        else:  # frequencies of rotary positions, scaled and unscaled (equal here)
            rotary = module.get_submodule(name.rpartition(".")[0])
            compute = getattr(rotary, "compute_default_rope_parameters", None)
            compute = compute or rotary.compute_axial_rope_parameters
            found[name], _ = compute(module.config)
    return found


def _library_buffers(module: Any) -> dict[str, Tensor]:
    """Computes the buffers that files of a diffusers module lack: builds the submodules that have
    some a second time, on the CPU, from their attributes with the names of arguments.
    """
    found: dict[str, Tensor] = {}
    for path, one in module.named_modules():
        if names := one._non_persistent_buffers_set:
            asked = inspect.signature(type(one)).parameters
            made = type(one)(**{name: getattr(one, name) for name in asked if hasattr(one, name)})
            found |= {f"{path}.{name}".lstrip("."): made.get_buffer(name) for name in names}
    return found


def _check(part: Component, called: str, found: Mapping[str, Tensor], module: Any) -> None:
    wanted = {
        name: tuple(value.shape)
        for name, value in (*module.named_parameters(), *module.named_buffers())
    }
    weights = part.weight_files[0].path
    what = (
        f"does not fit its config.json ({called})"
        if part.configuration is None
        else f"is not a complete {called}"
    )
    mismatched = [
        f"{name} is {list(value.shape)}, expected {list(wanted[name])}"
        for name, value in sorted(found.items())
        if wanted.get(name, tuple(value.shape)) != tuple(value.shape)
    ]
    for problem, names in (
        ("of another shape", mismatched),
        ("missing", sorted(wanted.keys() - found.keys())),
        ("unknown", sorted(found.keys() - wanted.keys())),
    ):
        if names:
            more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            raise InputError(f"{weights}: {what}: {problem}: {'; '.join(names[:SHOWN])}{more}")


def _tensors(part: Component, dtype: torch.dtype, values: bool = True) -> dict[str, Tensor]:
    """Reads the part's tensors and removes its prefix. Defers widening weights with scales to
    `dtype`, and rounding the others as the part requires. Without `values`, the others are on the
    meta device.
    """
    paths = [file.path for file in part.weight_files]
    stored = stored_weights(*(header(Path(path)) for path in paths))
    read: dict[str, Tensor] = {}
    for path in paths:
        with safe_open(path, framework="pt") as content:
            there: list[str] = content.keys()
            read |= {name: content.get_tensor(name) for name in there}
    found, latest = {}, Latest()
    for name, tensor in read.items():
        if not name.startswith(part.prefix) or name in MARKS or is_scale_or_marker(name):
            continue
        if (how := stored.get(name)) is not None:
            codes, scale = tensor, read[how.scale]
            widen = partial(_widened, codes, scale, how.rotated, dtype)
            tensor = deferred(codes.shape, dtype, widen, latest)
            if codes.itemsize == 1:
                tensor = quantised(tensor, codes, scale, how.rotated)
        elif part.rounding is not None and tensor.is_floating_point():
            kind = getattr(torch, part.rounding)
            tensor = deferred(tensor.shape, kind, partial(rounded, tensor, kind), latest)
        elif not values:
            tensor = tensor.to("meta")
        found[name.removeprefix(part.prefix)] = tensor
    return found


def _widened(stored: Tensor, scale: Tensor, group: int, dtype: torch.dtype) -> Tensor:
    return widened(stored, scale.float().reshape(-1).expand(len(stored)), group, dtype)


def _converted(tensors: dict[str, Tensor], values: Mapping[str, Any]) -> dict[str, Tensor]:
    family = family_of_class(values["_class_name"])
    if family is not None and family.files is not None:
        converted: dict[str, Tensor] = named(family.files.convert)(tensors, values)
        return converted
    kind = vae_kind(values["_class_name"])
    if kind is None:
        return tensors
    renamed: dict[str, Tensor] = named(kind.convert)(tensors, values)
    return renamed


def _text(module: Any, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Renames tensors to the module's names: adds or removes the prefix `text_model.`, and removes
    `model.` of language models.
    """
    projects = hasattr(module, "text_projection")
    if "positional_embedding" in tensors:
        tensors = convert_open_clip_checkpoint(module, tensors, prefix="")
    level = "text_model." if hasattr(module, "text_model") else ""
    renamed = {}
    for name, tensor in tensors.items():
        bare = name.removeprefix("text_model.").removeprefix("model.")
        if bare == "text_projection.weight" and projects:
            renamed[bare] = tensor
        elif not bare.startswith("text_projection") and not FORGOTTEN.search(bare):
            renamed[level + bare] = tensor
    return renamed
