"""Brings the tensor names of LoRA files to one form: diffusers (old and new) and PEFT name layers
by a module's path, other trainers by that of the original code, whose layers may be rows of several
of the module's; kohya's and LyCORIS' with underscores for dots.

Every tensor in a file is returned once, or is named as left out. Nothing is renamed by guessing:
every name is looked up among those that a model's modules have.
"""

from __future__ import annotations

from collections import Counter
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
from katz_graph.models.family import LoraNames, ModelFamily, all_files, families, supported
from katz_graph.models.renaming import Rows

NETWORK = "network"  # of any family: prefixes do not tell which
TEXT_PARTS = ("text_encoder", "text_encoder_2", "text_encoder_3")
TEXT_PREFIXES = {
    "lora_te_": "text_encoder",
    "lora_te1_": "text_encoder",
    "lora_te2_": "text_encoder_2",
    "lora_te3_": "text_encoder_3",
    "text_encoders.clip_l.transformer.": "text_encoder",
    "text_encoders.clip_g.transformer.": "text_encoder_2",
    "text_encoders.t5xxl.transformer.": "text_encoder_3",
    "text_encoders.qwen3_4b.transformer.": "text_encoder",
    **{f"{part}.": part for part in TEXT_PARTS},
}
NETWORK_PREFIXES = ("diffusion_model.", "lycoris_")  # beside those of families
LEVELS = ("text_model.", "model.")  # of text encoders, that a file may name or not
NAMINGS = "in diffusers, PEFT, kohya, LyCORIS or original naming"
PARAMETERS = ("weight", "bias")
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
    prefixes, renamings = _prefixes(), _renamings()
    named: dict[str, dict[str, dict[str, str]]] = {part: {} for part in renamings}
    extras: dict[str, tuple[str, str]] = {}
    for key in keys:
        part, name = _place(key, prefixes)
        if part:
            (name,) = convert_state_dict({name: None}, renamings[part])
        module, tensor = _split(name)
        if not part or not tensor:
            extras[key] = part, name
            continue
        entry = named[part].setdefault(module, {})
        if tensor in entry:
            raise InputError(
                f"{path}: says {layer_of(key)} twice ({key}), expected one LoRA in a file"
            )
        entry[tensor] = key
    _check_known(path, named, extras)
    return named, tuple(extras)


# a model has many LoRAs
@lru_cache(maxsize=MODULES_KNOWN)
def layer_names(
    parameters: tuple[str, ...], names: LoraNames | None
) -> Mapping[str, tuple[Rows, ...]]:
    """Maps every name that a LoRA file may have for a layer to the layers of the module whose rows
    it is, in order. `names`: those of a network's family, None for a text encoder.
    """
    split = (name.rpartition(".") for name in parameters)
    paths = dict.fromkeys(path for path, _, parameter in split if parameter in PARAMETERS)
    original = "" if names is None else names.originals
    further = resolve_name(original)(paths) if original else {}
    own = {alias: (Rows(path),) for path in paths for alias in _levels(path, names is None)}
    dotted: dict[str, tuple[Rows, ...]] = {**further, **own}
    return {name.replace(".", "_"): rows for name, rows in dotted.items()} | dotted


def _levels(path: str, of_text: bool) -> Iterable[str]:
    """Yields a layer's names with and without a level: transformers' CLIPTextModel lost its own,
    files may not.
    """
    yield path
    for level in LEVELS if of_text else ():
        yield path.removeprefix(level)
        yield f"{level}{path.removeprefix(level)}"


def layer_of(key: str) -> str:
    """Returns the layer of a tensor as its file names it."""
    return _split(key)[0]


def families_told(names: Iterable[str]) -> tuple[ModelFamily, ...]:
    """Returns the families whose networks have most of the layers of a file, by their names."""
    counts: Counter[int] = Counter()
    for name in names:
        counts.update(place for place, family in enumerate(families()) if _has(family, name))
    most = max(counts.values(), default=0)
    return tuple(
        family for place, family in enumerate(families()) if most and counts[place] == most
    )


def _has(family: ModelFamily, name: str) -> bool:
    return name.startswith(tuple(f"{root}{end}" for root in family.lora.roots for end in "._"))


def _place(key: str, prefixes: Mapping[str, str]) -> tuple[str, str]:
    """Returns a tensor's part ("": unknown) and its name in it."""
    name = key.removeprefix("base_model.model.")
    for prefix, part in prefixes.items():
        if name.startswith(prefix):
            return part, name.removeprefix(prefix)
    return (NETWORK if any(_has(family, name) for family in families()) else ""), name


def _prefixes() -> Mapping[str, str]:
    """Maps how names in files begin to the part of a pipeline."""
    of_families = (
        prefix
        for family in families()
        for prefix in (*family.lora.prefixes, f"{family.network.part}.")
    )
    return TEXT_PREFIXES | dict.fromkeys((*NETWORK_PREFIXES, *of_families), NETWORK)


def _renamings() -> Mapping[str, Mapping[str, str]]:
    """Maps each part of a pipeline to how names in old files of diffusers become PEFT's."""
    networks = {
        old: new for family in families() for old, new in resolve_name(family.lora.renaming).items()
    }
    return {NETWORK: networks} | dict.fromkeys(
        TEXT_PARTS, DIFFUSERS_OLD_TO_PEFT | DIFFUSERS_TO_PEFT
    )


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
