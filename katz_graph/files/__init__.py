"""Finds models, inputs and outputs on this machine. Must not know graphs and models' insides."""
