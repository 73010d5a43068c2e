"""Provides what tests and benches share: requests, models of random weights, references to compare
with, workers in threads, faults, server processes. The engine must not import it.
"""
