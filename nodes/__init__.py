"""Defines the built-in nodes, loaded like any other pack.

Must not import the executor or the server, nor torch before a node runs.
"""
