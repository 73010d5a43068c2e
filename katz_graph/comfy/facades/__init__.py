"""Shows models, conditionings and latents as ComfyUI's packs know them. Must not know the executor."""
