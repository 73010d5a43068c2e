"""Implements the rules by which front ends convert a saved document to the prompt that they send,
one rule per module. Must not know node types beyond their signatures, nor files.
"""
