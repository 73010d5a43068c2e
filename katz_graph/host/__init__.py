"""Measures and limits the process and its machine: memory, garbage collection, time limits. Must
not know graphs or models.
"""
