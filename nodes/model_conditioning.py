"""Conditions models on distilled guidance, latents to edit, and a separate text for each text
encoder.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field

from katz_graph.core.errors import InputError
from katz_graph.core.recipe import (
    ClipRecipe,
    ConditioningEntry,
    Picture,
    Prompt,
    References,
    Zeroed,
)
from katz_graph.models.loading.identity import content_hash
from katz_graph.models.text.kinds import kind_of
from katz_graph.models.text.textual_inversion import identities, with_learned_words
from katz_graph.node import FileChoice, Node, Widget
from katz_graph.node.knobs import PromptText
from katz_graph.node.types import Context
from katz_graph.node.wires import Clip, Conditioning, Image, Latent
from katz_graph.nodes.conditioning import mapped

GuidanceScale = Annotated[float, Field(ge=0.0, le=100.0), Widget(step=0.1)]
MAX_REFERENCES = 16
EDITED = (  # width and height of the pictures that editing models were trained on
    (672, 1568), (688, 1504), (720, 1456), (752, 1392), (800, 1328), (832, 1248), (880, 1184),
    (944, 1104), (1024, 1024), (1104, 944), (1184, 880), (1248, 832), (1328, 800), (1392, 752),
    (1456, 720), (1504, 688), (1568, 672),
)  # fmt: skip


class ConditioningLoader(Node, category="advanced/conditioning", title="Load Conditioning"):
    """Loads a conditioning from a safetensors file: the tensor `conditioning`, and options such as
    reference latents.
    """

    conditioning_name: Annotated[str, FileChoice("embeddings")]

    def fingerprint(self, context: Context) -> Any:
        return content_hash(context.folders.resolve("embeddings", self.conditioning_name))

    def run(self, context: Context) -> Conditioning:
        from katz_graph.models.text.options import read_conditioning

        path = context.folders.resolve("embeddings", self.conditioning_name)
        entry, unknown = read_conditioning(path)
        if unknown:
            context.warn(f"{path.name}: options without effect: {', '.join(unknown)}")
        return (entry,)


class FluxGuidance(Node, category="advanced/conditioning/flux"):
    """Sets the guidance input of a distilled model, which is not the sampler's cfg."""

    guidance: GuidanceScale = 3.5

    def run(self, conditioning: Conditioning) -> Conditioning:
        return mapped(conditioning, lambda entry: replace(entry, guidance=self.guidance))


class FluxDisableGuidance(Node, category="advanced/conditioning/flux"):
    """Removes the guidance input of a distilled model."""

    def run(self, conditioning: Conditioning) -> Conditioning:
        return mapped(conditioning, lambda entry: replace(entry, guidance="off"))


class CLIPTextEncodeFlux(Node, category="advanced/conditioning/flux"):
    """Encodes a prompt for CLIP and one for T5, and sets the model's guidance input."""

    clip_l: PromptText
    t5xxl: PromptText
    guidance: GuidanceScale = 3.5

    def fingerprint(self, context: Context) -> Any:
        return identities((self.clip_l, self.t5xxl), context.folders)

    def run(self, clip: Clip, context: Context) -> Conditioning:
        texts = self.clip_l, self.t5xxl
        _check_encoders(self, clip, ("clip", "t5"))
        prompt = Prompt(
            with_learned_words(clip, texts, context.folders, context.warn), texts[0], texts[1:]
        )
        return (ConditioningEntry(prompt, guidance=self.guidance),)


class CLIPTextEncodeSD3(Node, category="advanced/conditioning"):
    """Encodes a prompt for each of CLIP-L, bigG and T5. For an empty text, `none` leaves the
    encoder out and `empty_prompt` encodes the empty text.
    """

    clip_l: PromptText
    clip_g: PromptText
    t5xxl: PromptText
    empty_padding: Literal["none", "empty_prompt"] = "none"

    def fingerprint(self, context: Context) -> Any:
        return identities((self.clip_l, self.clip_g, self.t5xxl), context.folders)

    def run(self, clip: Clip, context: Context) -> Conditioning:
        texts = (self.clip_l, self.clip_g, self.t5xxl)[: len(clip.encoders)]
        _check_encoders(self, clip, ("clip", "clip", "t5")[: len(texts)])
        absent = [
            number for number, text in enumerate(texts) if not text and self.empty_padding == "none"
        ]
        learned = with_learned_words(clip, texts, context.folders, context.warn)
        prompt = Prompt(learned, texts[0], texts[1:], tuple(absent))
        if len(absent) == len(texts):  # no text: zeros in the shape of CLIP's rows
            return (ConditioningEntry(Zeroed(replace(prompt, absent=tuple(absent[2:])))),)
        return (ConditioningEntry(prompt),)


class CLIPTextEncodeHunyuanDiT(Node, category="advanced/conditioning"):
    """Encodes a prompt for BERT and one for mT5."""

    bert: PromptText
    mt5xl: PromptText

    def run(self, clip: Clip) -> Conditioning:
        _check_encoders(self, clip, ("bert", "mt5"), ("bert", "t5"))  # as in diffusers' folders
        return (ConditioningEntry(Prompt(clip, self.bert, (self.mt5xl,))),)


class ReferenceLatent(Node, category="advanced/conditioning/edit_models"):
    """Adds a reference latent for an editing model. Several are read in the order of the nodes."""

    def run(self, conditioning: Conditioning, latent: Latent | None = None) -> Conditioning:
        if latent is None:
            return conditioning
        picture = Picture.of(latent["samples"])

        def with_reference(entry: ConditioningEntry) -> ConditioningEntry:
            known = entry.references or References(())
            if len(known.latents) >= MAX_REFERENCES:
                raise InputError(
                    f"ReferenceLatent: the conditioning has {MAX_REFERENCES} references already; "
                    "use fewer"
                )
            return replace(entry, references=replace(known, latents=(*known.latents, picture)))

        return mapped(conditioning, with_reference)


class FluxKontextMultiReferenceLatentMethod(
    Node, category="advanced/conditioning/flux", title="Edit Model Reference Method"
):
    """Sets the position of references next to the picture, for models that read them as tokens."""

    reference_latents_method: Literal["offset", "index", "uxo/uno", "index_timestep_zero"] = (
        "offset"
    )

    def run(self, conditioning: Conditioning) -> Conditioning:
        placing: Any = self.reference_latents_method.partition("/")[0]
        return mapped(
            conditioning,
            lambda entry: replace(
                entry, references=replace(entry.references or References(()), placing=placing)
            ),
        )


class FluxKontextImageScale(Node, category="advanced/conditioning/flux"):
    """Scales a picture to the nearest size that editing models were trained on."""

    def run(self, image: Image) -> Image:
        from katz_graph.files.images import resize

        height, width = image.shape[1:3]
        wide, high = min(EDITED, key=lambda size: (abs(width / height - size[0] / size[1]), size))
        return resize(image, wide, high, "lanczos", "center")


def _check_encoders(node: Node, clip: ClipRecipe, *wanted: tuple[str, ...]) -> None:
    """Raises InputError if the CLIP's text encoders match none of the sets in `wanted`."""
    kinds = tuple(kind_of(one.encoder).name for one in clip.encoders)
    if kinds not in wanted:
        raise InputError(
            f"{type(node).__name__}: the CLIP has the text encoders {', '.join(kinds)}, expected "
            f"{', '.join(wanted[0])}"
        )
