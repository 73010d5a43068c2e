"""Prompts, and what acts on them."""

from __future__ import annotations

from typing import Annotated

from katz_graph.knobs import Fraction, Strength
from katz_graph.node import Node, Widget
from katz_graph.recipe import ConditioningEntry, ControlUse, Picture
from katz_graph.wires import Clip, Conditioning, ControlNet, Image


class CLIPTextEncode(Node, category="conditioning", title="CLIP Text Encode (Prompt)"):
    """A prompt. `(word:1.2)` weighs, `\\(` escapes; long prompts are encoded in chunks of 75 tokens."""

    text: Annotated[str, Widget(multiline=True)]

    def run(self, clip: Clip) -> Conditioning:
        return (ConditioningEntry(clip, self.text),)


class ControlNetApplyAdvanced(Node, category="conditioning/controlnet", title="Apply ControlNet", names=("positive", "negative")):
    """A ControlNet on both conditionings: reference image, strength, and the window of the schedule in which it acts."""

    strength: Strength = 1.0
    start_percent: Fraction = 0.0
    end_percent: Fraction = 1.0

    def run(
        self, positive: Conditioning, negative: Conditioning, control_net: ControlNet, image: Image
    ) -> tuple[Conditioning, Conditioning]:
        if not self.strength:
            return positive, negative
        use = ControlUse(control_net, Picture.of(image), self.strength, self.start_percent, self.end_percent)
        controlled = (tuple(entry.with_control(use) for entry in side) for side in (positive, negative))
        return next(controlled), next(controlled)
