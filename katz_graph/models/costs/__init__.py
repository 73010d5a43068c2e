"""Counts what stages cost, without memory or weights. Must not know devices."""
