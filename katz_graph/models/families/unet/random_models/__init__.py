"""Makes small pipelines of this family with random weights: for benches and tests of numbers."""

from katz_graph.models.families.unet.random_models.kinds import KINDS

__all__ = ["KINDS"]
