"""Compiles step regions to instruction lists, one file per pass over one `Program`.

Must not import torch, run a model, or know how workers are started and reached.
"""
