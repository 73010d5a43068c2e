"""Reads and writes workflow files. `read.read_workflow` takes any of them; one module per format
turns it into a graph, and back where it is written.
"""
