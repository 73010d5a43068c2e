"""Starts workers that are connected to the driver: as a process, a thread, a Ray actor. Must not
know what workers do.
"""
