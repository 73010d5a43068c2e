"""Knows where models, inputs and outputs lie on this machine. Must not know graphs and models'
insides.
"""
