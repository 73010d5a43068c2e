"""Draws, trains and judges the miniature world.

Must not know graphs, plans and the engine, nor families of models by name.
"""
