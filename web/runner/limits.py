"""Limits the sizes of created values: checks literals before a run, and values before and after
each node call.

Sizes derived from inputs (scaled, stitched, loaded pictures) are known only at the call. Must not
know jobs.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from katz_graph.core.errors import InputError
from katz_graph.core.graph import Graph, Link
from katz_graph.models.vae.kinds import cell_side
from katz_graph.node import WithUi
from katz_graph.node.types import Context, NodeType
from katz_graph.packs import Registry
from katz_graph.web.options import Limits

MEGAPIXEL = 1024 * 1024
# larger size inputs are clamped to this value, so that their products can be computed
HUGE = 10**12
PICTURES = frozenset(("IMAGE", "MASK", "LATENT"))
# nodes whose output is never wider or higher than the input
CUTTING = frozenset(("ImageCrop", "CenterCropImages", "CropMask", "LatentCrop"))
# nodes whose output batch contains the batches of all inputs
JOINING = frozenset(
    ("ImageBatch", "LatentBatch", "BatchImagesNode", "BatchMasksNode", "BatchLatentsNode")
)
MULTIPLYING = ("amount", "batch_size")
# input in pixels -> the side of the source picture that it sets
SIDES = {"largest_size": max, "longer_size": max, "shorter_size": min}
Size = tuple[int, int, int]  # batch, height and width in pixels


def limit_problems(
    limits: Limits, graph: Graph, types: Mapping[str, NodeType]
) -> Iterator[tuple[str, str, str]]:
    """Yields literals over a limit, including those of linked primitive nodes, as (node, input,
    message).
    """
    for node, call in graph.nodes.items():
        kind = types.get(call.type)
        if kind is not None:
            values = {
                name: _primitive(value, graph, types) if isinstance(value, Link) else value
                for name, value in call.inputs.items()
            }
            yield from ((node, name, message) for name, message in _asked(kind, values, limits))


def limited(registry: Registry, limits: Limits) -> Registry:
    """Wraps the node types so that they raise InputError instead of exceeding a limit."""
    return replace(
        registry,
        types={name: replace(kind, run=_guarded(kind, limits)) for name, kind in registry.items()},
    )


def _guarded(kind: NodeType, limits: Limits) -> Any:
    before, after = partial(_refuse_asked, kind, limits), partial(_refuse_made, kind, limits)
    call: Callable[[Context, Mapping[str, Any]], Any] = kind.run

    async def run_async(context: Context, values: Mapping[str, Any]) -> Any:
        before(values)
        return after(await call(context, values))

    def run(context: Context, values: Mapping[str, Any]) -> Any:
        before(values)
        return after(call(context, values))

    return run_async if inspect.iscoroutinefunction(kind.run) else run


def _refuse_asked(kind: NodeType, limits: Limits, values: Mapping[str, Any]) -> None:
    problem = None if kind.takes_lists else next(_asked(kind, values, limits), None)
    if problem is not None:
        raise InputError(f"{problem[0]}: {problem[1]}")


def _refuse_made(kind: NodeType, limits: Limits, result: Any) -> Any:
    given = result.result if isinstance(result, WithUi) else result
    for output, value in zip(kind.outputs, given if isinstance(given, tuple) else (), strict=False):
        for one in value if isinstance(value, list) else [value]:
            if message := _over(output.socket, one, limits):
                raise InputError(f"{output.name} {message}")
    return result


def _asked(kind: NodeType, values: Mapping[str, Any], limits: Limits) -> Iterator[tuple[str, str]]:
    """Yields a node's inputs that exceed a limit, as (input, message)."""
    names, kind, values = _shown(kind, values)
    yield from (
        (names.get(name, name), message) for name, message in _problems(kind, values, limits)
    )


def _shown(
    kind: NodeType, values: Mapping[str, Any]
) -> tuple[Mapping[str, str], NodeType, Mapping[str, Any]]:
    """Drops the inputs of options that are not selected, and shortens the names of the others. Also
    maps the short names to the names in the graph.
    """
    if all(port.shown_for is None for port in kind.inputs.values()):
        return {}, kind, values
    names, inputs, shown = {}, {}, {}
    for name, port in kind.inputs.items():
        belongs = port.shown_for
        chosen = belongs and values.get(belongs.knob, kind.inputs[belongs.knob].default)
        if belongs is None or chosen in belongs.choices:
            names[port.own_name], inputs[port.own_name] = name, port
            if name in values:
                shown[port.own_name] = values[name]
    return names, replace(kind, inputs=inputs), shown


def _problems(
    kind: NodeType, values: Mapping[str, Any], limits: Limits
) -> Iterator[tuple[str, str]]:
    steps = _number(kind, values, "steps")
    if steps is not None and steps >= HUGE:
        yield "steps", "is too large"
    elif steps is not None and steps > limits.steps:
        yield "steps", f"is {steps:,}, more than this server's limit of {limits.steps:,} (steps)"
    for name, port in kind.inputs.items():
        if port.socket == "SIGMAS" and (message := _over("SIGMAS", values.get(name), limits)):
            yield name, message
    for name, text in _encoded_texts(kind, values):
        if message := _too_long(text, limits.prompt_text, "prompt_text"):
            yield name, message
    if kind.name not in CUTTING and any(
        PICTURES.intersection(output.socket.split(",")) for output in kind.outputs
    ):
        name, size = _made(kind, values)
        if name and (message := _too_large(size, limits)):
            yield name, message


