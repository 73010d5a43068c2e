"""Turns prompts into what networks take. Must not know the denoising loop."""
