"""Reads and writes workflow files. `read.read_workflow` accepts every format. Each format has a
module that converts it to a graph, and back for formats that are also written.
"""
