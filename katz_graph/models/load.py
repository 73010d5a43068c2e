"""From components to live modules of diffusers and transformers, each loaded once. Local safetensors only."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from threading import Lock, RLock
from typing import Any

import diffusers
import torch
import transformers
from diffusers.utils import logging as diffusers_logging
from safetensors import SafetensorError
from transformers.utils import logging as transformers_logging

from katz_graph.devices import format_name, narrower
from katz_graph.errors import InputError, RunError
from katz_graph.models import attention
from katz_graph.models.convert import build
from katz_graph.models.family import config, expect_class
from katz_graph.models.identity import check_unchanged, count_values, variant
from katz_graph.models.residency import POLICIES, ControlNetUse, PolicyName, Residency
from katz_graph.recipe import Component

SHOWN = 3  # mismatches that an error names
LOADING = Lock()  # diffusers patches torch.nn while it builds a module, for all threads

TEXT_ENCODERS = {"CLIPTextModel": transformers.CLIPTextModel, "CLIPTextModelWithProjection": transformers.CLIPTextModelWithProjection}


class ModelStore:
    """Live modules by component, device and dtype, in eval mode and without gradients: what is equal is loaded once and shared.

    ControlNets together keep within `budget_bytes` of weights: those that the policy chooses are dropped, except while they are in use.
    Everything else stays. A module's weights may be patched in place by whoever holds it (a weight set); the store knows nothing of that.
    """

    def __init__(self, budget_bytes: int | None = None, policy: PolicyName = "lru") -> None:
        self._kept: dict[Hashable, Any] = {}
        self._lock = RLock()
        self._residency = Residency(math.inf if budget_bytes is None else budget_bytes, POLICIES[policy]())
        self._load_seconds = 0.0

    def unet(self, part: Component, device: torch.device | str, dtype: torch.dtype) -> Any:
        return self._once(part, device, dtype, lambda: _attended(_load(diffusers.UNet2DConditionModel, part, dtype)))

    def controlnet(self, part: Component, device: torch.device | str, dtype: torch.dtype, base: Component | None = None) -> Any:
        """base: the UNet that the weights in the file are differences to.

        InputError when it alone exceeds the budget, NoRoom when those in use leave too little.
        """
        with self._lock:
            key = _key(part, device, dtype, base)
            if self._residency.is_pinned(key):
                return self._kept[key]  # a use that was counted
            return self._touched_controlnet(part, device, dtype, base)

    def _touched_controlnet(self, part: Component, device: torch.device | str, dtype: torch.dtype, base: Component | None) -> Any:
        key = _key(part, device, dtype, base)
        size = 0 if key in self._residency else _size(part, dtype)
        for dropped in self._residency.touch(key, size, part.folder):
            del self._kept[dropped]
        if key not in self._kept:
            started = time.perf_counter()
            try:
                self._kept[key] = _placed(self._load_controlnet(part, device, dtype, base), part, device, dtype)
            except BaseException:
                self._residency.forget(key)
                raise
            self._load_seconds += time.perf_counter() - started
        return self._kept[key]

    def _load_controlnet(self, part: Component, device: torch.device | str, dtype: torch.dtype, base: Component | None) -> Any:
        name = config(part).get("_class_name")
        model = diffusers.ControlNetUnionModel if name == "ControlNetUnionModel" else diffusers.ControlNetModel
        module = _attended(_load(model, part, dtype))
        if base is None:
            return module
        return _added(module, _load(diffusers.UNet2DConditionModel, base, dtype))  # not the live one, which may have LoRAs in it

    @contextmanager
    def using_controlnet(
        self, part: Component, device: torch.device | str, dtype: torch.dtype, base: Component | None = None
    ) -> Iterator[Any]:
        """The ControlNet, which is not dropped inside the `with` statement; all that counts as one use. Errors as of `controlnet`."""
        key = _key(part, device, dtype, base)
        with self._lock:
            module = self._touched_controlnet(part, device, dtype, base)
            self._residency.pin(key)
        try:
            yield module
        finally:
            with self._lock:
                self._residency.unpin(key)

    def drop_controlnet(self, part: Component, device: torch.device | str, dtype: torch.dtype, base: Component | None = None) -> None:
        """Let a ControlNet go, unless it is in use or not here."""
        key = _key(part, device, dtype, base)
        with self._lock:
            if key in self._kept and not self._residency.is_pinned(key):
                self._residency.forget(key)
                del self._kept[key]

    def clear(self) -> list[Any]:
        """Let go of all modules, but for ControlNets that are in use; what was let go."""
        with self._lock:
            gone = [key for key in self._kept if not self._residency.is_pinned(key)]
            for key in gone:
                if key in self._residency:
                    self._residency.forget(key)
            return [self._kept.pop(key) for key in gone]

    @property
    def controlnets_in_use(self) -> bool:
        """Whether somebody is inside of `using_controlnet`."""
        with self._lock:
            return self._residency.has_pins

    @property
    def controlnet_use(self) -> ControlNetUse:
        books = self._residency
        return ControlNetUse(books.hits, books.misses, books.evictions, self._load_seconds, books.resident_bytes)

    def vae(self, part: Component, device: torch.device | str, dtype: torch.dtype) -> Any:
        return self._once(part, device, dtype, lambda: _load(diffusers.AutoencoderKL, part, dtype))

    def text_encoder(self, part: Component, device: torch.device | str, dtype: torch.dtype) -> Any:
        names = config(part).get("architectures") or ["CLIPTextModel"]
        if names[0] not in TEXT_ENCODERS:
            raise InputError(f"{part.folder}: config.json describes {names[0]}, expected {' or '.join(TEXT_ENCODERS)}")
        return self._once(part, device, dtype, lambda: _load(TEXT_ENCODERS[names[0]], part, dtype))

    def tokenizer(self, part: Component) -> Any:
        return load_tokenizer(part)

    def _once(self, part: Component, device: torch.device | str, dtype: torch.dtype, load: Callable[[], Any]) -> Any:
        key = _key(part, device, dtype)
        with self._lock:
            if key not in self._kept:
                self._kept[key] = _placed(load(), part, device, dtype)
            return self._kept[key]


def _key(part: Component, device: torch.device | str, dtype: torch.dtype, base: Component | None = None) -> Hashable:
    return part, base, str(torch.device(device)), dtype


def _size(part: Component, dtype: torch.dtype) -> int:
    """Bytes that its weights take in memory."""
    check_unchanged(*part.files)
    return count_values(part) * dtype.itemsize


def _load(model: Any, part: Component, dtype: torch.dtype) -> Any:
    check_unchanged(*part.files)
    if model.__module__.startswith("diffusers"):
        expect_class(part, model.__name__)
    with LOADING, quiet():
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


def _placed(module: Any, part: Component, device: torch.device | str, dtype: torch.dtype) -> Any:
    with suppress(torch.OutOfMemoryError):
        return module.to(device)
    del module  # what of it was moved goes with it: neither this error nor that one keeps it
    ways_out = ", ".join(filter(None, ("free some", narrower(format_name(dtype)), "use a smaller model")))
    raise RunError(f"{part.folder}: does not fit into the memory of {device}: {ways_out}")


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
