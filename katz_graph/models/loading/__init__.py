"""Identifies model files, loads them, and keeps them within memory. Must not know what stages
compute.
"""
