"""Computes on one device: its models, instruction lists, what it tells of them. Must not know the
driver's other workers.
"""
