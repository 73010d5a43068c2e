"""Fetches the files that URLs name, in a process of its own, and keeps them within a budget. Must
not know what is in them.
"""
