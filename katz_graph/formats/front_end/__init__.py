"""Holds the rules by which front ends turn a saved document into what they send: one rule a module.
Must not know node types beyond their signatures, nor files.
"""
