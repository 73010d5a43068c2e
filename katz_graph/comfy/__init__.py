"""Runs nodes and packs written for ComfyUI, and provides the modules that their code imports. Must
not know the executor.
"""
