"""Holds the modules that packs import, under ComfyUI's names. Only the import finder loads them."""
