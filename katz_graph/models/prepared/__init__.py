"""Replaces blocks of diffusers and transformers by subclasses that compute with kernels. Each
module is imported when a model has one of its blocks. Must not know model families.
"""