def _encoded_texts(kind: NodeType, values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields the texts that a node encodes: the string inputs of a node that has a text encoder."""
    if any(port.socket == "CLIP" for port in kind.inputs.values()):
        for name, port in kind.inputs.items():
            if port.socket == "STRING" and isinstance(text := values.get(name), str):
                yield name, text


def _made(kind: NodeType, values: Mapping[str, Any]) -> tuple[str, Size]:
    """Returns the input that determines a created picture's size, and the size as far as it is
    known.
    """
    found = ((name, _size(port.socket, values.get(name))) for name, port in kind.inputs.items())
    sizes = [(name, size) for name, size in found if size is not None]
    batch, height, width = read = sizes[0][1] if sizes else (1, 1, 1)
    decides = ""
    if kind.name in JOINING and sizes:
        decides, batch = sizes[-1][0], sum(size[0] for _, size in sizes)
    wide, high = (_number(kind, values, side) for side in ("width", "height"))
    if wide is not None and wide:
        decides = "width"
        width, height = int(wide), int(high or round(height * wide / width))
    elif high is not None and high:
        decides = "height"
        width, height = round(width * high / height), int(high)
    # in other nodes, `multiplier` may scale something else
    scale = "multiplier" if kind.name == "ResizeImageMaskNode" else "scale_by"
    if (factor := _number(kind, values, scale)) is not None:
        decides, width, height = scale, round(width * factor), round(height * factor)
    if (area := _number(kind, values, "megapixels")) is not None:
        decides, width, height = "megapixels", int(area * MEGAPIXEL), 1
    for name, side_of in SIDES.items():
        if wanted := _number(kind, values, name):
            factor = wanted / max(1, side_of(read[1:]))
            decides, width, height = name, round(width * factor), round(height * factor)
    if kind.name == "ImagePadForOutpaint":
        left, top, right, bottom = (
            _number(kind, values, side) or 0 for side in ("left", "top", "right", "bottom")
        )
        decides, width, height = "right", int(width + left + right), int(height + top + bottom)
    if kind.name == "ImageUpscaleWithModel" and not isinstance(
        model := values.get("upscale_model"), Link | None
    ):
        decides = "upscale_model"
        width = width * model.shape.scale
        height = height * model.shape.scale
    for name in MULTIPLYING if not kind.takes_lists else ():
        if (several := _number(kind, values, name)) is not None:
            decides, batch = name if several > 1 or not decides else decides, int(batch * several)
    return decides, (batch, height, width)


def _too_long(text: str, limit: int, name: str) -> str:
    if len(text) <= limit:
        return ""
    return f"has {len(text):,} characters, more than this server's limit of {limit:,} ({name})"


def _over(socket: str, value: Any, limits: Limits) -> str:
    """Describes how a value exceeds a limit; empty if it does not."""
    if socket == "STRING" and isinstance(value, str):
        return _too_long(value, limits.text, "text")
    if socket == "SIGMAS" and (shape := _shape(value)) and shape[0] - 1 > limits.steps:
        return (
            f"has {shape[0] - 1:,} steps, more than this server's limit of {limits.steps:,} (steps)"
        )
    size = _size(socket, value)
    return _too_large(size, limits) if size is not None else ""


def _too_large(size: Size, limits: Limits) -> str:
    batch, height, width = size
    if max(size) >= HUGE:
        return "is too large"
    if height * width > limits.pixels:
        return (
            f"gives {width:,} x {height:,} pixels, more than this server's limit of "
            f"{limits.pixels:,} in a picture (pixels)"
        )
    if batch > limits.batch:
        return (
            f"gives a batch of {batch:,}, more than this server's limit of {limits.batch:,} (batch)"
        )
    if batch * height * width > limits.batch_pixels:
        several = f"{batch:,} times {width:,} x {height:,} pixels"
        return (
            f"gives {several}, more than this server's limit of {limits.batch_pixels:,} in a "
            "batch (batch_pixels)"
        )
    return ""


def _size(socket: str, value: Any) -> Size | None:
    """Returns the size of a picture, mask or latent; None for other values."""
    names = socket.split(",")
    if (
        "LATENT" in names
        and isinstance(value, Mapping)
        and len(shape := _shape(value.get("samples"))) >= 4
    ):
        cell = cell_side(shape[1])
        return shape[0], shape[-2] * cell, shape[-1] * cell
    shape = _shape(value) if PICTURES.intersection(names) else ()
    return (shape[0], shape[1], shape[2]) if len(shape) in (3, 4) else None


def _shape(value: Any) -> tuple[int, ...]:
    shape = getattr(value, "shape", ())
    return tuple(shape) if isinstance(shape, tuple) else ()


def _number(kind: NodeType, values: Mapping[str, Any], name: str) -> float | None:
    """Returns a numeric input's value or default; None if it is linked, missing or not a finite
    number.
    """
    port = kind.inputs.get(name)
    if port is None or port.socket not in ("INT", "FLOAT"):
        return None
    value = values.get(name, port.default)
    if (
        not isinstance(value, (int, float))
        or isinstance(value, bool)
        or (isinstance(value, float) and not math.isfinite(value))
    ):
        return None
    return max(-HUGE, min(value, HUGE))


def _primitive(link: Link, graph: Graph, types: Mapping[str, NodeType]) -> Any:
    """Returns the value of a linked primitive node; the link itself for other nodes."""
    source = graph.nodes.get(link.node)
    kind = types.get(source.type) if source is not None else None
    return (
        source.inputs.get("value", link)
        if source is not None and kind is not None and kind.inputs.keys() == {"value"}
        else link
    )
