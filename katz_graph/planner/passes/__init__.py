"""Rewrites a program pass by pass, from region to instruction lists. Must not know workers, nor
measure anything.
"""
