"""Shows models, conditionings and latents to packs as ComfyUI does. Must not know the executor."""
