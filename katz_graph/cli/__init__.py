"""Defines the command line: names and options only. The work of commands is in modules that are
imported when they run.
"""
