"""Runs benches, and makes the models, loops and servers that benches and tests share. Nothing but
tests imports it.
"""
