"""Moves values between processes, with an explicit list of types, checked lengths, and no pickle.
Must not know the purpose of the values.
"""
