"""Provides the Python interface, which the command line uses. Must not be imported by the layers
below.
"""
