"""Maps residuals of Z-Image ControlNets to blocks, checks that a ControlNet fits, and reads its
files. Never imports torch.
"""

from __future__ import annotations

from katz_graph.core.errors import InputError
from katz_graph.core.recipe import Component, ControlNetRecipe, ModelRecipe
from katz_graph.models.configuration import config, config_value
from katz_graph.models.families.z_image.architecture import CONTROLNET, THETA
from katz_graph.models.family import Configuration
from katz_graph.models.loading.configurations import Shapes, head_count, how_many, rotary_axes

EVERY = 5  # published ControlNets act on every fifth block, starting with the first


def places(part: Component) -> list[int]:
    """Returns the model's blocks that residuals follow, in order."""
    found: list[int] = config_value(part, "control_layers_places", list)
    return found


def blocks(part: Component) -> int:
    return len(places(part))


def reads(control: ControlNetRecipe, model: ModelRecipe) -> tuple[int | None, ...]:
    """Maps blocks to residuals: each residual is added after its block in `places`."""
    found = places(control.control_net)
    count = config_value(model.network, "n_layers", int, 30)
    return None, *(found.index(one) if one in found else None for one in range(count))


def check_controlnet(control: ControlNetRecipe, model: ModelRecipe) -> None:
    """Raises InputError if a ControlNet's sizes differ from the transformer's, or if the
    transformer's positions differ from the published ones, which all ControlNets use.
    """
    part, network = control.control_net, model.network
    for name, key, default in (("width", "dim", 3840), ("number of heads", "n_heads", 30)):
        got, wanted = (config_value(one, key, int, default) for one in (part, network))
        if got != wanted:
            raise InputError(
                f"{part.folder}: the ControlNet does not fit the transformer: its {name} is {got}, "
                f"the transformer in {network.folder} has {wanted}"
            )
    count = config_value(network, "n_layers", int, 30)
    beyond = [one for one in places(part) if one >= count]
    if beyond:
        raise InputError(
            f"{part.folder}: the ControlNet acts after block {beyond[-1]}, the transformer in "
            f"{network.folder} has 0 to {count - 1}"
        )
    values, head = config(network), got_head(network)
    axes, theta = values.get("axes_dims", rotary_axes(head, 4)), values.get("rope_theta", THETA)
    if list(axes) != rotary_axes(head, 4) or theta != THETA:
        raise InputError(
            f"{network.folder}: the positions of the transformer have the axes {list(axes)} and "
            f"theta {theta:g}, a ControlNet takes {rotary_axes(head, 4)} and {THETA:g}"
        )


def got_head(network: Component) -> int:
    """Returns the width of an attention head."""
    width: int = config_value(network, "dim", int, 3840)
    return width // int(config_value(network, "n_heads", int, 30))


def controlnet_configuration(shapes: Shapes, _: str) -> Configuration:
    """Derives the configuration of a ControlNet. Raises KeyError with the name of a missing tensor,
    InputError for later versions.
    """
    width, inputs = shapes["control_all_x_embedder.2-1.weight"]
    (head,) = shapes["control_layers.0.attention.norm_q.weight"]
    if "control_noise_refiner.0.after_proj.weight" in shapes or inputs != 64:
        raise InputError(
            "a control patch for Z-Image of version 2, which is not supported, as it reads a mask "
            "and acts on the refiners: use version 1"
        )
    return {
        "_class_name": CONTROLNET,
        "control_layers_places": [
            EVERY * number for number in range(how_many(shapes, "control_layers.{}."))
        ],
        "control_in_dim": inputs // 4,
        "add_control_noise_refiner": None,
        "dim": width,
        "n_refiner_layers": how_many(shapes, "control_noise_refiner.{}."),
        "n_heads": head_count(width, head),
        "n_kv_heads": head_count(width, head),
    }
