"""Searches the placement of operations: candidates, bounds, calls. Must not know how a plan is
shown or executed.
"""
