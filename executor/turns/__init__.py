"""Schedules the work of one device's thread: task order, processor pinning, and waiting. Must not
know what is computed.
"""
