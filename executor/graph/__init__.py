"""Runs the graph of a workflow: nodes in order, cached results, expansions, errors that name the
node. Must not know workers.
"""
