"""Builds ComfyUI V1 classes of the built-in nodes, for packs that call them, inherit from them or
look them up by class.

A method call inside a running node runs the built-in node; a sampler samples immediately. A class
exposes only the node type's information.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from katz_graph.comfy.finder import installed
from katz_graph.comfy.missing import refuse
from katz_graph.comfy.v3.inputs import FolderType
from katz_graph.comfy.v3.ui import ImageSaveHelper
from katz_graph.comfy.values import from_pack, to_pack
from katz_graph.core.errors import InputError
from katz_graph.core.graph import Expansion, Link
from katz_graph.files.folders import Folders
from katz_graph.node import WithUi
from katz_graph.node.scope import current, current_context
from katz_graph.node.types import Context, Input, NodeType
from katz_graph.planner.region import bind_region, region_nodes

METHODS: Mapping[str, str] = {
    "CheckpointLoaderSimple": "load_checkpoint ckpt_name",
    "CLIPLoader": "load_clip clip_name type device",
    "CLIPSetLastLayer": "set_last_layer clip stop_at_clip_layer",
    "CLIPTextEncode": "encode clip text",
    "CLIPTextEncodeSDXL": "encode clip width height crop_w crop_h target_width target_height "
    "text_g text_l",
    "CLIPVisionEncode": "encode clip_vision image crop",
    "CLIPVisionLoader": "load_clip clip_name",
    "ConditioningAverage": "addWeighted conditioning_to conditioning_from conditioning_to_strength",
    "ConditioningCombine": "combine conditioning_1 conditioning_2",
    "ConditioningConcat": "concat conditioning_to conditioning_from",
    "ConditioningSetArea": "append conditioning width height x y strength",
    "ConditioningSetMask": "append conditioning mask set_cond_area strength",
    "ConditioningSetTimestepRange": "set_range conditioning start end",
    "ConditioningZeroOut": "zero_out conditioning",
    "ControlNetApply": "apply_controlnet conditioning control_net image strength",
    "ControlNetApplyAdvanced": "apply_controlnet positive negative control_net image strength "
    "start_percent end_percent vae",
    "ControlNetLoader": "load_controlnet control_net_name",
    "DualCLIPLoader": "load_clip clip_name1 clip_name2 type device",
    "EmptyImage": "generate width height batch_size color",
    "EmptyLatentImage": "generate width height batch_size",
    "ImageBatch": "batch image1 image2",
    "ImageInvert": "invert image",
    "ImagePadForOutpaint": "expand_image image left top right bottom feathering",
    "ImageScale": "upscale image upscale_method width height crop",
    "ImageScaleBy": "upscale image upscale_method scale_by",
    "InpaintModelConditioning": "encode positive negative pixels vae mask noise_mask",
    "KSampler": "sample model seed steps cfg sampler_name scheduler positive negative "
    "latent_image denoise",
    "KSamplerAdvanced": (
        "sample model add_noise noise_seed steps cfg sampler_name scheduler positive negative "
        "latent_image start_at_step end_at_step "
        "return_with_leftover_noise denoise"
    ),
    "LatentBatch": "batch samples1 samples2",
    "LatentUpscale": "upscale samples upscale_method width height crop",
    "LatentUpscaleBy": "upscale samples upscale_method scale_by",
    "LoadImage": "load_image image",
    "LoadImageMask": "load_image image channel",
    "LoraLoader": "load_lora model clip lora_name strength_model strength_clip",
    "LoraLoaderModelOnly": "load_lora_model_only model lora_name strength_model",
    "PreviewImage": "save_images images filename_prefix",
    "RepeatLatentBatch": "repeat samples amount",
    "SaveImage": "save_images images filename_prefix",
    "SetLatentNoiseMask": "set_mask samples mask",
    "UNETLoader": "load_unet unet_name weight_dtype",
    "VAEDecode": "decode vae samples",
    "VAEEncode": "encode vae pixels",
    "VAEEncodeForInpaint": "encode vae pixels mask grow_mask_by",
    "VAELoader": "load_vae vae_name",
}
"""Method name and argument order of each class that packs are known to call."""


class SavesPictures:
    """Saves pictures. Packs set its attributes, and call or replace its method."""

    def __init__(self, type: str = "output") -> None:
        self.output_dir = str(installed().folders.output.absolute())
        self.type, self.prefix_append, self.compress_level = type, "", 4

    def save_images(
        self,
        images: Any,
        filename_prefix: str = "ComfyUI",
        prompt: Any = None,
        extra_pnginfo: Any = None,
    ) -> dict[str, Any]:
        """Saves pictures [B, H, W, C] as PNG files in the output folder, or in the temporary one if
        `type` is `temp`.
        """
        saved = ImageSaveHelper.save_images(
            images, filename_prefix + self.prefix_append, FolderType(self.type)
        )
        return {"ui": {"images": saved}, "result": (images,)}


class Previews(SavesPictures):
    """Saves pictures in the temporary folder."""

    def __init__(self) -> None:
        super().__init__("temp")


SAVING: Mapping[str, type] = {"SaveImage": SavesPictures, "PreviewImage": Previews}


def node_class(kind: NodeType, folders: Folders) -> type:
    """Builds a ComfyUI V1 class of a node type."""
    method, *order = (
        METHODS[kind.name].split()
        if kind.name in METHODS
        else ("execute", *dict.fromkeys(name.partition(".")[0] for name in kind.inputs))
    )
    signature = inspect.Signature(
        [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in order]
    )

    def call(*arguments: Any, **named: Any) -> Any:
        given = signature.bind_partial(*arguments).arguments | named
        return call_node(kind, given)

    def as_method(self: Any, *arguments: Any, **named: Any) -> Any:
        return call(*arguments, **named)

    def input_types(cls: type) -> dict[str, Any]:
        return declared_inputs(kind, folders)

    members: dict[str, Any] = {
        "INPUT_TYPES": classmethod(input_types),
        "RETURN_TYPES": tuple(output.socket for output in kind.outputs),
        "RETURN_NAMES": tuple(output.name for output in kind.outputs),
        "FUNCTION": method,
        "CATEGORY": kind.category,
        "DESCRIPTION": kind.description,
        "OUTPUT_NODE": kind.is_output,
        "execute": staticmethod(call),
        "__doc__": kind.description,
    }
    if kind.name not in SAVING:
        members[method] = as_method
    lists = {
        f"{name}s": list(knob.choices)
        for name, knob in kind.inputs.items()
        if knob.choices is not None
    }
    return type(kind.name, (SAVING.get(kind.name, object),), lists | members)


def _flat(kind: NodeType, given: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Unpacks the objects in which packs pass groups of inputs, and yields values by graphs' input
    names. The object of a choice holds the choice, under its own name, and the inputs that it adds.
    """
    for name, value in given.items():
        grouped = name not in kind.inputs or bool(kind.brought_by(name))
        if not grouped or not isinstance(value, Mapping):
            yield name, value
            continue
        for inner, one in value.items():
            yield (name if inner == name else f"{name}.{inner}"), one


