"""Moves values from process to process: an explicit vocabulary, checked lengths, no pickle. Must
not know what they are for.
"""
