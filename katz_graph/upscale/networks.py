"""Defines and loads the networks of ESRGAN (Wang et al. 2018) and Real-ESRGAN (Wang et al. 2021),
which map [B, 3, H, W] in 0..1 to [B, 3, H·s, W·s].
"""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor, nn

from katz_graph.core.errors import InputError
from katz_graph.core.recipe import Compact, Rrdb, UpscaleModelRecipe
from katz_graph.host.memory import is_out_of_memory
from katz_graph.models.costs.peaks import peak
from katz_graph.models.loading.identity import check_unchanged
from katz_graph.upscale.files import PICTURE

RESIDUAL = 0.2
SLOPE = 0.2


def load_upscaler(recipe: UpscaleModelRecipe, device: torch.device) -> nn.Module:
    """Loads the network in float32. Raises InputError if the file has changed since the recipe was
    made, or if its weights do not fit.
    """
    check_unchanged(recipe.file)
    path = recipe.file.path
    network = bare_network(recipe.shape)
    # memory-mapped: copied, so that writes to the file have no effect
    with safe_open(path, framework="pt", device=str(device)) as stored:
        weights = {
            name: stored.get_tensor(original).to(torch.float32, copy=True)
            for name, original in recipe.names
        }
    check_unchanged(recipe.file)
    try:
        network.load_state_dict(weights, assign=True)
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        reason = " ".join(line.strip() for line in str(error).splitlines()[1:3])
        raise InputError(
            f"{path}: its weights do not fit the detected {type(network).__name__}: {reason}"
        ) from None
    return network.eval().requires_grad_(False)


def size_of(recipe: UpscaleModelRecipe) -> int:
    """Returns the bytes of the weights in memory."""
    check_unchanged(recipe.file)
    return 4 * sum(weight.numel() for weight in bare_network(recipe.shape).parameters())


class DenseBlock(nn.Module):
    """Applies five convolutions, each on the concatenated outputs of all earlier ones."""

    def __init__(self, features: int, growth: int) -> None:
        super().__init__()
        for number in range(1, 6):
            self.add_module(
                f"conv{number}",
                _convolution(features + (number - 1) * growth, growth if number < 5 else features),
            )

    def forward(self, x: Tensor) -> Tensor:
        seen = x
        for number in range(1, 5):
            made: Tensor = self.get_submodule(f"conv{number}")(seen)
            seen = torch.cat([seen, F.leaky_relu(made, SLOPE)], dim=1)
        last: Tensor = self.get_submodule("conv5")(seen)
        return x + RESIDUAL * last


class ResidualInResidual(nn.Module):
    def __init__(self, features: int, growth: int) -> None:
        super().__init__()
        self.rdb1, self.rdb2, self.rdb3 = (DenseBlock(features, growth) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.rdb3(self.rdb2(self.rdb1(x)))
        return x + RESIDUAL * made


class RrdbNet(nn.Module):
    def __init__(self, shape: Rrdb) -> None:
        super().__init__()
        self.shape = shape
        self.conv_first = _convolution(PICTURE * shape.unshuffle**2, shape.features)
        self.body = nn.Sequential(
            *(ResidualInResidual(shape.features, shape.growth) for _ in range(shape.blocks))
        )
        self.conv_body = _convolution(shape.features, shape.features)
        for number in range(1, shape.doublings + 1):
            self.add_module(f"conv_up{number}", _convolution(shape.features, shape.features))
        self.conv_hr = _convolution(shape.features, shape.features)
        self.conv_last = _convolution(shape.features, PICTURE)

    def forward(self, x: Tensor) -> Tensor:
        high, wide = x.shape[-2:]
        factor = self.shape.unshuffle
        features = self.conv_first(F.pixel_unshuffle(_to_multiple(x, factor), factor))
        features = features + self.conv_body(self.body(features))
        for number in range(1, self.shape.doublings + 1):
            larger = F.interpolate(features, scale_factor=2, mode="nearest")
            features = F.leaky_relu(self.get_submodule(f"conv_up{number}")(larger), SLOPE)
        made: Tensor = self.conv_last(F.leaky_relu(self.conv_hr(features), SLOPE))
        return made[..., : high * self.shape.scale, : wide * self.shape.scale]


class CompactNet(nn.Module):
    def __init__(self, shape: Compact) -> None:
        super().__init__()
        self.shape = shape
        layers: list[nn.Module] = [_convolution(PICTURE, shape.features), nn.PReLU(shape.features)]
        for _ in range(shape.convolutions):
            layers += [_convolution(shape.features, shape.features), nn.PReLU(shape.features)]
        self.body = nn.Sequential(*layers, _convolution(shape.features, PICTURE * shape.scale**2))

    def forward(self, x: Tensor) -> Tensor:
        """Adds the network's output to the nearest-neighbour upscaled picture."""
        detail = F.pixel_shuffle(self.body(x), self.shape.scale)
        return detail + F.interpolate(x, scale_factor=self.shape.scale, mode="nearest")


def bare_network(shape: Rrdb | Compact) -> nn.Module:
    """Builds the network on the meta device."""
    with torch.device("meta"):
        return RrdbNet(shape) if isinstance(shape, Rrdb) else CompactNet(shape)


@lru_cache(maxsize=64)
def network_peak(shape: Rrdb | Compact, batch: int, height: int, width: int) -> float:
    """Returns the peak bytes to upscale pictures [batch, 3, height, width] in float32, without
    weights.
    """
    picture = torch.empty(batch, PICTURE, height, width, device="meta")
    network = bare_network(shape)
    return peak(lambda: network(picture))


def _convolution(given: int, made: int) -> nn.Conv2d:
    return nn.Conv2d(given, made, 3, 1, 1)


def _to_multiple(x: Tensor, factor: int) -> Tensor:
    """Pads right and bottom by replication to multiples of `factor`."""
    high, wide = x.shape[-2:]
    return (
        F.pad(x, (0, -wide % factor, 0, -high % factor), mode="replicate")
        if high % factor or wide % factor
        else x
    )
