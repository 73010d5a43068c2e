"""Runs graphs and programs: the graph run with its caches, the engine, and the workers of devices.

Must not know HTTP, jobs and the command line.
"""
