"""Detects whether a single-file model predicts epsilon or v, and whether its noise schedule has
zero terminal SNR. Never imports torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from katz_graph.core.errors import InputError
from katz_graph.core.recipe import Component
from katz_graph.models.families.unet.architecture import unet_architecture
from katz_graph.models.families.unet.configurations import scheduler_configuration
from katz_graph.models.loading.identity import read_header

if TYPE_CHECKING:
    from numpy import ndarray

    from katz_graph.models.loading.contents import Contents

Prediction = Literal["epsilon", "v_prediction"]

MARKERS = "v_pred", "ztsnr"  # names of empty marker tensors
METADATA = "modelspec.prediction_type", "modelspec.predict_key"
SPREAD = (
    "output_blocks.11.1.transformer_blocks.0.norm1.bias",
    "up_blocks.3.attentions.2.transformer_blocks.0.norm1.bias",
)
# Stable Diffusion 2 models that predict v exceed this standard deviation of the bias `SPREAD`
WIDEST_EPSILON = 0.09


def scheduler_component(file: Contents, unet: Component) -> Component:
    """Makes the component that replaces a scheduler folder. A YAML file next to the checkpoint
    takes precedence over marker tensors, and these over metadata.

    Stable Diffusion 2 files may lack all three. A large standard deviation of one bias then
    indicates v, as in other programs.
    """
    prediction, zero_terminal_snr = _yaml(Path(file.path).with_suffix(".yaml"))
    if prediction is None and MARKERS[0] in file.shapes:
        prediction = "v_prediction"
    if prediction is None:
        prediction = next(
            (_named(file.metadata[key]) for key in METADATA if key in file.metadata), None
        )
    if prediction is None:
        shape = unet_architecture(unet)
        plain = shape.version == "sd2" and shape.input_channels == 4
        prediction = "v_prediction" if plain and _spreads(file, unet.prefix) else "epsilon"
    zero_terminal_snr = zero_terminal_snr or MARKERS[1] in file.shapes
    return Component(
        file.path,
        (file.identity,),
        json.dumps(scheduler_configuration(prediction, zero_terminal_snr)),
    )


def _named(value: str) -> Prediction | None:
    folded = value.strip().lower()
    return (
        "v_prediction"
        if folded in ("v", "v_prediction", "vpred")
        else "epsilon"
        if folded in ("epsilon", "eps")
        else None
    )


def _yaml(path: Path) -> tuple[Prediction | None, bool]:
    """Reads the prediction from the original code's configuration: `parameterization` (Stable
    Diffusion 2), or the denoiser's scaling (SDXL).
    """
    if not path.is_file():
        return None, False
    import yaml

    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
        parameters: Mapping[str, Any] = values["model"]["params"]
        named = _named(str(parameters.get("parameterization", "")))
        scaling = str(
            parameters.get("denoiser_config", {})
            .get("params", {})
            .get("scaling_config", {})
            .get("target", "")
        )
    except (
        OSError,
        ValueError,
        RecursionError,
        yaml.YAMLError,
        AttributeError,
        KeyError,
        TypeError,
    ):
        raise InputError(
            f"{path}: is next to a checkpoint, but is not its configuration: correct it, or move "
            "it away"
        ) from None
    if scaling.rpartition(".")[2] in ("VScaling", "EpsScaling"):
        named = "v_prediction" if scaling.endswith("VScaling") else "epsilon"
    return named, bool(parameters.get("zero_terminal_snr") or parameters.get("zsnr"))


def _spreads(file: Contents, prefix: str) -> bool:
    name = next((prefix + name for name in SPREAD if prefix + name in file.shapes), None)
    return name is not None and float(_tensor(Path(file.path), name).std()) > WIDEST_EPSILON


def _tensor(path: Path, name: str) -> ndarray[Any, Any]:
    """Reads one small tensor as float32 without torch."""
    import numpy as np

    header, entries = read_header(path)
    begin, end = entries[name]["data_offsets"]
    with path.open("rb") as stream:
        stream.seek(8 + len(header) + begin)
        data = stream.read(end - begin)
    match entries[name]["dtype"]:
        case "F32" | "F16" | "F64" as kind:
            return np.frombuffer(data, f"<f{int(kind[1:]) // 8}").astype(np.float32)
        case "BF16":
            return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
        case "F8_E5M2":
            return (
                (np.frombuffer(data, "u1").astype(np.uint16) << 8)
                .view(np.float16)
                .astype(np.float32)
            )
        case "F8_E4M3":
            bits = np.frombuffer(data, "u1").astype(np.int32)
            exponent, fraction = bits >> 3 & 15, (bits & 7) / 8
            size = np.where(
                exponent == 0, np.ldexp(fraction, -6), np.ldexp(1 + fraction, exponent - 7)
            )
            return np.where(bits & 128, -size, size).astype(np.float32)
        case other:
            raise InputError(f"{path}: {name} is {other}, expected floating-point numbers")
