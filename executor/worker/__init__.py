"""Computes on one device: models in memory, requests in turns, instruction lists. Must not know the
driver's other workers.
"""
