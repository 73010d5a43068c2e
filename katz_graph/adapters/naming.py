"""Unifies the tensor names of LoRA files. Diffusers (old and new) and PEFT name layers by a
module's path. Other trainers use paths of the original code, where one layer may hold rows of
several module layers. Kohya and LyCORIS write underscores for dots.

Returns every tensor of a file once or as an extra. Guesses no name: looks up every name among the
names of a model's modules.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from pkgutil import resolve_name

from diffusers.utils.state_dict_utils import (
    DIFFUSERS_OLD_TO_PEFT,
    DIFFUSERS_TO_PEFT,
    convert_state_dict,
)

from katz_graph.adapters.encoders import CLIP_G, CLIP_L, FIRST_CLIP, WRAPPED, text_name
from katz_graph.core.errors import InputError
from katz_graph.models.family import ModelFamily, all_files, families, supported

NETWORK = "network"  # part for any family, because prefixes do not identify the family
ORIGINAL_PREFIXES = ("diffusion_model.", "model.diffusion_model.", "lora_unet_")
"""Prefixes that trainers use for the original code's names, and sometimes for other names."""
NETWORK_PREFIXES = (*ORIGINAL_PREFIXES, "lycoris_")  # in addition to the families' prefixes
OLD_TEXT = DIFFUSERS_OLD_TO_PEFT | DIFFUSERS_TO_PEFT
"""Maps endings of text encoder names in diffusers' old files to PEFT's endings."""
NAMINGS = "in diffusers, PEFT, kohya, LyCORIS or original naming"
REFUSED = {
    "oft_": "OFT",
    "ia3_": "IA3",
    "on_input": "IA3",
    "glora_": "GLoRA",
    ".a1.weight": "GLoRA",
}
CONTROL = ".query_norm.scale"
ENDINGS = {
    "alpha": "alpha",
    "lora_A.alpha": "alpha",
    "lora_B.alpha": "alpha",
    "lora_A.weight.alpha": "alpha",
    "lora_B.weight.alpha": "alpha",
    "lora_A.weight": "lora_A",
    "lora_down.weight": "lora_A",
    "lora_B.weight": "lora_B",
    "lora_up.weight": "lora_B",
    "lora_mid.weight": "lora_mid",
    "down.weight": "lora_A",
    "up.weight": "lora_B",
    "lora_B.bias": "lora_B.bias",
    "hada_w1_a": "hada_w1_a",
    "hada_w1_b": "hada_w1_b",
    "hada_w2_a": "hada_w2_a",
    "hada_w2_b": "hada_w2_b",
    "hada_t1": "hada_t1",
    "hada_t2": "hada_t2",
    "lokr_w1": "lokr_w1",
    "lokr_w1_a": "lokr_w1_a",
    "lokr_w1_b": "lokr_w1_b",
    "lokr_w2": "lokr_w2",
    "lokr_w2_a": "lokr_w2_a",
    "lokr_w2_b": "lokr_w2_b",
    "lokr_t2": "lokr_t2",
    "diff": "diff",
    "diff_b": "diff_b",
    "w_norm": "w_norm",
    "b_norm": "b_norm",
    "dora_scale": "dora_scale",
    "lora_magnitude_vector": "lora_magnitude_vector",
    "lora_magnitude_vector.weight": "lora_magnitude_vector",
    "magnitude": "lora_magnitude_vector",  # ai-toolkit
}
"""Maps endings of tensor names in files to the tensor names of `methods.FORMS`."""
MAX_ENDING_WORDS = (
    max(ending.count(".") for ending in ENDINGS) + 2
)  # words, including an adapter's name
NAMED = ("lora_", "hada_", "lokr_")  # PEFT may append the adapter's name to these

FILES_KNOWN = 8


@dataclass(slots=True)
class NamedModule:
    """Holds the tensors of one module of an adapter file, as tensor name (a value of `ENDINGS`) ->
    key. `scope`: the model's name in PEFT's configuration.
    """

    scope: str
    keys: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NamedTensors:
    """Holds the tensors of a file by part, and by module as named in the file. `extras`: tensors of
    unknown names. `original`: a tensor has a prefix that trainers use for the original code.
    """

    parts: Mapping[str, Mapping[str, NamedModule]]
    extras: tuple[str, ...]
    original: bool


# cached because a file is described before it is read
@lru_cache(maxsize=FILES_KNOWN)
def unified(path: str, keys: tuple[str, ...]) -> NamedTensors:
    """Sorts the tensors of a LoRA file by part and module.

    Raises InputError for unsupported methods, for duplicate tensors, for unknown tensors next to a
    known method, and for a file without any known name.
    """
    _refuse_others(path, keys)
    prefixes, renaming = _prefixes(), _network_renaming()
    named: dict[str, dict[str, NamedModule]] = {NETWORK: {}}
    extras: dict[str, tuple[str, str]] = {}
    for key in keys:
        part, name, scope = _place(key, prefixes)
        if part:
            (name,) = convert_state_dict({name: None}, renaming if part == NETWORK else OLD_TEXT)
        module, tensor = _split(name)
        if not part or not tensor:
            extras[key] = part, name
            continue
        entry = named.setdefault(part, {}).setdefault(module, NamedModule(scope))
        if tensor in entry.keys:
            raise InputError(
                f"{path}: has {layer_of(key)} twice ({key}), expected one LoRA in a file"
            )
        entry.keys[tensor] = key
    if CLIP_G in named and CLIP_L not in named and FIRST_CLIP in named:
        named[CLIP_L] = named.pop(FIRST_CLIP)  # the first of two encoders
    _check_known(path, named, extras)
    return NamedTensors(named, tuple(extras), any(map(_begins_originally, keys)))


