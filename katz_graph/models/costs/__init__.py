"""Counts the costs of stages, without memory or weights. Must not know devices."""
