"""Encodes prompts for networks. Must not know the denoising loop."""
