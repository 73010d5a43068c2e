"""Stable Diffusion 3 and 3.5: joint blocks over picture tokens and text tokens."""
