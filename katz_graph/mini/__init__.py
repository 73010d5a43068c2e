"""Draws, trains and judges the miniature world.

Must not know of graphs, plans and the engine.
"""
