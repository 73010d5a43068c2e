"""Implements the family of UNets: Stable Diffusion 1, 2 and XL, with their ControlNets."""
