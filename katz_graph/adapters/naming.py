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
from typing import TypeVar

from diffusers.loaders.single_file_utils import DIFFUSERS_TO_LDM_MAPPING
from diffusers.utils.state_dict_utils import DIFFUSERS_OLD_TO_PEFT, DIFFUSERS_TO_PEFT, UNET_TO_DIFFUSERS, convert_state_dict

from katz_graph.errors import InputError

PARTS = ("unet", "text_encoder", "text_encoder_2")
KOHYA = {"lora_unet_": "unet", "lora_te_": "text_encoder", "lora_te1_": "text_encoder", "lora_te2_": "text_encoder_2"}
CHECKPOINT = ("model.diffusion_model.", "first_stage_model.")
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
RENAMED = {
    "unet": UNET_TO_DIFFUSERS,
    "text_encoder": DIFFUSERS_OLD_TO_PEFT | DIFFUSERS_TO_PEFT,
    "text_encoder_2": DIFFUSERS_OLD_TO_PEFT | DIFFUSERS_TO_PEFT,
}
UNET = (
    "conv_in",
    "time_embedding",
    "add_embedding",
    "down_blocks",
    "mid_block",
    "up_blocks",
    "conv_out",
)  # what PEFT's own files begin with
FACTOR = re.compile(r"(?P<module>.+)\.lora_(?P<factor>[AB])(\.\w+)?\.weight")
ALPHA = re.compile(r"(?P<module>.+?)(\.lora_[AB](\.\w+)?(\.weight)?)?\.alpha")
ANY_FACTOR = re.compile(r".*lora(_linear_layer)?[._](A|B|down|up)(\.\w+)?\.weight|.*\.alpha")  # of whatever model
ORIGINAL_LAYERS = {
    ours.removesuffix(".weight"): theirs.removesuffix(".weight")
    for kind in ("layers", "addition_embed_type")
    for ours, theirs in DIFFUSERS_TO_LDM_MAPPING["unet"][kind].items()
}
ORIGINAL_RESNET = {
    "norm1": "in_layers.0",
    "conv1": "in_layers.2",
    "time_emb_proj": "emb_layers.1",
    "norm2": "out_layers.0",
    "conv2": "out_layers.3",
    "conv_shortcut": "skip_connection",
}
BLOCK = re.compile(r"(?P<side>down|mid|up)_blocks?\.((?P<block>\d+)\.)?(?P<kind>\w+)\.(?P<layer>\d+)\.(?P<rest>.+)")

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
    named: Named[Value] = {part: {} for part in PARTS}
    extras: dict[str, tuple[str, str]] = {}
    for key, value in tensors.items():
        part, name = _place(key)
        match = FACTOR.fullmatch(name) or ALPHA.fullmatch(name)
        if not part and ANY_FACTOR.fullmatch(key):
            raise InputError(f"{path}: no LoRA for Stable Diffusion 1, 2 or XL in diffusers, PEFT or kohya naming: {key} is unknown")
        if not part or match is None:
            extras[key] = part, name
            continue
        factors, factor = named[part].setdefault(match["module"], {}), match.groupdict().get("factor") or "alpha"
        if factor in factors:
            raise InputError(f"{path}: says {part}.{match['module']} twice ({key}), expected one LoRA in a file")
        factors[factor] = value
    _check_whole(path, named, extras)
    return named, tuple(extras)


def module_names(weights: Iterable[str], part: str) -> dict[str, str]:
    """Maps every name that a LoRA file may have for a module to the name of its weight in the
    model, which is one of `weights`.
    """
    paths = {name.removesuffix(".weight"): name for name in weights if name.endswith(".weight")}
    layers = len({path.split(".")[3] for path in paths if path.startswith("down_blocks.0.resnets.")})
    found = {}
    for path, name in paths.items():
        for alias in _originals(path, layers, paths) if part == "unet" else _with_and_without_level(path):
            found[alias] = found[alias.replace(".", "_")] = name
    return found


def _originals(path: str, layers: int, paths: Iterable[str]) -> tuple[str, ...]:
    """Returns the names of a UNet's module in diffusers and in Stable Diffusion's original code;
    `layers`: per block.
    """
    if path in ORIGINAL_LAYERS:
        return path, ORIGINAL_LAYERS[path]
    match = BLOCK.fullmatch(path)
    if match is None:
        return (path,)
    block, layer, kind, rest = int(match["block"] or 0), int(match["layer"]), match["kind"], match["rest"]
    first = block * (layers + 1)  # of the original's blocks, which are of one layer each
    rest = ORIGINAL_RESNET.get(rest, rest) if kind == "resnets" else rest
    place = int(kind == "attentions")
    match match["side"], kind:
        case "mid", _:
            return path, f"middle_block.{1 if place else 2 * layer}.{rest}"
        case "down", "downsamplers":
            return path, f"input_blocks.{first + 1 + layers}.0.op"
        case "down", _:
            return path, f"input_blocks.{first + 1 + layer}.{place}.{rest}"
        case _, "upsamplers":
            attends = any(other.startswith(f"up_blocks.{block}.attentions.") for other in paths)
            return path, f"output_blocks.{first + layers}.{1 + attends}.{rest}"
        case _:
            return path, f"output_blocks.{first + layer}.{place}.{rest}"


def _with_and_without_level(path: str) -> tuple[str, ...]:
    """Returns both names: transformers' CLIPTextModel lost its `text_model.` level, files
    may not.
    """
    bare = path.removeprefix("text_model.")
    return bare, f"text_model.{bare}"


def _place(key: str) -> tuple[str, str]:
    """Returns a tensor's part ("": unknown) and its name in it, ending as PEFT's names do."""
    for prefix, part in KOHYA.items():
        if key.startswith(prefix):
            return part, key.removeprefix(prefix).replace(".lora_down.", ".lora_A.").replace(".lora_up.", ".lora_B.")
    part, _, name = key.removeprefix("base_model.model.").partition(".")
    if part in UNET:
        part, name = "unet", f"{part}.{name}"
    if part not in PARTS:
        return "", key
    (name,) = convert_state_dict({name: None}, RENAMED[part])
    return part, name


def _refuse_others(path: str, tensors: Iterable[str]) -> None:
    if any(key.startswith(CHECKPOINT) and "lora" not in key for key in tensors):
        raise InputError(f"{path}: this is a checkpoint, expected a LoRA; load it with CheckpointLoaderSimple")
    for mark, method in OTHER_METHODS.items():
        key = next((key for key in tensors if mark in key), None)
        if key is not None:
            raise InputError(f"{path}: {method} is not supported ({key}), expected LoRA in diffusers, PEFT or kohya naming")


def _check_whole(path: str, named: Named[Value], extras: Mapping[str, tuple[str, str]]) -> None:
    if not any(named.values()):
        raise InputError(f"{path}: no LoRA in diffusers, PEFT or kohya naming: {next(iter(extras))} is unknown")
    for key, (part, name) in extras.items():
        if any(place in named.get(part, {}) for place in accumulate(name.split("."), "{}.{}".format)):
            raise InputError(f"{path}: LoRA with parts that are not understood: {key}; expected LoRA in diffusers, PEFT or kohya naming")
    for part, modules in named.items():
        for module, factors in modules.items():
            if missing := sorted({"A", "B"} - factors.keys()):
                raise InputError(f"{path}: {part}.{module} has no lora_{missing[0]}: the file is incomplete")
