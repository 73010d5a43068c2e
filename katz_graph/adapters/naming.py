"""Brings the tensor names of LoRA files to one form: diffusers (old and new) and PEFT by a module's
path, kohya's and LyCORIS' trainers by that path with underscores for dots, or by the path of Stable
Diffusion's original code.

Every tensor in a file is returned once, or is named as left out. Nothing is renamed by guessing:
every name is looked up among those that a model's modules have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import accumulate
from pkgutil import resolve_name

from diffusers.utils.state_dict_utils import (
    DIFFUSERS_OLD_TO_PEFT,
    DIFFUSERS_TO_PEFT,
    convert_state_dict,
)

from katz_graph.errors import InputError
from katz_graph.models.family import all_files, families, supported

TEXT_PARTS = ("text_encoder", "text_encoder_2", "text_encoder_3")
KOHYA_TEXT = {
    "lora_te_": "text_encoder",
    "lora_te1_": "text_encoder",
    "lora_te2_": "text_encoder_2",
    "lora_te3_": "text_encoder_3",
}
NAMINGS = "in diffusers, PEFT or kohya naming"
PARAMETERS = ("weight", "bias")
REFUSED = {
    "oft_": "OFT",
    "ia3_": "IA3",
    "on_input": "IA3",
    "glora_": "GLoRA",
    ".a1.weight": "GLoRA",
}
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
}
"""Maps how files end a tensor's name to what it is to its module's method, as `methods` has it."""
LONGEST = max(ending.count(".") for ending in ENDINGS) + 2  # words, with the name of an adapter
NAMED = ("lora_", "hada_", "lokr_")  # PEFT may put the name of an adapter behind these

FILES_KNOWN, MODULES_KNOWN = 8, 16

Named = Mapping[str, Mapping[str, Mapping[str, str]]]
"""Maps part -> module as the file names it -> what it is of those in `ENDINGS` -> its key."""


# a file is described before it is read
@lru_cache(maxsize=FILES_KNOWN)
def unified(path: str, keys: tuple[str, ...]) -> tuple[Named, tuple[str, ...]]:
    """Sorts the tensors of a LoRA file by part and module; those of unknown names come second.

    InputError for methods that are not supported, for a tensor that is given twice or stands beside
    a known method without being of it, and for a file without any known name.
    """
    _refuse_others(path, keys)
    renamings = _renamings()
    named: dict[str, dict[str, dict[str, str]]] = {part: {} for part in renamings}
    extras: dict[str, tuple[str, str]] = {}
    for key in keys:
        part, name = _place(key, renamings)
        module, tensor = _split(name)
        if not part or not tensor:
            extras[key] = part, name
            continue
        entry = named[part].setdefault(module, {})
        if tensor in entry:
            raise InputError(
                f"{path}: says {part}.{module} twice ({key}), expected one LoRA in a file"
            )
        entry[tensor] = key
    _check_known(path, named, extras)
    return named, tuple(extras)


# a model has many LoRAs
@lru_cache(maxsize=MODULES_KNOWN)
def parameter_names(parameters: tuple[str, ...], part: str) -> Mapping[str, str]:
    """Maps every name that a LoRA file may have for the weight or bias of a module, which ends in
    `.weight` or `.bias`, to its name in the model, which is one of `parameters`.
    """
    split = [name.rpartition(".") for name in parameters]
    paths = dict.fromkeys(path for path, _, parameter in split if parameter in PARAMETERS)
    families_of_part = [family for family in families() if family.network.part == part]
    others = [resolve_name(family.lora.others)(paths) for family in families_of_part]
    found = {}
    for path, _, parameter in split:
        if parameter not in PARAMETERS:
            continue
        further = [other[path] for other in others if path in other]
        for alias in _with_and_without_level(path) if part in TEXT_PARTS else (path, *further):
            for name in (alias, alias.replace(".", "_")):
                found[f"{name}.{parameter}"] = f"{path}.{parameter}"
    return found


def _with_and_without_level(path: str) -> tuple[str, ...]:
    """Returns both names: transformers' CLIPTextModel lost its `text_model.` level, files
    may not.
    """
    bare = path.removeprefix("text_model.")
    return bare, f"text_model.{bare}"


def _place(key: str, renamings: Mapping[str, Mapping[str, str]]) -> tuple[str, str]:
    """Returns a tensor's part ("": unknown) and its name in it, which ends as in `ENDINGS`."""
    kohya = KOHYA_TEXT | {family.lora.prefix: family.network.part for family in families()}
    for prefix, part in kohya.items():
        if key.startswith(prefix):
            return part, key.removeprefix(prefix)
    part, _, name = key.removeprefix("base_model.model.").partition(".")
    whole = next((family.network.part for family in families() if part in family.lora.roots), None)
    if whole is not None:
        part, name = whole, f"{part}.{name}"
    if part not in renamings:
        return "", key
    (name,) = convert_state_dict({name: None}, renamings[part])
    return part, name


def _renamings() -> Mapping[str, Mapping[str, str]]:
    """Maps each part of a pipeline to how names in old files of diffusers become PEFT's."""
    networks = {family.network.part: resolve_name(family.lora.renaming) for family in families()}
    return networks | dict.fromkeys(TEXT_PARTS, DIFFUSERS_OLD_TO_PEFT | DIFFUSERS_TO_PEFT)


def _split(name: str) -> tuple[str, str]:
    """Returns the module, and what the tensor is to its method ("": unknown)."""
    words = name.split(".")
    for start in range(max(1, len(words) - LONGEST), len(words)):
        first, *rest = words[start:]
        known = ENDINGS.get(".".join((first, *rest)))
        if known is None and first.startswith(NAMED):
            known = ENDINGS.get(".".join((first, *rest[1:])))
        if known is not None:
            return ".".join(words[:start]), known
    return name, ""


def _refuse_others(path: str, tensors: Iterable[str]) -> None:
    checkpoint = "first_stage_model.", *(files.network.prefixes[0] for files in all_files())
    if any(key.startswith(checkpoint) and "lora" not in key for key in tensors):
        raise InputError(
            f"{path}: this is a checkpoint, expected a LoRA; load it with CheckpointLoaderSimple"
        )
    for mark, method in REFUSED.items():
        key = next((key for key in tensors if mark in key), None)
        if key is not None:
            raise InputError(
                f"{path}: {method} is not supported ({key}), expected LoRA, LoHa, LoKr, DoRA or "
                f"differences, {NAMINGS}"
            )


def _check_known(path: str, named: Named, extras: Mapping[str, tuple[str, str]]) -> None:
    if not any(named.values()):
        raise InputError(
            f"{path}: no LoRA for {supported()} {NAMINGS}: {next(iter(extras))} is unknown"
        )
    for key, (part, name) in extras.items():
        if any(
            place in named.get(part, {}) for place in accumulate(name.split("."), "{}.{}".format)
        ):
            raise InputError(
                f"{path}: LoRA with parts that are not understood: {key}; expected LoRA {NAMINGS}"
            )
