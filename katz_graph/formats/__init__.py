"""Reads and writes workflow files. `read.read_workflow` accepts every format. Each format has a
module that converts it to a graph, and back if the format is written.
"""
