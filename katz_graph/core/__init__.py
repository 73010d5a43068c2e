"""Defines the vocabulary of the engine: graphs, recipes of models and prompts, patches, latent
spaces, devices, events, errors. Must not import anything of this package except `ir`.
"""
