"""HTTP routes, one file per family.

Must not decide anything: they ask the parts in `State`.
"""
