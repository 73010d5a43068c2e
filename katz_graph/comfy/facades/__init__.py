"""Presents models, conditionings and latents to packs through ComfyUI's interfaces. Must not know
the executor.
"""
