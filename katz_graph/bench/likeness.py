"""Measures how alike two pictures are: PSNR and SSIM. Must not know where they come from."""

from __future__ import annotations

import math

import numpy
from scipy.ndimage import gaussian_filter
from torch import Tensor

DEVIATION, RADIUS = 1.5, 5  # of SSIM's Gaussian window of 11 × 11 pixels
LUMINANCE, CONTRAST = 0.01**2, 0.03**2  # SSIM's constants for values in 0..1


def psnr(one: Tensor, other: Tensor) -> float:
    """Computes the peak signal-to-noise ratio of two pictures [H, W, C] in 0..1, in decibels;
    infinite for equal pictures.
    """
    error = float((one.double() - other.double()).square().mean())
    return -10 * math.log10(error) if error else math.inf


def ssim(one: Tensor, other: Tensor) -> float:
    """Computes the structural similarity of two pictures [H, W, C] in 0..1: the mean over channels
    and over windows inside the picture (Wang et al. 2004).
    """
    a, b = (picture.double().cpu().numpy() for picture in (one, other))

    def windowed(
        values: numpy.typing.NDArray[numpy.float64],
    ) -> numpy.typing.NDArray[numpy.float64]:
        blurred = gaussian_filter(values, DEVIATION, axes=(0, 1), radius=RADIUS)
        return numpy.asarray(blurred[RADIUS:-RADIUS, RADIUS:-RADIUS])

    mean_a, mean_b = windowed(a), windowed(b)
    variance_a, variance_b = windowed(a * a) - mean_a**2, windowed(b * b) - mean_b**2
    covariance = windowed(a * b) - mean_a * mean_b
    alike = (2 * mean_a * mean_b + LUMINANCE) / (mean_a**2 + mean_b**2 + LUMINANCE)
    alike *= (2 * covariance + CONTRAST) / (variance_a + variance_b + CONTRAST)
    return float(alike.mean())
