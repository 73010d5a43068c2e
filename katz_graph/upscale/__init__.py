"""Recognises upscalers, defines their networks and loads them.

Must not know nodes or devices.
"""
