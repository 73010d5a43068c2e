"""Stores and serves clients' files. Only this folder turns client names into paths. Must not know
jobs.
"""
