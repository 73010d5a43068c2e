"""Keeps a runner process running and speaks with it, on the server's side. Must not import what the
runner runs.
"""
