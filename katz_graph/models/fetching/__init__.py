"""Fetches files from URLs in a separate process, and caches them within a budget. Must not know the
contents.
"""
