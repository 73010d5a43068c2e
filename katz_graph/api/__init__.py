"""Provides the Python interface. The command line is built on it. Composes the layers below; none
of them imports it.
"""
