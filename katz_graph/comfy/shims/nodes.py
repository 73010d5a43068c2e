"""Provides `nodes` to packs: the built-in nodes as classes, and all node classes by name."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

from katz_graph.comfy.finder import installed
from katz_graph.comfy.missing import missing_names
from katz_graph.comfy.v1.core_nodes import call_node, node_class

MAX_RESOLUTION = 16384
_missing = missing_names(
    __name__,
    "before_node_execution interrupt_processing load_custom_node init_extra_nodes "
    "EXTENSION_WEB_DIRS",
)


class _Classes(MutableMapping[str, type]):
    """Maps names to node classes of packs and of built-in nodes; creates the latter on access."""

    def __getitem__(self, name: str) -> type:
        shims = installed()
        if name not in shims.classes:
            shims.classes[name] = node_class(shims.types[name], shims.folders)
        return shims.classes[name]

    def __setitem__(self, name: str, value: type) -> None:
        installed().classes[name] = value

    def __delitem__(self, name: str) -> None:
        del installed().classes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*installed().types, *installed().classes)))

    def __len__(self) -> int:
        return len({*installed().types, *installed().classes})


NODE_CLASS_MAPPINGS = _Classes()
NODE_DISPLAY_NAME_MAPPINGS: dict[str, str] = {}


def common_ksampler(
    model: Any,
    seed: int,
    steps: int,
    cfg: float,
    sampler_name: str,
    scheduler: str,
    positive: Any,
    negative: Any,
    latent: Any,
    denoise: float = 1.0,
    disable_noise: bool = False,
    start_step: int | None = None,
    last_step: int | None = None,
    force_full_denoise: bool = False,
) -> tuple[Any, ...]:
    """Samples a latent like the sampler nodes."""
    inputs = {
        "model": model,
        "noise_seed": seed,
        "steps": steps,
        "cfg": cfg,
        "sampler_name": sampler_name,
        "scheduler": scheduler,
        "positive": positive,
        "negative": negative,
        "latent_image": latent,
    }
    if denoise == 1.0:
        shown = {"add_noise": "disable" if disable_noise else "enable"}
        shown["return_with_leftover_noise"] = (
            "disable" if force_full_denoise or last_step is None else "enable"
        )
        window = {
            "start_at_step": start_step or 0,
            "end_at_step": 10000 if last_step is None else last_step,
        }
        return call_node(installed().types["KSamplerAdvanced"], inputs | shown | window)
    if disable_noise or start_step is not None or last_step is not None:
        _missing("common_ksampler with denoise below 1 and a window of steps")()
    inputs["seed"] = inputs.pop("noise_seed")
    return call_node(installed().types["KSampler"], inputs | {"denoise": denoise})


def __getattr__(name: str) -> Any:
    return NODE_CLASS_MAPPINGS[name] if name in NODE_CLASS_MAPPINGS else _missing(name)
