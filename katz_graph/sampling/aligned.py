"""Holds published noise levels, by ComfyUI's names of the models. Never imports torch."""

from __future__ import annotations

ALIGNED_STEPS = {
    "SD1": (
        14.6146412,
        6.4745761,
        3.8636746,
        2.6946152,
        1.8841921,
        1.3943805,
        0.9642584,
        0.6523686,
        0.3977456,
        0.1515233,
        0.0291672,
    ),
    "SDXL": (
        14.6146412,
        6.3184485,
        3.7681790,
        2.1811481,
        1.3405245,
        0.8620721,
        0.5550693,
        0.3798541,
        0.2332364,
        0.1114188,
        0.0291672,
    ),
    "SVD": (700.0, 54.5, 15.886, 7.977, 4.248, 1.789, 0.981, 0.403, 0.173, 0.034, 0.002),
}
"""The ten-step schedules of Sabour et al. 2024, "Align Your Steps", table of optimised schedules:
the first two are the levels of timesteps (999, 850, 736, 645, 545, 455, 343, 233, 124, 24, 0
and 999, 845, 730, 587, 443, 310, 193, 116, 53, 13, 0).
"""
