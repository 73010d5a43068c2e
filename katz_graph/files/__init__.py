"""Finds models, inputs and outputs on this machine. Must know neither graphs nor the contents of
models.
"""
