"""Supervises the runner process and communicates with it, on the server's side. Must not import the
code that the runner runs.
"""
