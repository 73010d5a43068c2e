"""Executes calls of stages: binds them to live modules, merges the inputs of operations and of
requests, and stores the outputs. Must not know instructions, other workers and messages.
"""
