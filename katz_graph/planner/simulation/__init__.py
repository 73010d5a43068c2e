"""Simulates a program on a virtual clock. Must not know how candidates are found."""
