"""Runs nodes and packs written for ComfyUI, and provides the modules that they import. Must not
know the executor.
"""
