"""Solves the diffusion equation, each solver in the loop form of its paper. Must not know models,
devices or nodes.
"""
