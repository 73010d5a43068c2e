"""Records calls of stages and replays them, as a CUDA graph does. Must not know requests, plans, or
how models are loaded.
"""
