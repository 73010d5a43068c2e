"""Generates text with a language model."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import Field

from katz_graph.core.errors import InputError
from katz_graph.core.events import Progress
from katz_graph.core.recipe import Picture, TextRequest, TokenSampling
from katz_graph.node import Node, ShownFor, Widget
from katz_graph.node.knobs import PromptText, Seed
from katz_graph.node.scope import current
from katz_graph.node.types import Context
from katz_graph.node.wires import Clip, Image, Socket

Audio = Annotated[Any, Socket("AUDIO")]
Linked = Annotated[str, Socket("STRING")]
Share = Annotated[
    float, Field(ge=0.0, le=1.0), Widget(step=0.01), ShownFor("sampling_mode", ("on",))
]
Penalty = Annotated[
    float, Field(ge=0.0, le=5.0), Widget(step=0.01), ShownFor("sampling_mode", ("on",))
]


class TextGenerate(
    Node, category="textgen", title="Generate Text", names=("generated_text", "thinking")
):
    """Generates text with a language model that a CLIP loader has loaded. `sampling_mode` off takes
    the most probable token each time. Reasoning at the start of the text goes to the second output.
    `mtp` has no effect: no model here predicts several tokens at once.
    """

    prompt: PromptText = ""
    max_length: Annotated[int, Field(ge=1, le=32768)] = 512
    sampling_mode: Literal["on", "off"] = "on"
    temperature: Annotated[
        float,
        Field(ge=0.01, le=2.0),
        Widget(step=0.01),
        ShownFor("sampling_mode", ("on",)),
    ] = 0.7
    top_k: Annotated[int, Field(ge=0, le=1000), ShownFor("sampling_mode", ("on",))] = 64
    top_p: Share = 0.95
    min_p: Share = 0.05
    repetition_penalty: Penalty = 1.05
    seed: Annotated[Seed, ShownFor("sampling_mode", ("on",))] = 0
    presence_penalty: Penalty = 0.0
    thinking: bool = False
    use_default_template: bool = True
    mtp: Literal[
        "auto", "off", "2", "3", "4", "5", "tree2s1", "tree2s2", "tree3s1", "tree4s1m8"
    ] = "auto"

    def run(
        self,
        clip: Clip,
        context: Context,
        image: Image | None = None,
        video: Image | None = None,
        audio: Audio | None = None,
        system_prompt: Linked | None = None,
    ) -> tuple[str, str]:
        from katz_graph.models.text.generation import asked, generator_of, parted, seen_in

        for name, given in (("video", video), ("audio", audio)):
            if given is not None:
                raise InputError(
                    f"TextGenerate: the language models here read no {name}: unlink it"
                )
        request = TextRequest(
            self.prompt,
            self.max_length,
            system_prompt or "",
            self.use_default_template,
            self.thinking,
            self._sampling(),
            () if image is None else (Picture.of(image[:1]),),
        )
        recipe = generator_of(clip)
        seen_in(clip, request)
        text = context.engine.generate_text(clip, request, context, self._progress(context))
        return parted(text, asked(recipe, request))

    def _sampling(self) -> TokenSampling | None:
        if self.sampling_mode == "off":
            return None
        return TokenSampling(
            self.seed,
            self.temperature,
            self.top_k,
            self.top_p,
            self.min_p,
            self.repetition_penalty,
            self.presence_penalty,
        )

    def _progress(self, context: Context) -> Callable[[int], None]:
        """Returns a function that reports the number of tokens, not too often."""
        now, reported = current(), 0.0

        def report(tokens: int) -> None:
            nonlocal reported
            moment = time.monotonic()
            if now is not None and moment - reported >= context.progress_interval:
                reported = moment
                context.report(Progress(now.node, tokens, self.max_length))

        return report
