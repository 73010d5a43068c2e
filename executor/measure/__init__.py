"""Measures devices, links and stages, and stores the results. Must not know how plans use them."""
