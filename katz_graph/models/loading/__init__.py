"""Identifies and loads model files, within a memory budget. Must not know the computations of
stages.
"""
