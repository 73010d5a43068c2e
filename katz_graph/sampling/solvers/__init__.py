"""Solves the diffusion equation with solvers in their papers' form. Must not know models, devices
or nodes.
"""
