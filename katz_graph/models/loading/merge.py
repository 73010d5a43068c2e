"""Makes recipes of merged models, and checks from configurations that two models fit. The executor
computes the weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from katz_graph.core.errors import InputError
from katz_graph.core.recipe import ClipRecipe, Component, Lora, MergedComponent, ModelRecipe
from katz_graph.models.configuration import config
from katz_graph.models.family import architecture, family_of

if TYPE_CHECKING:
    from katz_graph.models.loading.shapes import Shapes

Scales = tuple[tuple[str, float, float], ...]
"""Lists (prefix of weight names, factor of the first, factor of the second); the last prefix is
empty.
"""

SHAPE_OF_TEXT = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "projection_dim",
    "vocab_size",
)


MAX_MERGED = 64  # models in one merge, repetitions included
MAX_NAMES = 3  # of weights, in a message


def merged_model(first: ModelRecipe, second: ModelRecipe, scales: Scales) -> ModelRecipe:
    """Returns the first model with merged weights; LoRAs are applied before the merge. Raises
    InputError if the networks have different shapes. The number of input channels may differ
    (inpainting): layers that read these are taken from the first.
    """
    one, other = architecture(first.network), architecture(second.network)
    if one != replace(other, input_channels=one.input_channels):
        raise InputError(
            f"{second.network.folder}: does not merge with {first.network.folder}: "
            f"the {family_of(first.network).network.noun}s have different shapes "
            f"({other} and {one})"
        )
    if one == other:
        _check_shapes(first.network, second.network)
    return replace(
        first,
        network=_merged((first.network, first.loras), (second.network, second.loras), scales),
        loras=(),
    )


def merged_clip(first: ClipRecipe, second: ClipRecipe, scales: Scales) -> ClipRecipe:
    """Returns the first encoders with merged weights. Raises InputError for different shapes."""
    if len(first.encoders) != len(second.encoders):
        raise InputError(
            f"{second.encoders[0].encoder.folder}: does not merge with "
            f"{first.encoders[0].encoder.folder}: "
            f"it has {len(second.encoders)} text encoders, the other {len(first.encoders)}"
        )
    encoders = []
    for one, other in zip(first.encoders, second.encoders, strict=True):
        for name in SHAPE_OF_TEXT:
            got, wanted = config(other.encoder).get(name), config(one.encoder).get(name)
            if got != wanted:
                raise InputError(
                    f"{other.encoder.folder}: does not merge with {one.encoder.folder}: its {name} "
                    f"is {got}, the other's {wanted}"
                )
        _check_shapes(one.encoder, other.encoder)
        merged = _merged((one.encoder, first.loras), (other.encoder, second.loras), scales)
        encoders.append(replace(one, encoder=merged))
    return replace(first, encoders=tuple(encoders), loras=())


def merge_notes(first: ModelRecipe | ClipRecipe, second: ModelRecipe | ClipRecipe) -> Iterator[str]:
    """Yields warnings about weights that one model lacks, and weights of different shapes. In both
    cases, the merged model has the first model's weights, and omits the second's.
    """
    for one, other in zip(_modules(first), _modules(second), strict=True):
        ours, theirs = _differing(one, other)
        reshaped = sorted(name for name in ours if theirs.get(name, ours[name]) != ours[name])
        if reshaped:
            yield (
                f"{other.folder}: has other input channels than {one.folder}, so that "
                f"{len(reshaped)} of its weights are left out of the merged model: "
                f"{_first(reshaped)}"
            )
        for names, counted, owner, lacks, what in (
            (ours.keys() - theirs.keys(), ours, one, other, "stay as they are"),
            (theirs.keys() - ours.keys(), theirs, other, one, "are left out"),
        ):
            if names:
                yield (
                    f"{lacks.folder}: lacks {len(names)} of the {len(counted)} weights of "
                    f"{owner.folder}, which {what} in the merged model: {_first(sorted(names))}"
                )


def _modules(model: ModelRecipe | ClipRecipe) -> list[Component]:
    if isinstance(model, ModelRecipe):
        return [model.network]
    return [one.encoder for one in model.encoders]


def _check_shapes(one: Component, other: Component) -> None:
    """Raises InputError if weights of the same name have different shapes."""
    ours, theirs = _differing(one, other)
    for name in ours:
        if name in theirs and ours[name] != theirs[name]:
            raise InputError(
                f"{other.folder}: does not merge with {one.folder}: its {name} has shape "
                f"{list(theirs[name])}, the other's {list(ours[name])}; merge models of one size"
            )


def _differing(one: Component, other: Component) -> tuple[Shapes, Shapes]:
    """Returns the shapes of two modules' weights; nothing if their configurations are equal."""
    if dict(config(one)) == dict(config(other)):
        return {}, {}
    from katz_graph.models.loading.shapes import parameter_shapes  # imports torch

    return parameter_shapes(one), parameter_shapes(other)


def _first(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return f"{', '.join(names[:MAX_NAMES])}{more}"


def _merged(
    first: tuple[Component, tuple[Lora, ...]],
    second: tuple[Component, tuple[Lora, ...]],
    scales: Scales,
) -> MergedComponent:
    part, _ = first
    merged = MergedComponent(
        part.folder,
        part.files,
        part.configuration,
        part.prefix,
        part.rounding,
        (first, second),
        scales,
    )
    if _parts(merged) > MAX_MERGED:
        raise InputError(f"{part.folder}: a merge of more than {MAX_MERGED} models; merge fewer")
    return merged


def _parts(part: Component) -> int:
    return (
        sum(_parts(source) for source, _ in part.sources)
        if isinstance(part, MergedComponent)
        else 1
    )
