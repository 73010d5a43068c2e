"""Defines the command line: names and options only. Each command's work is in a module of its own,
imported when it runs.
"""