def layer_of(key: str) -> str:
    """Returns the layer of a tensor as named in the file."""
    return _split(key)[0]


def matching_families(names: Iterable[str]) -> tuple[ModelFamily, ...]:
    """Returns the families that match the most layer names of a file: by their `marks`, and among
    equals by their `roots`.
    """
    names = list(names)
    counts = [
        (sum(_marked(family, name) for name in names), sum(_has(family, name) for name in names))
        for family in families()
    ]
    most = max(counts, default=(0, 0))
    return tuple(
        family for family, count in zip(families(), counts, strict=True) if count == most != (0, 0)
    )


def _marked(family: ModelFamily, name: str) -> bool:
    """Returns whether a layer's name, with dots or underscores, has a mark of the family."""
    flat = f"_{name.replace('.', '_')}_"
    return any(f"_{mark.replace('.', '_')}_" in flat for mark in family.lora.marks)


def _has(family: ModelFamily, name: str) -> bool:
    return name.startswith(tuple(f"{root}{end}" for root in family.lora.roots for end in "._"))


def _place(key: str, prefixes: Collection[str]) -> tuple[str, str, str]:
    """Returns a tensor's part ("": unknown), its name in the part, and the settings' scope."""
    name = key.removeprefix(WRAPPED)
    if text := text_name(name):
        part, layer, scope = text
        return part, layer, scope or NETWORK
    for prefix in prefixes:
        if name.startswith(prefix):
            return NETWORK, name.removeprefix(prefix).removeprefix(WRAPPED), NETWORK
    known = any(_has(family, name) for family in families())
    return (NETWORK if known else ""), name, NETWORK


def _begins_originally(key: str) -> bool:
    return key.startswith(ORIGINAL_PREFIXES)


def _prefixes() -> Collection[str]:
    """Lists the prefixes of network tensors in files."""
    of_families = (
        prefix
        for family in families()
        for prefix in (*family.lora.prefixes, f"{family.network.part}.")
    )
    return dict.fromkeys((*NETWORK_PREFIXES, *of_families))


def _network_renaming() -> Mapping[str, str]:
    """Maps endings of network names in diffusers' old files to PEFT's endings."""
    return {
        old: new for family in families() for old, new in resolve_name(family.lora.renaming).items()
    }


def _split(name: str) -> tuple[str, str]:
    """Returns the module, and the tensor's name in its method ("": unknown)."""
    words = name.split(".")
    for start in range(max(1, len(words) - MAX_ENDING_WORDS), len(words)):
        first, *rest = words[start:]
        known = ENDINGS.get(".".join((first, *rest)))
        if known is None and first.startswith(NAMED):
            known = ENDINGS.get(".".join((first, *rest[1:])))
        if known is not None:
            return ".".join(words[:start]), known
    return name, ""


def _refuse_others(path: str, tensors: Iterable[str]) -> None:
    checkpoint = "first_stage_model.", *(files.network.prefixes[0] for files in all_files())
    if any(key.startswith(checkpoint) and not _split(key)[1] for key in tensors):
        raise InputError(
            f"{path}: this is a checkpoint, expected a LoRA; load it with CheckpointLoaderSimple"
        )
    norm = next((key for key in tensors if key.endswith(CONTROL)), None)
    if norm is not None and any("lora" in key for key in tensors):
        raise InputError(
            f"{path}: a control LoRA, which replaces norms ({norm}) and takes a second picture, is "
            "not supported"
        )
    for mark, method in REFUSED.items():
        key = next((key for key in tensors if mark in key), None)
        if key is not None:
            raise InputError(
                f"{path}: {method} is not supported ({key}), expected LoRA, LoHa, LoKr, DoRA or "
                f"differences, {NAMINGS}"
            )


def _check_known(
    path: str,
    named: Mapping[str, Mapping[str, NamedModule]],
    extras: Mapping[str, tuple[str, str]],
) -> None:
    if not any(named.values()):
        raise InputError(
            f"{path}: no LoRA for {supported()} {NAMINGS}: {next(iter(extras))} is unknown"
        )
    for key, (part, name) in extras.items():
        if any(
            place in named.get(part, {}) for place in accumulate(name.split("."), "{}.{}".format)
        ):
            raise InputError(f"{path}: LoRA with unknown parts: {key}; expected LoRA {NAMINGS}")
