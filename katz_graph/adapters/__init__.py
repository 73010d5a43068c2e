"""Reads LoRA files: their names, and what they add to the weights of a module.

Must not know which module is live.
"""
