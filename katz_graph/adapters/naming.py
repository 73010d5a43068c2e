"""Brings the tensor names of LoRA files to one form: diffusers (old and new) and PEFT by a module's
path, kohya's trainers by that path with underscores for dots, or by the path of Stable Diffusion's
original code.

Every tensor in a file is returned once, or is named as left out. Nothing is renamed by guessing:
every name is looked up among those that a model's modules have.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import accumulate
from pkgutil import resolve_name
from typing import TypeVar

from diffusers.utils.state_dict_utils import (
    DIFFUSERS_OLD_TO_PEFT,
    DIFFUSERS_TO_PEFT,
    convert_state_dict,
)

from katz_graph.errors import InputError
from katz_graph.models.family import families, supported

TEXT_PARTS = ("text_encoder", "text_encoder_2")
KOHYA_TEXT = {
    "lora_te_": "text_encoder",
    "lora_te1_": "text_encoder",
    "lora_te2_": "text_encoder_2",
}
OTHER_METHODS = {
    "hada_": "LoHa",
    "lokr_": "LoKr",
    "dora_scale": "DoRA",
    "lora_magnitude_vector": "DoRA",
    "lora_mid": "LoCon in Tucker form",
    "oft_": "OFT",
    "on_input": "IA3",
    ".diff": "full weight differences",
}
FACTOR = re.compile(r"(?P<module>.+)\.lora_(?P<factor>[AB])(\.\w+)?\.weight")
ALPHA = re.compile(r"(?P<module>.+?)(\.lora_[AB](\.\w+)?(\.weight)?)?\.alpha")
# of whatever model
ANY_FACTOR = re.compile(r".*lora(_linear_layer)?[._](A|B|down|up)(\.\w+)?\.weight|.*\.alpha")

Value = TypeVar("Value")
Named = dict[str, dict[str, dict[str, Value]]]
"""Maps part -> module as the file names it -> "A" (down), "B" (up), and "alpha" where the file has
one.
"""


def unified(path: str, tensors: Mapping[str, Value]) -> tuple[Named[Value], tuple[str, ...]]:
    """Sorts the tensors of a LoRA file (or whatever stands for them) by part and module; names of
    those that are no LoRA come second.

    InputError for other methods than LoRA, and for a LoRA that is incomplete, given twice, or of
    something that no model here has.
    """
    _refuse_others(path, tensors)
    renamings = _renamings()
    named: Named[Value] = {part: {} for part in renamings}
    extras: dict[str, tuple[str, str]] = {}
    for key, value in tensors.items():
        part, name = _place(key, renamings)
        match = FACTOR.fullmatch(name) or ALPHA.fullmatch(name)
        if not part and ANY_FACTOR.fullmatch(key):
            raise InputError(
                f"{path}: no LoRA for {supported()} in diffusers, PEFT or kohya naming: "
                f"{key} is unknown"
            )
        if not part or match is None:
            extras[key] = part, name
            continue
        factors = named[part].setdefault(match["module"], {})
        factor = match.groupdict().get("factor") or "alpha"
        if factor in factors:
            raise InputError(
                f"{path}: says {part}.{match['module']} twice ({key}), expected one LoRA in a file"
            )
        factors[factor] = value
    _check_whole(path, named, extras)
    return named, tuple(extras)


def module_names(weights: Iterable[str], part: str) -> dict[str, str]:
    """Maps every name that a LoRA file may have for a module to the name of its weight in the
    model, which is one of `weights`.
    """
    paths = {name.removesuffix(".weight"): name for name in weights if name.endswith(".weight")}
    families_of_part = [family for family in families() if family.network.part == part]
    others = [resolve_name(family.lora.others)(paths) for family in families_of_part]
    found = {}
    for path, name in paths.items():
        further = [other[path] for other in others if path in other]
        for alias in _with_and_without_level(path) if part in TEXT_PARTS else (path, *further):
            found[alias] = found[alias.replace(".", "_")] = name
    return found


def _with_and_without_level(path: str) -> tuple[str, ...]:
    """Returns both names: transformers' CLIPTextModel lost its `text_model.` level, files
    may not.
    """
    bare = path.removeprefix("text_model.")
    return bare, f"text_model.{bare}"


def _place(key: str, renamings: Mapping[str, Mapping[str, str]]) -> tuple[str, str]:
    """Returns a tensor's part ("": unknown) and its name in it, ending as PEFT's names do."""
    kohya = KOHYA_TEXT | {family.lora.prefix: family.network.part for family in families()}
    for prefix, part in kohya.items():
        if key.startswith(prefix):
            return part, key.removeprefix(prefix).replace(".lora_down.", ".lora_A.").replace(
                ".lora_up.", ".lora_B."
            )
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


def _refuse_others(path: str, tensors: Iterable[str]) -> None:
    checkpoint = "first_stage_model.", *(family.files.network.prefixes[0] for family in families())
    if any(key.startswith(checkpoint) and "lora" not in key for key in tensors):
        raise InputError(
            f"{path}: this is a checkpoint, expected a LoRA; load it with CheckpointLoaderSimple"
        )
    for mark, method in OTHER_METHODS.items():
        key = next((key for key in tensors if mark in key), None)
        if key is not None:
            raise InputError(
                f"{path}: {method} is not supported ({key}), expected LoRA in diffusers, PEFT or "
                "kohya naming"
            )


def _check_whole(path: str, named: Named[Value], extras: Mapping[str, tuple[str, str]]) -> None:
    if not any(named.values()):
        raise InputError(
            f"{path}: no LoRA in diffusers, PEFT or kohya naming: {next(iter(extras))} is unknown"
        )
    for key, (part, name) in extras.items():
        if any(
            place in named.get(part, {}) for place in accumulate(name.split("."), "{}.{}".format)
        ):
            raise InputError(
                f"{path}: LoRA with parts that are not understood: {key}; expected LoRA in "
                "diffusers, PEFT or kohya naming"
            )
    for part, modules in named.items():
        for module, factors in modules.items():
            if missing := sorted({"A", "B"} - factors.keys()):
                raise InputError(
                    f"{path}: {part}.{module} has no lora_{missing[0]}: the file is incomplete"
                )
