"""Applies ControlNets to conditionings."""

from __future__ import annotations

from katz_graph.knobs import Fraction, Strength
from katz_graph.node import Node
from katz_graph.nodes.conditioning import mapped
from katz_graph.recipe import ControlUse, Picture
from katz_graph.wires import Conditioning, ControlNet, Image, Vae


class ControlNetApplyAdvanced(Node, category="conditioning/controlnet", title="Apply ControlNet", names=("positive", "negative")):
    """A ControlNet on both conditionings: reference image, strength, and the window of the schedule
    in which it acts.
    """

    strength: Strength = 1.0
    start_percent: Fraction = 0.0
    end_percent: Fraction = 1.0

    def run(
        self, positive: Conditioning, negative: Conditioning, control_net: ControlNet, image: Image, vae: Vae | None = None
    ) -> tuple[Conditioning, Conditioning]:
        if not self.strength:
            return positive, negative
        use = ControlUse(control_net, Picture.of(image), self.strength, self.start_percent, self.end_percent)
        return mapped(positive, lambda entry: entry.with_control(use)), mapped(negative, lambda entry: entry.with_control(use))


class ControlNetApply(Node, category="conditioning/controlnet", title="Apply ControlNet (old)"):
    """A ControlNet on one conditioning; it acts on the negative side too, unless that has a
    ControlNet of its own.
    """

    strength: Strength = 1.0

    def run(self, conditioning: Conditioning, control_net: ControlNet, image: Image) -> Conditioning:
        if not self.strength:
            return conditioning
        use = ControlUse(control_net, Picture.of(image), self.strength, spreads=True)
        return mapped(conditioning, lambda entry: entry.with_control(use))
