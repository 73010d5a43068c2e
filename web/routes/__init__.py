"""Defines the HTTP routes, one file per family.

Must not contain decisions: routes call the parts in `State`.
"""
