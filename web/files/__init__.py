"""Stores and serves the files of clients, and is the one place where their names become paths. Must
not know jobs.
"""
