"""Runs the graph of a workflow: node order, cached results, expansions, and errors that name the
node. Must not know workers.
"""
