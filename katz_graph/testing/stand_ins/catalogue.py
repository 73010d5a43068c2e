"""Finds the stand-in for a file that official workflow templates name: in the families' modules
`stand_ins`, and among text encoders and VAEs.
"""

from __future__ import annotations

import re
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from katz_graph.files.folders import KINDS
from katz_graph.models.families import FAMILIES
from katz_graph.models.families.shared.stand_ins import StandIn, Tensors, under
from katz_graph.testing.stand_ins import text_encoders, vaes
from katz_graph.testing.stand_ins.formats import write

SHARED = (
    StandIn("clip", r"^clip_l", text_encoders.clip_l),
    StandIn("clip", r"^clip_g", text_encoders.clip_g),
    StandIn("clip", r"^t5xxl", text_encoders.t5),
    StandIn("clip", r"^qwen_3_([48]b|06b)", text_encoders.qwen3),
    StandIn("clip", r"^mistral_3_small", text_encoders.mistral3),
    StandIn("clip", r"^qwen_2\.5_vl_7b", text_encoders.qwen25_vl),
    StandIn("clip", r"^qwen3vl_[48]b", text_encoders.qwen3_vl),
    StandIn("clip", r"^qwen3\.5_9b_qwen_image", text_encoders.unread),
    StandIn("vae", r"^qwen_image_2\.1_vae", vaes.qwen_image_21_vae),
    StandIn("vae", r"^qwen_image_layered_vae", partial(vaes.qwen_image_vae, channels=4)),
    StandIn("vae", r"^(qwen_image_vae|marigold_v2)", vaes.qwen_image_vae),
)
FORMATS = (  # a pattern of names, and the kind for `write`
    (r"int8.?convrot", "convrot"),
    (r"fp8_scaled", "scaled_fp8"),
    (r"fp8_?mixed", "comfy_quant"),
    (r"fp8", "fp8"),
    (r"", ""),
)


@cache
def stand_ins() -> tuple[StandIn, ...]:
    names = [f"katz_graph.models.families.{family}.stand_ins" for family in FAMILIES]
    found = [import_module(name).STAND_INS for name in names if find_spec(name) is not None]
    return (*(one for each in found for one in each), *SHARED)


def stand_in(folder: str, name: str) -> StandIn | None:
    """Returns the stand-in for a file in a kind of folder; None if no stand-in exists."""
    those = (one for one in stand_ins() if one.folder == folder and re.search(one.names, name))
    return next(those, None)


def tensors_of(found: StandIn) -> Tensors:
    """Returns the tensors of a file, with the text encoders of a checkpoint."""
    made = found.tensors()
    for prefix, name in found.encoders.items():
        encoder = stand_in("clip", name)
        assert encoder is not None, name
        made |= under(prefix, encoder.tensors())
    return made


def write_stand_in(models: Path, folder: str, name: str) -> bool:
    """Writes a file's stand-in in the format that its name says; returns whether one exists.
    `folder`: the kind of its folder.
    """
    found = stand_in(folder, name)
    if found is None:
        return False
    path = models / KINDS[folder].folders[0] / name
    if not path.exists():
        kind = next(kind for mark, kind in FORMATS if re.search(mark, name))
        write(path, tensors_of(found), kind)
    return True
