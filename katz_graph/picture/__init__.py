"""Implements picture, mask and latent nodes on plain tensors.

Must not know nodes, models or files.
"""
