"""Checks graphs before anything runs. Must not run a node."""
