"""Recognises an upscaler from its file's header, without torch.

Supports three naming schemes of RRDBNet (ESRGAN, Wang et al. 2018; Real-ESRGAN, Wang et al. 2021)
and Real-ESRGAN's compact network.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from katz_graph.core.errors import InputError
from katz_graph.core.recipe import Compact, Rrdb, UpscaleModelRecipe
from katz_graph.models.loading.contents import contents

PICTURE = 3  # channels
WRAPPERS = ("params_ema.", "params.", "module.")  # name prefixes that trainers add
ESRGAN = (  # names in the first release of ESRGAN
    (re.compile(r"RRDB_trunk\.(\d+)\.RDB(\d)\."), r"body.\1.rdb\2."),
    (re.compile(r"trunk_conv\."), "conv_body."),
    (re.compile(r"upconv(\d)\."), r"conv_up\1."),
    (re.compile(r"HRconv\."), "conv_hr."),
)
SEQUENTIAL = (  # older names: numbered parts
    (re.compile(r"model\.0\."), "conv_first."),
    (re.compile(r"model\.1\.sub\.(\d+)\.RDB(\d)\.conv(\d)\.0\."), r"body.\1.rdb\2.conv\3."),
    (re.compile(r"model\.1\.sub\.\d+\.(weight|bias)"), r"conv_body.\1"),
)


def upscale_model(path: Path) -> UpscaleModelRecipe:
    """Makes the recipe of an upscaler in a safetensors file. Raises InputError for a pickle, a
    damaged file or another kind of network.
    """
    file = contents(path)
    shapes = file.shapes
    names = canonical_names(shapes)
    known = {name: shapes[original] for name, original in names.items()}
    try:
        shape = _compact(known) if "body.0.weight" in known else _rrdb(known)
    except (KeyError, IndexError):
        raise InputError(
            f"{path}: not an upscaler of a known kind (RRDBNet of ESRGAN and Real-ESRGAN, "
            "Real-ESRGAN compact); "
            f"its first tensors are {', '.join(sorted(shapes)[:3]) or 'none'}"
        ) from None
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None
    return UpscaleModelRecipe(file.identity, shape, tuple(sorted(names.items())))


def canonical_names(names: Iterable[str]) -> dict[str, str]:
    """Maps the names in Real-ESRGAN's release to those in the file."""
    bare = {_unwrapped(name): name for name in names}
    rules: tuple[tuple[re.Pattern[str], str], ...] = ESRGAN
    if any(name.startswith("model.1.sub.") for name in bare):
        rules = SEQUENTIAL + _tail(bare)
    return {_renamed(name, rules): original for name, original in bare.items()}


def _unwrapped(name: str) -> str:
    for wrapper in WRAPPERS:
        name = name.removeprefix(wrapper)
    return name


def _renamed(name: str, rules: Iterable[tuple[re.Pattern[str], str]]) -> str:
    for pattern, replacement in rules:
        name, count = re.subn(rf"^{pattern.pattern}", replacement, name)
        if count:
            return name
    return name


def _tail(names: Iterable[str]) -> tuple[tuple[re.Pattern[str], str], ...]:
    """Returns the renaming rules of the tail: one convolution per doubling and two more."""
    numbers = sorted(
        {
            int(match[1])
            for name in names
            if (match := re.match(r"model\.(\d+)\.weight", name)) and int(match[1]) > 1
        }
    )
    parts = [*(f"conv_up{number}" for number in range(1, len(numbers) - 1)), "conv_hr", "conv_last"]
    return tuple(
        (re.compile(rf"model\.{number}\."), f"{part}.")
        for number, part in zip(numbers, parts, strict=False)
    )


def _rrdb(shapes: Mapping[str, Any]) -> Rrdb:
    features, given = shapes["conv_first.weight"][:2]
    made = shapes["conv_last.weight"][0]
    unshuffle = math.isqrt(given // PICTURE)
    if made != PICTURE or given != PICTURE * unshuffle**2 or unshuffle not in (1, 2, 4):
        raise ValueError(
            f"an upscaler from {given} to {made} channels; only those for colour pictures (3 "
            "channels) are supported"
        )
    doublings = sum(1 for name in shapes if re.fullmatch(r"conv_up\d+\.weight", name))
    blocks = len({name.split(".")[1] for name in shapes if name.startswith("body.")})
    if 1 << doublings < unshuffle:
        raise ValueError("an upscaler that makes pictures smaller is not supported")
    return Rrdb(features, shapes["body.0.rdb1.conv1.weight"][0], blocks, doublings, unshuffle)


def _compact(shapes: Mapping[str, Any]) -> Compact:
    features, given = shapes["body.0.weight"][:2]
    shapes["body.1.weight"]  # KeyError unless activations have weights
    last = max(
        int(name.split(".")[1]) for name in shapes if re.fullmatch(r"body\.\d+\.weight", name)
    )
    made = shapes[f"body.{last}.weight"][0]
    scale = math.isqrt(made // PICTURE)
    if given != PICTURE or made != PICTURE * scale**2 or not scale:
        raise ValueError(
            f"an upscaler from {given} to {made} channels; only those for colour pictures (3 "
            "channels) are supported"
        )
    return Compact(features, last // 2 - 1, scale)
