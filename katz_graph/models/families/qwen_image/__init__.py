"""Qwen-Image 1.x: double blocks over picture and text tokens, which read pictures as references."""
