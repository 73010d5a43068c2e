"""Computes what picture, mask and latent nodes do, on plain tensors.

Must not know of nodes, models and files.
"""
