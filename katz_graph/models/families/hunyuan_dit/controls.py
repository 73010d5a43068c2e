"""Maps residuals of HunyuanDiT ControlNets to blocks and checks that a ControlNet fits. Never
imports torch.
"""

from __future__ import annotations

from katz_graph.core.errors import InputError
from katz_graph.core.recipe import Component, ControlNetRecipe, ModelRecipe
from katz_graph.models.configuration import config, config_value
from katz_graph.models.families.hunyuan_dit.architecture import transformer_architecture
from katz_graph.models.families.shared.controls import check_sizes

SIZE_CONDITION = "use_style_cond_and_image_meta_size"


def blocks(control: Component) -> int:
    """Counts the blocks of a ControlNet: one per transformer block that produces a skip."""
    count: int = config_value(control, "transformer_num_layers", int, 40)
    return count // 2 - 1


def reads(control: ControlNetRecipe, model: ModelRecipe) -> tuple[int | None, ...]:
    """Maps blocks to residuals. A block of the second half adds the residual of the block that
    produces its skip, so the last residual is needed first.
    """
    count, given = config_value(model.network, "num_layers", int), blocks(control.control_net)
    first = count - given
    return *(None for _ in range(first)), *reversed(range(given)), None


def check_controlnet(control: ControlNetRecipe, model: ModelRecipe) -> None:
    """Raises InputError if a ControlNet differs from the transformer in sizes or version."""
    part, network = control.control_net, model.network
    check_sizes(part, network, transformer_architecture)
    wanted = config_value(network, "num_layers", int) // 2 - 1
    if blocks(part) != wanted:
        raise InputError(
            f"{part.folder}: the ControlNet has {blocks(part)} blocks, the transformer in "
            f"{network.folder} takes {wanted}"
        )
    ours, theirs = (bool(config(one).get(SIZE_CONDITION, True)) for one in (part, network))
    if ours != theirs:
        reads = "reads" if ours else "does not read"
        raise InputError(
            f"{part.folder}: the ControlNet {reads} the picture's sizes, the transformer in "
            f"{network.folder} {'does not' if ours else 'does'}: use one for its version"
        )
