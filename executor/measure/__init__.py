"""Measures devices, links and stages, and keeps the figures. Must not know how plans are made of
them.
"""
