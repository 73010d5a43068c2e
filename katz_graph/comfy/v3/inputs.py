"""Declares inputs and outputs of schemas: one class per link type, with nested `Input` and `Output`
classes. Plain data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum, StrEnum
from typing import Any, ClassVar


class NumberDisplay(StrEnum):
    number = "number"
    slider = "slider"
    gradient_slider = "gradientslider"


class ControlAfterGenerate(StrEnum):
    fixed = "fixed"
    increment = "increment"
    decrement = "decrement"
    randomize = "randomize"


class UploadType(StrEnum):
    image = "image_upload"
    audio = "audio_upload"
    video = "video_upload"
    model = "file_upload"


class FolderType(StrEnum):
    input = "input"
    output = "output"
    temp = "temp"


class RemoteOptions:
    """Choices that a client fetches from a server; they are not fetched here."""

    def __init__(self, route: str, *positional: Any, **options: Any) -> None:
        named = zip(
            ("refresh_button", "control_after_refresh", "timeout", "max_retries", "refresh"),
            positional,
            strict=False,
        )
        self.value = {"route": route, **dict(named), **options}


class Input:
    """An input. `options`: further widget options."""

    io_type: ClassVar[str] = "*"

    def __init__(
        self,
        id: str,
        display_name: str | None = None,
        optional: bool = False,
        tooltip: str | None = None,
        lazy: bool | None = None,
        extra_dict: Mapping[str, Any] | None = None,
        raw_link: bool | None = None,
        advanced: bool | None = None,
        **options: Any,
    ) -> None:
        self.id = id
        self.display_name = display_name
        self.optional = optional
        self.tooltip = tooltip
        self.lazy = lazy
        self.raw_link, self.advanced = bool(raw_link), bool(advanced)
        self.options: dict[str, Any] = {**(extra_dict or {}), **options}

    def get_io_type(self) -> str:
        return self.io_type


class WidgetInput(Input):
    """An input that accepts a literal, unless `force_input` is set."""

    def __init__(
        self,
        id: str,
        *positional: Any,
        default: Any = None,
        force_input: bool | None = None,
        **options: Any,
    ) -> None:
        super().__init__(id, *positional, **options)
        self.default, self.force_input = default, bool(force_input)


class Output:
    io_type: ClassVar[str] = "*"

    def __init__(
        self,
        id: str | None = None,
        display_name: str | None = None,
        tooltip: str | None = None,
        is_output_list: bool = False,
    ) -> None:
        self.id = id
        self.display_name = display_name
        self.tooltip = tooltip
        self.is_output_list = is_output_list

    def get_io_type(self) -> str:
        return self.io_type


class ComfyType:
    """A link type. `Type`: the Python type of its values, for annotations."""

    Type: ClassVar[Any] = Any
    io_type: ClassVar[str] = "*"
    Input: ClassVar[type[Input]] = Input
    Output: ClassVar[type[Output]] = Output


def comfytype(io_type: str, **_: Any) -> Callable[[type], type]:
    """Returns a decorator that sets the link type of a pack's class and of its nested `Input` and
    `Output`.
    """

    def named(cls: type) -> type:
        setattr(cls, "io_type", io_type)  # noqa: B010
        for part, base in (("Input", Input), ("Output", Output)):
            setattr(cls, part, type(part, (getattr(cls, part, base),), {"io_type": io_type}))
        return cls

    return named


def Custom(io_type: str) -> type[ComfyType]:
    """Creates a link type of this name."""
    return wire_type(io_type, io_type)


def wire_type(
    name: str,
    io_type: str,
    input: type[Input] = Input,
    output: type[Output] = Output,
) -> type[ComfyType]:
    """Creates a class that declares inputs and outputs of a link type."""
    inside = {
        "Input": type("Input", (input,), {"io_type": io_type}),
        "Output": type("Output", (output,), {"io_type": io_type}),
    }
    return type(name, (ComfyType,), {"io_type": io_type, **inside})


class _ComboInput(WidgetInput):
    """Accepts one of several choices: a list, or the values of an Enum."""

    def __init__(
        self, id: str, options: Any = None, *positional: Any, default: Any = None, **more: Any
    ) -> None:
        super().__init__(id, *positional, default=_plain(default), **more)
        members = isinstance(options, type) and issubclass(options, Enum)
        self.choices: list[Any] = (
            [member.value for member in options] if members else list(options or ())
        )


class _ComboOutput(Output):
    """Produces one of several choices; the value is not checked."""

    def __init__(
        self,
        id: str | None = None,
        display_name: str | None = None,
        options: Any = None,
        *positional: Any,
        **more: Any,
    ) -> None:
        super().__init__(id, display_name, *positional, **more)


class _MultiComboInput(_ComboInput):
    """Accepts any number of choices, as a list."""

    def __init__(self, *positional: Any, **more: Any) -> None:
        super().__init__(*positional, **{"multi_select": True, **more})


class _MultiTypeInput(Input):
    """Accepts several link types; has a widget if built from a widget input."""

    def __init__(
        self, id: str | Input, types: Sequence[type[ComfyType]], *positional: Any, **options: Any
    ) -> None:
        self.widget = id if isinstance(id, Input) else None
        super().__init__(id.id if isinstance(id, Input) else id, *positional, **options)
        if self.widget is not None:
            self.optional = self.optional or self.widget.optional
        names = ([self.widget.get_io_type()] if self.widget is not None else []) + [
            kind.io_type for kind in types
        ]
        self.union = ",".join(dict.fromkeys(names))

    def get_io_type(self) -> str:
        return self.union


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value


Boolean = wire_type("Boolean", "BOOLEAN", WidgetInput)
Int = wire_type("Int", "INT", WidgetInput)
Float = wire_type("Float", "FLOAT", WidgetInput)
String = wire_type("String", "STRING", WidgetInput)
Color = wire_type("Color", "COLOR", WidgetInput)
Combo = wire_type("Combo", "COMBO", _ComboInput, output=_ComboOutput)
MultiCombo = wire_type("MultiCombo", "COMBO", _MultiComboInput)
MultiType = wire_type("MultiType", "*", _MultiTypeInput)
AnyType = wire_type("AnyType", "*")

_WIRES = """
    Accumulation:ACCUMULATION Array:ARRAY Audio:AUDIO AudioEncoder:AUDIO_ENCODER
    AudioEncoderOutput:AUDIO_ENCODER_OUTPUT BBOX:BBOX BoundingBox:BOUNDING_BOX Clip:CLIP
    ClipVision:CLIP_VISION ClipVisionOutput:CLIP_VISION_OUTPUT Conditioning:CONDITIONING
    ControlNet:CONTROL_NET Dict:DICT FaceAnalysis:FACE_ANALYSIS FlowControl:FLOW_CONTROL
    Gligen:GLIGEN Guider:GUIDER HookKeyframes:HOOK_KEYFRAMES Hooks:HOOKS Image:IMAGE
    Latent:LATENT LatentOperation:LATENT_OPERATION LatentUpscaleModel:LATENT_UPSCALE_MODEL
    Load3D:LOAD_3D Load3DAnimation:LOAD3D_ANIMATION Load3DCamera:LOAD3D_CAMERA
    LoraModel:LORA_MODEL LossMap:LOSS_MAP Mask:MASK Mesh:MESH Model:MODEL ModelPatch:MODEL_PATCH
    Noise:NOISE Photomaker:PHOTOMAKER Point:POINT SEGS:SEGS SVG:SVG Sampler:SAMPLER
    Sigmas:SIGMAS StyleModel:STYLE_MODEL TimestepsRange:TIMESTEPS_RANGE Tracks:TRACKS
    UpscaleModel:UPSCALE_MODEL Vae:VAE Video:VIDEO Voxel:VOXEL
    WanCameraEmbedding:WAN_CAMERA_EMBEDDING Webcam:WEBCAM
"""
WIRES = {
    name: wire_type(name, io_type)
    for name, _, io_type in (pair.partition(":") for pair in _WIRES.split())
}
