"""Builds small UNet pipelines with random weights for benches and numerical tests."""

from katz_graph.models.families.unet.random_models.kinds import KINDS

__all__ = ["KINDS"]
