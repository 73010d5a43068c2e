"""Upscalers: what a file of weights says that it is, and the networks.

Must not know of nodes and devices.
"""
