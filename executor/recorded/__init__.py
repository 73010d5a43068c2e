"""Records stage calls and replays them, as CUDA graphs do. Must not know requests, plans, or how
models are loaded.
"""
