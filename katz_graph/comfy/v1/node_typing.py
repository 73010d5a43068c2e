"""Names link types, and defines base classes with which ComfyUI V1 packs may annotate their nodes.
Must not know the executor.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, ClassVar, TypedDict


class IO(StrEnum):
    """Names of link types. `ANY` equals every other type."""

    STRING = "STRING"
    IMAGE = "IMAGE"
    MASK = "MASK"
    LATENT = "LATENT"
    BOOLEAN = "BOOLEAN"
    INT = "INT"
    FLOAT = "FLOAT"
    COMBO = "COMBO"
    CONDITIONING = "CONDITIONING"
    SAMPLER = "SAMPLER"
    SIGMAS = "SIGMAS"
    GUIDER = "GUIDER"
    NOISE = "NOISE"
    CLIP = "CLIP"
    CONTROL_NET = "CONTROL_NET"
    VAE = "VAE"
    MODEL = "MODEL"
    LORA_MODEL = "LORA_MODEL"
    LOSS_MAP = "LOSS_MAP"
    CLIP_VISION = "CLIP_VISION"
    CLIP_VISION_OUTPUT = "CLIP_VISION_OUTPUT"
    STYLE_MODEL = "STYLE_MODEL"
    GLIGEN = "GLIGEN"
    UPSCALE_MODEL = "UPSCALE_MODEL"
    AUDIO = "AUDIO"
    WEBCAM = "WEBCAM"
    POINT = "POINT"
    FACE_ANALYSIS = "FACE_ANALYSIS"
    BBOX = "BBOX"
    SEGS = "SEGS"
    VIDEO = "VIDEO"
    ANY = "*"
    NUMBER = "FLOAT,INT"
    PRIMITIVE = "STRING,FLOAT,INT,BOOLEAN"

    def __ne__(self, value: object) -> bool:
        if self.value == "*" or value == "*":
            return False
        if not isinstance(value, str):
            return True
        return not set(value.split(",")).issubset(self.value.split(","))

    __hash__ = str.__hash__


InputTypeOptions = dict[str, Any]
HiddenInputTypeDict = dict[str, Any]


class InputTypeDict(TypedDict, total=False):
    """The return type of INPUT_TYPES."""

    required: dict[str, Any]
    optional: dict[str, Any]
    hidden: HiddenInputTypeDict


class FileLocator(TypedDict, total=False):
    """A file reference in the form that clients receive."""

    filename: str
    subfolder: str
    type: str


class ComfyNodeABC:
    """A base class for type annotations."""

    DESCRIPTION: ClassVar[str]
    CATEGORY: ClassVar[str]
    EXPERIMENTAL: ClassVar[bool]
    DEPRECATED: ClassVar[bool]
    RETURN_TYPES: ClassVar[tuple[Any, ...]]
    RETURN_NAMES: ClassVar[tuple[str, ...]]
    OUTPUT_IS_LIST: ClassVar[tuple[bool, ...]]
    OUTPUT_NODE: ClassVar[bool]
    INPUT_IS_LIST: ClassVar[bool]
    FUNCTION: ClassVar[str]

    @classmethod
    def INPUT_TYPES(cls) -> Mapping[str, Any]:
        return {"required": {}}


class CheckLazyMixin:
    """Requests every lazy input that is not available yet."""

    def check_lazy_status(self, **inputs: Any) -> list[str]:
        return [name for name, value in inputs.items() if value is None]
