"""Offers the Python interface, on which the command line stands. Puts the layers together: nothing
below imports it.
"""
