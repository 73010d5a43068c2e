"""Draws, trains and judges the miniature world.

Must not know graphs, plans or the engine, nor model families by name.
"""
