"""Computes with weights that are stored as 8-bit numbers."""
