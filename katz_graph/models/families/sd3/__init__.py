"""Stable Diffusion 3 and 3.5: joint blocks over a picture's tokens and a text's."""
