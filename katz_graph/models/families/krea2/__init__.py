"""Krea 2: single blocks over one sequence of text and picture tokens."""
