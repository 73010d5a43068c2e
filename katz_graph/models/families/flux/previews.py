"""Latent-to-RGB matrices for previews of FLUX.1 latents. Never imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from katz_graph.core.latent_space import LinearMap

# fmt: off
PREVIEWS: Mapping[tuple[int, float], LinearMap] = MappingProxyType({
    # FLUX.1 and Z-Image (same VAE): from InvokeAI (Apache 2.0), app/util/step_callback.py
    (16, 0.3611): LinearMap((
        (-0.0412, 0.0149, 0.0521), (0.0056, 0.0291, 0.0768), (0.0342, -0.0681, -0.0427),
        (-0.0258, 0.0092, 0.0463), (0.0863, 0.0784, 0.0547), (-0.0017, 0.0402, 0.0158),
        (0.0501, 0.1058, 0.1152), (-0.0209, -0.0218, -0.0329), (-0.0314, 0.0083, 0.0896),
        (0.0851, 0.0665, -0.0472), (-0.0534, 0.0238, -0.0024), (0.0452, -0.0026, 0.0048),
        (0.0892, 0.0831, 0.0881), (-0.1117, -0.0304, -0.0789), (0.0027, -0.0479, -0.0043),
        (-0.1146, -0.0827, -0.0598),
    )),
})
# fmt: on
"""Maps (channels, scaling factor) of latents to a latent-to-RGB map."""
