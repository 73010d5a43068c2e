"""Defines the built-in nodes, which load like any pack.

Must not import the executor or the server, nor torch before a node runs.
"""