def call_node(kind: NodeType, given: Mapping[str, Any]) -> tuple[Any, ...]:
    """Runs a built-in node with values from a pack; returns its outputs as packs expect them.
    InputError for unknown or missing inputs.
    """
    context = current_context(f"{kind.name} called by a pack")
    given = dict(_flat(kind, given))
    unknown = [name for name in given if name not in kind.inputs]
    if unknown:
        raise InputError(f"{kind.name} has no input {', '.join(unknown)}")
    values = {
        name: from_pack(value, kind.inputs[name].socket)
        for name, value in given.items()
        if value is not None
    }
    for name, knob in kind.inputs.items():
        if name not in values and knob.required:
            raise InputError(f"{kind.name} was called without {name}")
        if name not in values and knob.knob:
            values[name] = knob.default
    result = finished(kind.run(context, values), context)
    return tuple(
        to_pack(value, output.socket) for value, output in zip(result, kind.outputs, strict=True)
    )


def declared_inputs(kind: NodeType, folders: Folders) -> dict[str, Any]:
    """Builds a node's INPUT_TYPES."""
    groups: dict[str, Any] = {"required": {}}
    for name, port in kind.inputs.items():
        group = "required" if port.required or port.knob else "optional"
        groups.setdefault(group, {})[name] = _declared(port, folders)
    return groups


def _declared(port: Input, folders: Folders) -> tuple[Any, ...]:
    options = {
        "tooltip": port.help,
        "default": port.default,
        "min": port.minimum,
        "max": port.maximum,
        "step": port.widget.step,
        "round": port.widget.round,
    }
    options |= {
        name: True for name in ("multiline", "control_after_generate") if getattr(port.widget, name)
    }
    options |= {"lazy": True} if port.lazy else {}
    options |= {"image_upload": True} if port.widget.upload else {}
    socket: Any = port.socket
    if port.folder is not None:
        socket = list(folders.choices(port.folder))
    elif port.choices is not None:
        socket = list(port.choices)
    return (socket, {name: value for name, value in options.items() if value not in (None, "")})


def finished(result: Any, context: Context) -> tuple[Any, ...]:
    """Extracts the outputs from a node's result, without its data for editors. NotThere for an
    expansion to nodes other than a step region.
    """
    if isinstance(result, WithUi):
        result = result.result
    if not isinstance(result, Expansion):
        return tuple(result)
    graph, types = result.graph, installed().types
    sampled: dict[str, tuple[Any, ...]] = {}

    def value(output: Any) -> Any:
        if not isinstance(output, Link):
            return output
        call = graph.nodes[output.node]
        if not types[call.type].ends_region:
            refuse(f"a call of the node {call.type} inside another node")
        if output.node not in sampled:
            now = current()
            region = bind_region(
                graph, types, region_nodes(graph, output.node), {}, "" if now is None else now.node
            )
            sampled[output.node] = context.engine.sample(region, context)
        return sampled[output.node][output.output]

    return tuple(value(output) for output in result.outputs)
