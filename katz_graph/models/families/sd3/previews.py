"""Latent-to-RGB matrices for previews of Stable Diffusion 3 latents. Never imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from katz_graph.core.latent_space import LinearMap

# fmt: off
PREVIEWS: Mapping[tuple[int, float], LinearMap] = MappingProxyType({
    # SD3 and SD3.5: from InvokeAI (Apache 2.0), app/util/step_callback.py
    (16, 1.5305): LinearMap((
        (-0.0524, 0.0325, 0.0749), (-0.0581, 0.0076, 0.0573), (0.1614, 0.0127, -0.0377),
        (0.1442, 0.0846, 0.1594), (0.0489, 0.0056, -0.0669), (0.0519, 0.1922, 0.0626),
        (0.1539, 0.0482, 0.0710), (-0.0860, 0.0901, 0.1089), (-0.1240, -0.0677, 0.0034),
        (-0.0440, 0.0783, 0.0226), (0.0310, 0.0638, 0.0775), (-0.0132, 0.0855, -0.0877),
        (0.0646, 0.0591, 0.1326), (-0.0786, -0.0226, -0.1276), (-0.0992, -0.0801, -0.0626),
        (-0.0339, -0.0804, -0.0608),
    )),
})
# fmt: on
"""Maps (channels, scaling factor) of latents to a latent-to-RGB map."""
