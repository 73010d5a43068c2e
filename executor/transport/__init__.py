"""Moves values between processes: explicit vocabulary, checked lengths, no pickle. Must not know
the purpose of the values.
"""
