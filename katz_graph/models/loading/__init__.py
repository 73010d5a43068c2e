"""Finds out what files are, loads them, and keeps them within memory. Must not know what stages
compute.
"""
