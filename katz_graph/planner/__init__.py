"""Compiles step regions to instruction lists by passes over a `Program`, one per file.

Must not import torch, run a model, or know how workers are started and reached.
"""
