"""Defines the built-in nodes, loaded as anyone's pack is.

Must not import the executor and the server, nor torch before a node runs.
"""
