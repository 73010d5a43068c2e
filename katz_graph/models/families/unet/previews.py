"""Latent-to-RGB matrices for previews of UNet latents. Never imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from katz_graph.core.latent_space import LatentSpace, LinearMap

# fmt: off
PREVIEWS: Mapping[LatentSpace, LinearMap] = MappingProxyType({
    # SD 1 and 2: from InvokeAI (Apache 2.0), app/util/step_callback.py, by torridgristle after
    # keturn and erucipe
    LatentSpace(4, 8, 0.18215): LinearMap((
        (0.3444, 0.1385, 0.0670), (0.1247, 0.4027, 0.1494), (-0.3192, 0.2513, 0.2103),
        (-0.1307, -0.1874, -0.7445),
    )),
    # SDXL: from the same file of InvokeAI, by StAlKeR7779
    LatentSpace(4, 8, 0.13025): LinearMap((
        (0.3816, 0.4930, 0.5320), (-0.3753, 0.1631, 0.1739), (0.1770, 0.3588, -0.2048),
        (-0.4350, -0.2644, -0.4289),
    )),
    # miniatures: fitted by `python -m katz_graph.mini.fit_preview`
    LatentSpace(4, 8, 0.64577): LinearMap((
        (-0.068, 0.033, 0.036), (0.027, -0.073, 0.255), (-0.088, -0.051, 0.056),
        (-0.042, -0.030, 0.166), (-0.300, 0.130, -0.024), (-0.040, 0.074, -0.170),
        (-0.091, -0.016, 0.077), (-0.042, -0.012, -0.088), (-0.022, 0.141, -0.056),
        (0.062, 0.008, -0.103), (-0.055, 0.098, -0.236), (0.076, 0.081, -0.103),
        (0.019, 0.056, -0.169), (0.175, -0.008, 0.129), (0.017, -0.021, 0.109),
        (0.076, 0.034, -0.085), (0.002, 0.020, 0.079), (0.026, -0.092, 0.013),
        (0.036, -0.005, 0.012), (0.005, 0.046, -0.042), (0.039, 0.023, 0.009),
        (0.025, 0.035, -0.027), (0.136, 0.022, 0.202), (0.006, -0.012, 0.140),
        (0.036, 0.016, -0.007), (0.023, 0.044, 0.150), (0.016, -0.046, 0.057),
        (0.024, -0.024, 0.033), (-0.037, 0.025, -0.074), (0.032, 0.013, 0.021),
        (0.003, 0.004, -0.057), (-0.036, -0.171, 0.057), (0.002, -0.048, 0.136),
        (0.040, 0.008, -0.036), (0.007, 0.001, 0.112), (0.006, -0.084, 0.041),
    ), (0.107, 0.083, 0.264)),
})
# fmt: on
"""Maps latent spaces to their colours."""
