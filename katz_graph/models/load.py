"""From components to live modules of diffusers and transformers, each loaded once. Local safetensors only."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from threading import RLock
from typing import Any

import diffusers
import torch
import transformers
from diffusers.utils import logging as diffusers_logging
from safetensors import SafetensorError
from transformers.utils import logging as transformers_logging

from katz_graph.errors import InputError, RunError
from katz_graph.models import attention
from katz_graph.models.convert import build
from katz_graph.models.family import config, expect_class
from katz_graph.models.identity import check_unchanged, variant
from katz_graph.recipe import Component

SHOWN = 3  # mismatches that an error names

TEXT_ENCODERS = {"CLIPTextModel": transformers.CLIPTextModel, "CLIPTextModelWithProjection": transformers.CLIPTextModelWithProjection}


class ModelStore:
    """Live modules by component, device and dtype, in eval mode and without gradients: what is equal is loaded once and shared.

    A module's weights may be patched in place by whoever holds it (a weight set); the store knows nothing of that.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[Component, Component | None, str, torch.dtype], Any] = {}
        self._lock = RLock()

    def unet(self, part: Component, device: torch.device | str, dtype: torch.dtype) -> Any:
        return self._once(part, device, dtype, lambda: _attended(_load(diffusers.UNet2DConditionModel, part, dtype)))

    def controlnet(self, part: Component, device: torch.device | str, dtype: torch.dtype, base: Component | None = None) -> Any:
        """base: the UNet that the weights in the file are differences to."""
        name = config(part).get("_class_name")
        model = diffusers.ControlNetUnionModel if name == "ControlNetUnionModel" else diffusers.ControlNetModel

        def load() -> Any:
            module = _attended(_load(model, part, dtype))
            return module if base is None else _added(module, self.unet(base, device, dtype))

        return self._once(part, device, dtype, load, base)

    def vae(self, part: Component, device: torch.device | str, dtype: torch.dtype) -> Any:
        return self._once(part, device, dtype, lambda: _load(diffusers.AutoencoderKL, part, dtype))

    def text_encoder(self, part: Component, device: torch.device | str, dtype: torch.dtype) -> Any:
        names = config(part).get("architectures") or ["CLIPTextModel"]
        if names[0] not in TEXT_ENCODERS:
            raise InputError(f"{part.folder}: config.json describes {names[0]}, expected {' or '.join(TEXT_ENCODERS)}")
        return self._once(part, device, dtype, lambda: _load(TEXT_ENCODERS[names[0]], part, dtype))

    def tokenizer(self, part: Component) -> Any:
        return load_tokenizer(part)

    def _once(
        self, part: Component, device: torch.device | str, dtype: torch.dtype, load: Callable[[], Any], base: Component | None = None
    ) -> Any:
        key = (part, base, str(torch.device(device)), dtype)
        with self._lock:
            if key not in self._kept:
                self._kept[key] = _placed(load(), part, device)
            return self._kept[key]


def _load(model: Any, part: Component, dtype: torch.dtype) -> Any:
    check_unchanged(*part.files)
    if model.__module__.startswith("diffusers"):
        expect_class(part, model.__name__)
    with quiet():
        try:
            module, report = _from_folder(model, part, dtype) if part.configuration is None else build(model, part, dtype)
        except (OSError, ValueError, TypeError, RuntimeError, SafetensorError) as error:
            raise InputError(f"{part.folder}: cannot be loaded as {model.__name__}: {_first_line(error)}") from error
    _check_report(part, model.__name__, report)
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
    """Round all weights to a number format of fewer bits; they stay in the one that they are computed in."""
    for weight in module.parameters():
        limit = torch.finfo(kind).max
        weight.copy_(weight.clamp(-limit, limit).to(kind))


@torch.no_grad()
def _added(differences: Any, base: Any) -> Any:
    """A module whose weights are differences, with those of the same name added."""
    weights = dict(base.named_parameters())
    for name, weight in differences.named_parameters():
        if name in weights:
            weight += weights[name].to(weight.device)
    return differences


def _check_report(part: Component, name: str, report: dict[str, Any]) -> None:
    weights = next(file.path for file in part.files if file.path.endswith(".safetensors"))
    what = f"does not fit config.json beside it ({name})" if part.configuration is None else f"is no whole {name}"
    mismatched = [f"{key} is {list(got)}, expected {list(wanted)}" for key, got, wanted in sorted(report["mismatched_keys"])]
    for problem, keys in (
        ("of another shape", mismatched),
        ("missing", sorted(report["missing_keys"])),
        ("unknown", sorted(report["unexpected_keys"])),
    ):
        if keys:
            more = f" and {len(keys) - SHOWN} more" if len(keys) > SHOWN else ""
            raise InputError(f"{weights}: {what}: {problem}: {'; '.join(keys[:SHOWN])}{more}")


def _attended(module: Any) -> Any:
    attention.install(module)
    return module


def _placed(module: Any, part: Component, device: torch.device | str) -> Any:
    try:
        return module.to(device)
    except torch.OutOfMemoryError:
        raise RunError(f"{part.folder}: does not fit into the memory of {device}: free some, or use a smaller model or dtype") from None


@lru_cache(maxsize=16)
def load_tokenizer(part: Component) -> Any:
    """A CLIPTokenizer; loaded once. InputError when the files are not one."""
    with quiet():
        try:
            return transformers.CLIPTokenizer.from_pretrained(part.folder, local_files_only=True, **json.loads(part.configuration or "{}"))
        except Exception as error:  # the tokenizers library raises bare Exception
            raise InputError(f"{part.folder}: cannot be loaded as CLIPTokenizer: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


@contextmanager
def quiet() -> Iterator[None]:
    """Without the libraries' progress bars and notes: what matters of them becomes an error of ours."""
    libraries = (diffusers_logging, transformers_logging)
    before = [(library, library.get_verbosity(), library.is_progress_bar_enabled()) for library in libraries]
    for library in libraries:
        library.set_verbosity(logging.CRITICAL)
        library.disable_progress_bar()
    try:
        yield
    finally:
        for library, level, bars in before:
            library.set_verbosity(level)
            if bars:
                library.enable_progress_bar()
