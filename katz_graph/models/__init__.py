"""Loads the modules of recipes, declares their stages, and keeps modules within a device's memory.

Must not know requests, workers or nodes.
"""
