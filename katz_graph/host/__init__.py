"""Measures and limits the process and its machine: memory, garbage, time limits. Must not know
graphs and models.
"""
