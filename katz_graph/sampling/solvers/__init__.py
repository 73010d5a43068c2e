"""Solvers of the diffusion equation, each in the loop form of its paper. They know nothing about
models, devices or nodes.
"""
