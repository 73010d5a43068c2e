"""Maps UNet modules to their names in Stable Diffusion's original code, which kohya's trainers also
use.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from diffusers.loaders.single_file_utils import DIFFUSERS_TO_LDM_MAPPING

from katz_graph.models.renaming import Rows

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
BLOCK = re.compile(
    r"(?P<side>down|mid|up)_blocks?\.((?P<block>\d+)\.)?(?P<kind>\w+)\.(?P<layer>\d+)\.(?P<rest>.+)"
)


def originals(parameters: Collection[str]) -> Mapping[str, tuple[Rows, ...]]:
    """Maps the original names of a UNet's parameters to the parameters."""
    split = [name.rpartition(".") for name in parameters]
    paths = {path for path, _, _ in split}
    layers = len(
        {path.split(".")[3] for path in paths if path.startswith("down_blocks.0.resnets.")}
    )
    return {
        f"{name}.{parameter}": (Rows(f"{path}.{parameter}"),)
        for path, _, parameter in split
        if (name := _original(path, layers, paths))
    }


def _original(path: str, layers: int, paths: Collection[str]) -> str:
    """Returns a module's original name, or "" without one. `layers`: their number per block."""
    if path in ORIGINAL_LAYERS:
        return str(ORIGINAL_LAYERS[path])
    match = BLOCK.fullmatch(path)
    if match is None:
        return ""
    block = int(match["block"] or 0)
    layer = int(match["layer"])
    kind = match["kind"]
    rest = match["rest"]
    first = block * (layers + 1)  # original blocks have one layer each
    rest = ORIGINAL_RESNET.get(rest, rest) if kind == "resnets" else rest
    place = int(kind == "attentions")
    match match["side"], kind:
        case "mid", _:
            return f"middle_block.{1 if place else 2 * layer}.{rest}"
        case "down", "downsamplers":
            return f"input_blocks.{first + 1 + layers}.0.op"
        case "down", _:
            return f"input_blocks.{first + 1 + layer}.{place}.{rest}"
        case _, "upsamplers":
            attends = any(other.startswith(f"up_blocks.{block}.attentions.") for other in paths)
            return f"output_blocks.{first + layers}.{1 + attends}.{rest}"
        case _:
            return f"output_blocks.{first + layer}.{place}.{rest}"
