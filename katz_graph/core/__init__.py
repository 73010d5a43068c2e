"""Defines what every part of the engine may name: graphs, recipes of models and prompts, patches,
latent spaces, devices, events, errors. Must not import anything of this package but `ir`.
"""
