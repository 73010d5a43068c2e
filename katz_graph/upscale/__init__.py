"""Recognises and loads upscalers, and defines their networks.

Must not know of nodes and devices.
"""
