"""Starts workers connected to the driver, as a process, a thread or a Ray actor. Must not know what
workers do.
"""
