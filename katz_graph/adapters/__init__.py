"""Reads LoRA files: tensor names, and the changes to a module's weights.

Must not know which modules are loaded.
"""
