"""Defines the command line: names and options only. Each command imports its implementation when it
runs.
"""
