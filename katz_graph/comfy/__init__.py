"""Nodes and packs written for other conventions, and what their code expects to import. Knows
nothing of the executor.
"""
